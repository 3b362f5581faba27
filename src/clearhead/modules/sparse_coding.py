"""Sparse coding steps as layers: they own dictionaries (Yu et al. 2023; Yang et al. 2024)."""

import math

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.modules.inputs import check_positive
from clearhead.operators.sparse_coding import ista_step, overcomplete_step, warn_of_step
from clearhead.shapes import Float

__all__ = ["OvercompleteStep", "SparseCodingStep"]


class _Dictionary(nn.Module):
    """A dictionary and a step, which in evaluation is checked once for every state of the dictionary."""

    dictionary: nn.Parameter

    def __init__(self, *, step: float, penalty: float) -> None:
        super().__init__()
        if not 0 < step < math.inf or not 0 <= penalty < math.inf:
            raise InputError(f"expected a step above zero and a penalty of at least zero; got {step} and {penalty}")
        self.step, self.penalty = step, penalty
        self._checked = -1

    def warn_once(self) -> None:
        """`StepSizeWarning` if the step need not descend. A training run is not bothered."""
        if self.training or torch.compiler.is_compiling():
            return
        # Tensors of inference mode keep no version, and those of the meta device no numbers.
        unknown = self.dictionary.is_inference() or self.dictionary.is_meta
        if unknown or self._checked == self.dictionary._version:
            return
        if torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack():
            return  # numbers cannot be looked at there
        self._checked = self.dictionary._version
        if not bool(self.dictionary.isfinite().all()):
            return
        warn_of_step(self.dictionary, step=self.step)

    def as_computed(self, x: Tensor, *dictionaries: Tensor) -> list[Tensor]:
        """All of them in the dtype of autocast where it is on, as torch's own maps take theirs; else as they are."""
        if not x.is_meta and torch.is_autocast_enabled(x.device.type) and x.dtype is not torch.float64:
            return [tensor.to(torch.get_autocast_dtype(x.device.type)) for tensor in (x, *dictionaries)]
        return [x, *dictionaries]

    def extra_repr(self) -> str:
        """What the dictionary does not show."""
        return f"width={self.dictionary.shape[0]}, step={self.step}, penalty={self.penalty}"


class SparseCodingStep(_Dictionary):
    """`ista_step` with a dictionary D of its own, width x width, drawn as He et al. 2015 do, as released.

    step, penalty: eta and lambda
    """

    def __init__(self, width: int, *, step: float = 0.1, penalty: float = 0.1) -> None:
        super().__init__(step=step, penalty=penalty)
        check_positive(width=width)
        self.dictionary = nn.Parameter(torch.empty(width, width))
        nn.init.kaiming_uniform_(self.dictionary)

    def forward(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        """The codes, (..., n, width), none of them negative."""
        self.warn_once()
        return ista_step(*self.as_computed(x, self.dictionary), step=self.step, penalty=self.penalty)


class OvercompleteStep(_Dictionary):
    """`overcomplete_step` with two dictionaries of its own, width x atoms (CRATE-alpha).

    atoms: four times the width if None
    """

    def __init__(self, width: int, *, atoms: int | None = None, step: float = 0.1, penalty: float = 0.1) -> None:
        super().__init__(step=step, penalty=penalty)
        atoms = 4 * width if atoms is None else atoms
        check_positive(width=width, atoms=atoms)
        self.dictionary = nn.Parameter(torch.empty(width, atoms))
        self.decoder = nn.Parameter(torch.empty(width, atoms))
        for parameter in (self.dictionary, self.decoder):
            nn.init.kaiming_uniform_(parameter)

    def forward(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        """The decoded codes, (..., n, width)."""
        self.warn_once()
        operands = self.as_computed(x, self.dictionary, self.decoder)
        return overcomplete_step(*operands, step=self.step, penalty=self.penalty)
