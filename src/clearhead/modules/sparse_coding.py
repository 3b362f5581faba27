"""Sparse coding steps with learned dictionaries (Yu et al. 2023; Yang et al. 2024)."""

import math

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.modules.inputs import check_sizes
from clearhead.operators.sparse_coding import ista_step, overcomplete_step, warn_of_step
from clearhead.private_names import current_dispatch_mode, functorch_active, tensor_version
from clearhead.shapes import Float


class _Dictionary(nn.Module):
    """A dictionary and a step size, which is checked in evaluation mode whenever the dictionary has changed."""

    dictionary: nn.Parameter

    def __init__(self, *, step: float, penalty: float) -> None:
        super().__init__()
        if not 0 < step < math.inf or not 0 <= penalty < math.inf:
            raise InputError(f"expected a step above zero and a penalty of at least zero; got {step} and {penalty}")
        self.step, self.penalty = step, penalty
        self._checked_version = -1

    def check_step(self) -> None:
        """Warn by `StepSizeWarning` if the step may not lower its objective. Does nothing in training mode."""
        if self.training or torch.compiler.is_compiling():
            return
        # Tensors of inference mode have no version, and those of the meta device no numbers.
        unknown = self.dictionary.is_inference() or self.dictionary.is_meta
        if unknown or self._checked_version == tensor_version(self.dictionary):
            return
        if functorch_active() or current_dispatch_mode() is not None:
            return  # numbers cannot be read there
        self._checked_version = tensor_version(self.dictionary)
        if not bool(self.dictionary.isfinite().all()):
            return
        warn_of_step(self.dictionary, step=self.step)

    def cast(self, x: Tensor, *dictionaries: Tensor) -> list[Tensor]:
        """Return the tensors in the dtype of autocast where it is on, as nn.Linear does."""
        if not x.is_meta and torch.is_autocast_enabled(x.device.type) and x.dtype is not torch.float64:
            return [tensor.to(torch.get_autocast_dtype(x.device.type)) for tensor in (x, *dictionaries)]
        return [x, *dictionaries]

    def extra_repr(self) -> str:
        """Return the sizes and settings."""
        return f"embed_dim={self.dictionary.shape[0]}, step={self.step}, penalty={self.penalty}"


class SparseCodingStep(_Dictionary):
    """`ista_step` with a learned dictionary D, embed_dim x embed_dim, initialised as in He et al. 2015, as released.

    step, penalty: eta and lambda
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        step: float = 0.1,
        penalty: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(step=step, penalty=penalty)
        check_sizes(embed_dim=embed_dim)
        self.dictionary = nn.Parameter(torch.empty(embed_dim, embed_dim, device=device, dtype=dtype))
        nn.init.kaiming_uniform_(self.dictionary)

    def forward(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        """Return the codes, (..., n, embed_dim), which are not negative."""
        self.check_step()
        return ista_step(*self.cast(x, self.dictionary), step=self.step, penalty=self.penalty)


class OvercompleteStep(_Dictionary):
    """`overcomplete_step` with two learned dictionaries, embed_dim x num_atoms (CRATE-alpha).

    num_atoms: four times embed_dim if None
    step, penalty: eta and lambda
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        num_atoms: int | None = None,
        step: float = 0.1,
        penalty: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(step=step, penalty=penalty)
        num_atoms = 4 * embed_dim if num_atoms is None else num_atoms
        check_sizes(embed_dim=embed_dim, num_atoms=num_atoms)
        self.dictionary = nn.Parameter(torch.empty(embed_dim, num_atoms, device=device, dtype=dtype))
        self.decoder = nn.Parameter(torch.empty(embed_dim, num_atoms, device=device, dtype=dtype))
        for parameter in (self.dictionary, self.decoder):
            nn.init.kaiming_uniform_(parameter)

    def forward(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        """Return the decoded codes, (..., n, embed_dim)."""
        self.check_step()
        operands = self.cast(x, self.dictionary, self.decoder)
        return overcomplete_step(*operands, step=self.step, penalty=self.penalty)
