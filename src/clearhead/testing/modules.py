"""A module, x -> y, as the subject of checks, which run on copies in double precision and evaluation mode."""

import copy
import dataclasses
import inspect
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearhead.numerics.precision import tolerance
from clearhead.testing.subject import BATCH, Differentiable, Inputs, Subject, first_tensor, require

TOKENS = 7

KEY_MASKS = {"key_mask": True, "key_padding_mask": False}
"""Arguments that mark tokens, by their value at a token: torch's own is False there and True at padding."""

CAUSAL = ("causal", "is_causal")


def float64_copy(module: nn.Module, *, seed: int = 0) -> nn.Module:
    """Return a copy in double precision and evaluation mode, with all-zero parameters replaced by random ones.

    The contract is about all parameters, and zeros hide errors in whatever they multiply. Raises AssertionError if
    the copy shares memory with the module.
    """
    copied = copy.deepcopy(module)
    memory = {value.data_ptr() for value in (*module.parameters(), *module.buffers()) if value.numel()}
    shared = any(value.data_ptr() in memory for value in (*copied.parameters(), *copied.buffers()) if value.numel())
    require(copied is not module and not shared, "a deepcopy of it shares its parameters or buffers")
    copied = copied.double().eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in copied.parameters():
        if parameter.is_floating_point() and not parameter.detach().any():
            width = parameter.shape[-1] if parameter.ndim > 1 else 1
            sample = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data.copy_(sample / max(width, 1) ** 0.5)
    return copied


@dataclass(frozen=True, kw_only=True)
class ModuleSubject(Subject):
    """A module under check, in double precision and evaluation mode (`float64_copy`), and its input shape."""

    module: nn.Module
    shape: tuple[int, ...]
    """Shape of an input, batch first; (b, n, c) for tokens."""
    key_count: int | None = None
    """Number of keys that a mask covers; n for tokens. A mask is not tested on other inputs unless it is given."""

    @property
    def function(self) -> nn.Module:
        """The module."""
        return self.module

    @property
    def content(self) -> str:
        """The input."""
        return "the input"

    @property
    def takes_tokens(self) -> bool:
        """True if inputs are (b, n, c)."""
        return len(self.shape) == 3

    @property
    def keys(self) -> int | None:
        """Number of keys that a mask covers, if known."""
        return self.shape[1] if self.takes_tokens and self.key_count is None else self.key_count

    @property
    def key_mask(self) -> str:
        """Name of the argument that marks tokens; empty if the module has no such argument."""
        return next((name for name in KEY_MASKS if name in self._arguments), "")

    @property
    def causal(self) -> str:
        """Name of the argument for causal attention; empty if the module has no such argument."""
        return next((name for name in CAUSAL if name in self._arguments), "")

    @property
    def _arguments(self) -> frozenset[str]:
        return frozenset(inspect.signature(self.module.forward).parameters)

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        parameter = next(self.module.parameters(), None)
        return torch.device("cpu") if parameter is None else parameter.device

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Parameters that require gradients, by name."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    @property
    def state(self) -> dict[str, Tensor]:
        """The state dict."""
        return self.module.state_dict()

    def draw(self, *, dtype: torch.dtype = torch.float64, tokens: int | None = None, seed: int | None = None) -> Inputs:
        """Draw a standard normal input, the same for the same seed."""
        generator = torch.Generator().manual_seed(self.seed if seed is None else seed)
        x = torch.randn(self.shape, generator=generator, dtype=torch.float64).to(self.device, dtype)
        return {self.content: x if tokens is None else x[:, :tokens]}

    def hiding(self, hidden: Tensor) -> Inputs:
        """Return the mask argument for tokens that are hidden where (b, n) is True."""
        return {self.key_mask: hidden.logical_not() if KEY_MASKS[self.key_mask] else hidden}

    def hidden(self) -> Tensor:
        """Return (b, n), True at the last two tokens of the first input and the last of the second."""
        counts = (BATCH - torch.arange(self.shape[0])).clamp_min(0)
        positions = torch.arange(self.keys or 0)
        return (positions >= (self.keys or 0) - counts[:, None]).to(self.device)

    def options(self) -> Inputs:
        """Return a mask that hides some tokens, if the module takes one and the number of tokens is known."""
        return self.hiding(self.hidden()) if self.key_mask and self.keys else {}

    def output_shape(self, out: Tensor) -> tuple[int, ...]:
        """Return the batch size of the inputs, followed by any sizes."""
        return (self.shape[0], *out.shape[1:])

    def expected(self, inputs: Inputs, **options: Tensor) -> Tensor:
        """Return the output of the module itself."""
        return self.output(inputs, **options)

    def rounded(self, dtype: torch.dtype) -> tuple["ModuleSubject", "ModuleSubject"]:
        """Return copies in `dtype` and in float64 with the same, rounded parameters."""
        narrow, wide = (dataclasses.replace(self, module=copy.deepcopy(self.module)) for _ in range(2))
        narrow.module.to(dtype)
        wide.module.load_state_dict(narrow.module.state_dict())
        return narrow, wide

    def differentiable(self) -> Differentiable:
        """Return the module as a function of its input and parameters."""
        options, copies = self.options(), {name: p.detach().clone() for name, p in self.parameters.items()}

        def function(x: Tensor, *values: Tensor) -> Tensor:
            parameters = dict(zip(copies, values, strict=True))
            return first_tensor(torch.func.functional_call(self.module, parameters, (x.clone(),), options))

        leaves = tuple(value.requires_grad_() for value in (*self.draw().values(), *copies.values()))
        # Entry by entry a layer of usual width would take hours.
        return Differentiable(function=function, leaves=leaves, fast=True)

    def tolerance(self, dtype: torch.dtype) -> float:
        """Return the relative error that rounding explains, for sums over the widest axis of the parameters."""
        widths = [max(parameter.shape, default=1) for parameter in self.module.parameters()]
        return tolerance(dtype, terms=max(64, *widths, *self.shape[1:]))
