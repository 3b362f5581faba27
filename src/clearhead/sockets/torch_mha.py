"""The socket of torch.nn.MultiheadAttention and of torch's encoder layers, on their fused paths and off them.

In evaluation without gradients torch computes a whole encoder layer in one kernel that calls no module. The model then
gets that kernel's own output, to the bit, and the layer is run a second time on its open path to be seen.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from clearhead.heads import Heads
from clearhead.numerics.precision import tolerance
from clearhead.sockets.call import Call
from clearhead.sockets.tap import AttentionNotSeenError, Tap, named_arguments, overridden_forward, split_mask

__all__ = ["TorchCall", "nested_again", "read_call", "torch_mha_socket"]


@contextmanager
def torch_mha_socket(tap: Tap) -> Iterator[None]:
    """Watch every torch.nn.MultiheadAttention of the model, inside torch's encoder layers too."""
    with ExitStack() as stack:
        for module in tap.model.modules():
            if isinstance(module, nn.MultiheadAttention) and id(module) not in tap.claimed:
                stack.enter_context(_watched_attention(tap, module))
            elif isinstance(module, nn.TransformerEncoderLayer):
                stack.enter_context(_watched_encoder_layer(tap, module))
        yield


@contextmanager
def _watched_attention(tap: Tap, module: nn.MultiheadAttention) -> Iterator[None]:
    def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if tap.inside:
            return original(*args, **kwargs)
        call = TorchCall.read(module, named_arguments(original, *args, **kwargs))
        state = torch.get_rng_state() if call.dropout else None
        with tap.busy():
            output, weights = original(*args, **kwargs)
            heads = _read(tap.names[id(module)], module, call, state)
        _agree(heads, module, call, output)
        replaced = tap.emit(heads, output)
        if replaced is None:
            return output, weights
        joined = replaced.to(call.query.dtype).transpose(1, 2).flatten(2)
        return call.as_the_model_has_it(module.out_proj(joined)), weights

    with overridden_forward(module, forward):
        yield


@contextmanager
def _watched_encoder_layer(tap: Tap, layer: nn.Module) -> Iterator[None]:
    def open_path(original: Callable[..., Any], src: Tensor, *args: Any, **kwargs: Any) -> Any:
        handle = layer.register_forward_pre_hook(lambda *_: None)
        try:
            return _without_nesting(original, src, *args, **kwargs)
        finally:
            handle.remove()

    def forward(original: Callable[..., Any], src: Tensor, *args: Any, **kwargs: Any) -> Any:
        if tap.inside:
            return original(src, *args, **kwargs)
        if tap.replaces:
            return open_path(original, src, *args, **kwargs)
        calls = tap.calls
        output = original(src, *args, **kwargs)
        if tap.calls == calls:
            open_path(original, src, *args, **kwargs)
        if tap.calls == calls:
            tap.unseen[tap.names[id(layer)]] = type(layer).__name__
        return output

    with overridden_forward(layer, forward):
        yield


def _without_nesting(original: Callable[..., Any], src: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Run an encoder layer's forward on a padded tensor with its mask, where it is called with a nested one."""
    if not src.is_nested:
        return original(src, *args, **kwargs)
    padded, padding = _padded(src)
    kwargs = named_arguments(original, padded, *args, **kwargs) | {"src_key_padding_mask": padding}
    return nested_again(original(kwargs.pop("src"), **kwargs), padding)


def _padded(x: Tensor) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(row) for row in x.unbind()], device=x.device)
    padded = x.to_padded_tensor(0.0)
    return padded, torch.arange(padded.shape[1], device=x.device) >= lengths[:, None]


def nested_again(output: Tensor, padding: Tensor) -> Tensor:
    """The rows that are no padding, as a nested tensor."""
    rows = [row[:length] for row, length in zip(output, (~padding).sum(dim=1).tolist(), strict=True)]
    return torch.nested.as_nested_tensor(rows, layout=torch.strided)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCall:
    """One call of torch.nn.MultiheadAttention, batch first, whatever it was called with."""

    query: Tensor
    key: Tensor
    value: Tensor
    key_padding_mask: Tensor | None
    attn_mask: Tensor | None
    need_weights: bool
    is_causal: bool
    dropout: float
    batch_first: bool
    batched: bool

    @classmethod
    def read(cls, module: nn.MultiheadAttention, arguments: dict[str, Any]) -> "TorchCall":
        """The call by the names of the arguments of the module's forward."""
        query, key, value = arguments["query"], arguments["key"], arguments["value"]
        padding = arguments.get("key_padding_mask")
        if query.is_nested:
            _, padding = _padded(key)
            query, key, value = (x.to_padded_tensor(0.0) for x in (query, key, value))
        batched = query.ndim == 3
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            padding = None if padding is None else padding.unsqueeze(0)
        elif not module.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        return cls(
            query=query,
            key=key,
            value=value,
            key_padding_mask=padding,
            attn_mask=arguments.get("attn_mask"),
            need_weights=arguments.get("need_weights", True),
            is_causal=arguments.get("is_causal", False),
            dropout=module.dropout if module.training else 0.0,
            batch_first=module.batch_first,
            batched=batched,
        )

    def as_the_model_has_it(self, output: Tensor) -> Tensor:
        """The output in the layout of the call."""
        if not self.batched:
            return output.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1)

    def added(self, heads: int, extra_keys: int) -> Tensor | None:
        """Everything that is added to the scores, (b, h, n, m), -inf where a key is hidden. None if nothing is.

        Here True in a boolean mask hides a key. Keys that the module appends can always be seen.
        """
        b, n, m = self.query.shape[0], self.query.shape[1], self.key.shape[1]
        terms = []
        mask = _floating(self.attn_mask, self.query.dtype)
        if mask is not None:
            terms.append(mask.view(b, heads, n, m) if mask.ndim == 3 else mask.view(1, 1, n, m))
        padding = _floating(self.key_padding_mask, self.query.dtype)
        if padding is not None:
            terms.append(padding.view(b, 1, 1, m))
        if not terms:
            return None
        return functional.pad(sum(terms[1:], terms[0]), (0, extra_keys))


