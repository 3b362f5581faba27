"""One linear map as a model called it, and whether a tensor is its output."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearhead.heads import LinearMap
from clearhead.numerics.precision import machine_epsilon, tolerance
from clearhead.private_names import tensor_version
from clearhead.shapes import Float

__all__ = ["LinearCall", "by_token", "holds", "is_plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCall:
    """out = x weight^T + bias, as it was called."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    out: Tensor
    versions: tuple[int, ...] | None

    @classmethod
    def record(cls, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> "LinearCall":
        """Return the call, with the number of writes to its tensors so far."""
        return cls(x=x, weight=weight, bias=bias, out=out, versions=_versions(x, weight, bias, out))

    def unwritten(self) -> bool:
        """Return whether the tensors are certainly unchanged since the call."""
        return self.versions is not None and self.versions == _versions(self.x, self.weight, self.bias, self.out)

    def fits(self, y: Float[Tensor, "b h t f"]) -> bool:
        """Return whether it has one output for every token of y, with numbers that can be compared."""
        if self.out.dtype != y.dtype or self.out.numel() != y.shape[0] * y.shape[2] * self.out.shape[-1]:
            return False
        tensors = [tensor for tensor in (self.x, self.weight, self.bias, self.out) if tensor is not None]
        comparable = all(is_plain(tensor) and tensor.device == y.device for tensor in tensors)
        return comparable and self.weight.ndim == 2 and (self.bias is None or self.bias.ndim == 1)


def _versions(*tensors: Tensor | None) -> tuple[int, ...] | None:
    """Return the number of in-place writes to each; None in inference mode, where torch does not count them."""
    try:
        return tuple([tensor_version(x) for x in tensors if x is not None])
    except RuntimeError:
        return None


def is_plain(x: Tensor) -> bool:
    """Return whether numbers can be compared; those of subclasses (quantised, sharded) and sparse tensors may not."""
    strided = type(x) in (Tensor, nn.Parameter) and x.layout is torch.strided
    return strided and x.is_floating_point() and not (x.is_nested or x.is_meta)


def by_token(x: Tensor, y: Float[Tensor, "b h t f"], tokens_first: bool) -> Tensor:
    """Return x as (b, t, ...), in the order of y."""
    b, t = y.shape[0], y.shape[2]
    return x.reshape(t, b, -1).transpose(0, 1) if tokens_first else x.reshape(b, t, -1)


def holds(linear_map: LinearMap, y: Float[Tensor, "b h t f"], tokens: tuple[Tensor, Tensor] | None = None) -> bool:
    """Return whether x W + b equals y to rounding: in the first head on these tokens, or everywhere.

    The rounding of a sum of products is bounded by the root of the sum of their squares and by the sum itself. The sum
    is computed in single precision at least, so a shorter dtype adds the rounding of its numbers without accumulation.
    """
    dtype = torch.promote_types(y.dtype, torch.float32)
    with torch.autocast(y.device.type, enabled=False):
        heads = slice(None) if tokens is None else slice(1)
        x, expected = linear_map.x, y[:, heads].movedim(1, 2)
        if tokens is not None:
            x, expected = x[tokens], expected[tokens]
        x, expected = x.to(dtype), expected.to(dtype).flatten(-2)
        weight = linear_map.weight[heads].to(dtype).movedim(0, 1).flatten(1)
        bias = x.new_zeros(()) if linear_map.bias is None else linear_map.bias[heads].to(dtype).flatten()
        size = (x.square() @ weight.square() + bias.square()).sqrt() + expected.abs()
        allowed = 8 * machine_epsilon(y.dtype) + tolerance(dtype, terms=x.shape[-1])
        return bool(((x @ weight + bias - expected).abs() <= allowed * size).all())
