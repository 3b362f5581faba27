"""A module under check: copies of it, the inputs it is given, and what its forward takes.

Checks work in double precision and in evaluation, on copies: nothing is done to the caller's module.
"""

import copy
import inspect
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearhead.numerics.precision import tolerance
from clearhead.operators.contract_subject import BATCH, require

__all__ = ["LOUD", "TOKENS", "ModuleSubject", "first_tensor", "gradients", "wide_copy"]

TOKENS = 7
LOUD = 2.0**10
"""What hidden tokens are set to: scores of a million, beyond which masks by large numbers in place of -inf may fail."""

KEY_MASKS = {"key_mask": True, "key_padding_mask": False}
"""Arguments that say which tokens there are, by what they hold where there is one: torch's own holds False there."""

CAUSAL = ("causal", "is_causal")


def wide_copy(module: nn.Module, *, seed: int = 0) -> nn.Module:
    """A copy in double precision and in evaluation. Parameters that are zero throughout are drawn.

    A promise is one for all parameters, and zeros hide what they are multiplied with. AssertionError if a copy shares
    its numbers with the module, which would then be changed.
    """
    copied = copy.deepcopy(module)
    own = {value.data_ptr() for value in (*module.parameters(), *module.buffers()) if value.numel()}
    shared = any(value.data_ptr() in own for value in (*copied.parameters(), *copied.buffers()) if value.numel())
    require(copied is not module and not shared, "a copy of it shares its parameters or buffers")
    copied = copied.double().eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in copied.parameters():
        if parameter.is_floating_point() and not parameter.detach().any():
            width = parameter.shape[-1] if parameter.ndim > 1 else 1
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data.copy_(drawn / max(width, 1) ** 0.5)
    return copied


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSubject:
    """A module in double precision and in evaluation, as `wide_copy` makes it, and the inputs it takes."""

    module: nn.Module
    shape: tuple[int, ...]
    """Of an input, the batch first; (b, n, c) if it is tokens."""
    places: int | None = None
    """How many keys a mask speaks of; n for tokens, unknown for other inputs unless given."""
    backend: str = "eager"
    seed: int = 0

    @property
    def tokens(self) -> bool:
        """Whether inputs are (b, n, c)."""
        return len(self.shape) == 3

    @property
    def keys(self) -> int | None:
        """How many keys a mask speaks of, if that is known."""
        return self.shape[1] if self.tokens and self.places is None else self.places

    @property
    def takes(self) -> frozenset[str]:
        """The names of the arguments of its forward."""
        return frozenset(inspect.signature(self.module.forward).parameters)

    @property
    def key_mask(self) -> str:
        """By which argument it is told which tokens there are; empty if by none."""
        return next((name for name in KEY_MASKS if name in self.takes), "")

    @property
    def causal(self) -> str:
        """By which argument it is told to look back only; empty if by none."""
        return next((name for name in CAUSAL if name in self.takes), "")

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        parameter = next(self.module.parameters(), None)
        return torch.device("cpu") if parameter is None else parameter.device

    def draw(self, *, dtype: torch.dtype = torch.float64, seed: int | None = None) -> Tensor:
        """A standard normal input, the same whenever the seed is."""
        generator = torch.Generator().manual_seed(self.seed if seed is None else seed)
        return torch.randn(self.shape, generator=generator, dtype=torch.float64).to(self.device, dtype)

    def hiding(self, hidden: Tensor) -> dict[str, Tensor]:
        """The mask as an argument, for tokens that are hidden where (b, n) is True."""
        return {self.key_mask: hidden.logical_not() if KEY_MASKS[self.key_mask] else hidden}

    def hidden(self) -> Tensor:
        """(b, n), True at the last tokens: two of the first input, one of the second, none of those after."""
        counts = (BATCH - torch.arange(self.shape[0])).clamp_min(0)
        places = torch.arange(self.keys or 0)
        return (places >= (self.keys or 0) - counts[:, None]).to(self.device)

    def options(self) -> dict[str, Tensor]:
        """A mask that hides some tokens, if the module takes one and it is known how many there are."""
        return self.hiding(self.hidden()) if self.key_mask and self.keys else {}

    def attend(self, x: Tensor, **options: Tensor | bool) -> Tensor:
        """What the module makes of an input, of which it gets a copy: a flaw shall show in its own check alone."""
        return first_tensor(self.module(x.clone(), **options))

    def tolerance(self, dtype: torch.dtype) -> float:
        """The relative error that is no error in this dtype, for sums over the widest axis of the parameters."""
        widths = [max(parameter.shape, default=1) for parameter in self.module.parameters()]
        return tolerance(dtype, terms=max(64, *widths, *self.shape[1:]))


def first_tensor(out: object) -> Tensor:
    """The output, or its first part where weights or a cache come with it."""
    first = out[0] if isinstance(out, tuple | list) and out else out
    if not isinstance(first, Tensor):
        raise AssertionError(f"expected a tensor, or a tuple that starts with one; got {type(out).__name__}")
    return first


def gradients(subject: ModuleSubject, x: Tensor, **options: Tensor | bool) -> dict[str, Tensor]:
    """Gradients for the input and every parameter of a fixed random form of the output; zeros where one is not used."""
    leaf = x.detach().clone().requires_grad_()
    learned = {name: p for name, p in subject.module.named_parameters() if p.requires_grad}
    out = subject.attend(leaf, **options)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    form = (out * weights.to(out.device, out.dtype)).sum()
    require(form.requires_grad, "the output is cut off from its input: it has no gradient")
    found = torch.autograd.grad(form, [leaf, *learned.values()], allow_unused=True, materialize_grads=True)
    return dict(zip(["the input", *learned], found, strict=True))