def _floating(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask of either kind as what is added to the scores."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)
    return mask.to(dtype)


def _read(name: str, module: nn.MultiheadAttention, call: TorchCall, state: Tensor | None) -> Heads:
    out = _split(_without_projection(module, call, state), module.num_heads)
    return read_call(module, call).seen(name=name, out=out, windows=1, socket="torch.nn.MultiheadAttention")


def read_call(module: nn.MultiheadAttention, call: TorchCall) -> Call:
    """What the module's attention is asked."""
    q, k, v = (_split(x, module.num_heads) for x in _projections(module, call))
    mask, bias = split_mask(call.added(module.num_heads, k.shape[-2] - call.key.shape[1]))
    return Call(q=q, k=k, v=v, scale=q.shape[-1] ** -0.5, mask=mask, bias=bias, dropout=call.dropout)


def _split(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:-1], heads, -1).transpose(1, 2)


def _projections(module: nn.MultiheadAttention, call: TorchCall) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v with heads joined, and the keys that the module appends: a learned one, and one of zeros."""
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    biases = (None, None, None) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    inputs = (call.query, call.key, call.value)
    q, k, v = (functional.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True))
    if module.bias_k is not None and module.bias_v is not None:
        k = torch.cat([k, module.bias_k.expand(k.shape[0], 1, -1)], dim=1)
        v = torch.cat([v, module.bias_v.expand(v.shape[0], 1, -1)], dim=1)
    if module.add_zero_attn:
        k, v = functional.pad(k, (0, 0, 0, 1)), functional.pad(v, (0, 0, 0, 1))
    return q, k, v


def _without_projection(module: nn.MultiheadAttention, call: TorchCall, state: Tensor | None) -> Tensor:
    """The attention's output before the output projection, by torch's own function given the identity to project with.

    In training, `state` is the random state before the model's own call: the same weights are dropped again, and the
    model goes on as if nothing had been drawn in between.
    """
    width = module.embed_dim
    separate = module.in_proj_weight is None
    after = torch.get_rng_state()
    if state is not None:
        torch.set_rng_state(state)
    try:
        output, _ = functional.multi_head_attention_forward(
            call.query.transpose(0, 1),
            call.key.transpose(0, 1),
            call.value.transpose(0, 1),
            width,
            module.num_heads,
            module.in_proj_weight,
            module.in_proj_bias,
            module.bias_k,
            module.bias_v,
            module.add_zero_attn,
            module.dropout,
            torch.eye(width, dtype=call.query.dtype, device=call.query.device),
            None,
            training=module.training,
            key_padding_mask=_floating(call.key_padding_mask, call.query.dtype),
            need_weights=call.need_weights,
            attn_mask=_floating(call.attn_mask, call.query.dtype),
            use_separate_proj_weight=separate,
            q_proj_weight=module.q_proj_weight if separate else None,
            k_proj_weight=module.k_proj_weight if separate else None,
            v_proj_weight=module.v_proj_weight if separate else None,
        )
    finally:
        torch.set_rng_state(after)
    return output.transpose(0, 1)


def _agree(heads: Heads, module: nn.MultiheadAttention, call: TorchCall, output: Tensor) -> None:
    """What was read must lead to what the module returned, on every row that may look somewhere."""
    if output.is_nested:
        output = output.to_padded_tensor(0.0, heads.out.shape[:1] + heads.out.shape[2:3] + (module.embed_dim,))
    output = output.detach()
    expected = call.as_the_model_has_it(module.out_proj(heads.out.transpose(1, 2).flatten(2))).detach()
    rows = torch.ones_like(expected[..., :1], dtype=torch.bool)
    if heads.mask is not None:
        seen = heads.mask.any(dim=-1).all(dim=1)
        rows = call.as_the_model_has_it(seen.expand(expected.shape[0] if call.batch_first else -1, -1).unsqueeze(-1))
    difference = torch.where(rows, expected - output, 0).abs().amax()
    if float(difference) > 4 * tolerance(output.dtype, terms=module.embed_dim) * (1 + float(expected.abs().amax())):
        raise AttentionNotSeenError(
            f"{heads.name}: attention run again on torch's open path differs from its output by {float(difference):.1e}"
        )
