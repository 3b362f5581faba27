r"""Sparse coding steps, which follow attention in CRATE and in CRATE-alpha.

CRATE (Yu et al. 2023, arXiv 2306.01129, section 2.4) takes one step of iterative shrinkage (ISTA; Beck and Teboulle
2009) on nonnegative codes A of the tokens Z,

    min over A >= 0 of   lambda |A|_1 + |Z - D A|^2 / 2,

from A = Z: ReLU(Z + eta D^T (Z - D Z) - eta lambda). CRATE-alpha (Yang et al. 2024, arXiv 2405.20299) takes two
steps from A = 0 with four times as many atoms, and decodes by a second dictionary. Chapter 7 of the second CRATE paper
(arXiv 2311.13110) prints +lambda; its chapter 4 and the code have the minus sign, which a proximal step requires. Here
tokens are rows; D is d x atoms as in the source.
"""

import warnings

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.shapes import Float, ShapeError, check_finite


class StepSizeWarning(UserWarning):
    """A step size above 1/|D|^2, which may not lower the objective."""


def largest_step(dictionary: Float[Tensor, "d m"]) -> float:
    r"""Return the largest step size that lowers the objective from any point: :math:`1 / \lVert D \rVert_2^2`."""
    if dictionary.ndim != 2:
        raise ShapeError(f"expected a dictionary (d, atoms); got {tuple(dictionary.shape)}")
    check_finite("dictionary entries", dictionary.detach())
    norm = float(torch.linalg.matrix_norm(dictionary.detach().double(), ord=2)) if dictionary.numel() else 0.0
    return float("inf") if norm == 0 else norm**-2


def warn_of_step(dictionary: Float[Tensor, "d m"], *, step: float) -> None:
    """Warn by `StepSizeWarning` if a step of this size may not lower the objective."""
    largest = largest_step(dictionary)
    if step > largest:
        warnings.warn(
            f"the step size {step:g} is above 1/|D|^2 = {largest:.3g}, so a step may not lower its objective; "
            "use a smaller step size, or scale the dictionary down",
            StepSizeWarning,
            stacklevel=3,
        )


def ista_step(
    z: Float[Tensor, "*b n d"], dictionary: Float[Tensor, "d d"], *, step: float = 0.1, penalty: float = 0.1
) -> Float[Tensor, "*b n d"]:
    r"""Return one proximal step towards sparse nonnegative codes, starting from the tokens.

    .. math:: z \leftarrow \mathrm{ReLU}(z + \eta\, D^T (z - D z) - \eta\lambda)

    step, penalty: eta and lambda, .1 each as released

    It lowers the objective if eta is at most 1/|D|^2 (`largest_step`, `warn_of_step`) and z is not negative. With 2 d
    tokens or more, the three products with D are computed as one with I + eta (D - D^T D).
    """
    check_dictionary(z, dictionary, square=True)
    d = dictionary.shape[0]
    if z.numel() < 2 * d * d:
        return _relu(z + step * ((z - z @ dictionary.mT) @ dictionary) - step * penalty)
    matrix = torch.eye(d, dtype=z.dtype, device=z.device) + step * (dictionary - dictionary.mT @ dictionary)
    shift = z.new_full((d,), -step * penalty)
    flat = torch.addmm(shift, z.reshape(-1, d), matrix)
    return _relu(flat).reshape(z.shape)


def slow_ista_step(
    z: Float[Tensor, "*b n d"], dictionary: Float[Tensor, "d d"], *, step: float = 0.1, penalty: float = 0.1
) -> Float[Tensor, "*b n d"]:
    """Compute `ista_step` with tokens as columns, product by product."""
    check_dictionary(z, dictionary, square=True)
    Z, D = z.mT, dictionary
    return torch.relu(Z + step * (D.mT @ Z) - step * (D.mT @ (D @ Z)) - step * penalty).mT


def _relu(x: Tensor) -> Tensor:
    """Return max(x, 0), and NaN where x is infinite: minus infinity is an overflow, and a zero would hide it."""
    return torch.relu(x) + 0 * x


def overcomplete_step(
    z: Float[Tensor, "*b n d"],
    dictionary: Float[Tensor, "d m"],
    decoder: Float[Tensor, "d m"],
    *,
    step: float = 0.1,
    penalty: float = 0.1,
) -> Float[Tensor, "*b n d"]:
    r"""Return two proximal steps from zero with more atoms than dimensions, decoded by a second one (CRATE-alpha).

    .. math::
        a_1 = \mathrm{ReLU}(\eta D^T z - \eta\lambda), \qquad
        a_2 = \mathrm{ReLU}(a_1 - \eta D^T (D a_1 - z) - \eta\lambda), \qquad \text{out} = D_1 a_2
    """
    check_dictionaries(z, dictionary, decoder)
    drive = step * (z @ dictionary) - step * penalty
    first = _relu(drive)
    second = _relu(first + drive - step * ((first @ dictionary.mT) @ dictionary))
    return second @ decoder.mT


def slow_overcomplete_step(
    z: Float[Tensor, "*b n d"],
    dictionary: Float[Tensor, "d m"],
    decoder: Float[Tensor, "d m"],
    *,
    step: float = 0.1,
    penalty: float = 0.1,
) -> Float[Tensor, "*b n d"]:
    """Compute `overcomplete_step` with tokens as columns, as printed."""
    check_dictionaries(z, dictionary, decoder)
    Z, D = z.mT, dictionary
    first = torch.relu(step * D.mT @ Z - step * penalty)
    second = torch.relu(first - step * D.mT @ (D @ first - Z) - step * penalty)
    return (decoder @ second).mT


def check_dictionaries(z: Tensor, dictionary: Tensor, decoder: Tensor) -> None:
    """Raise unless both dictionaries fit the tokens and each other."""
    for matrix in (dictionary, decoder):
        check_dictionary(z, matrix, square=False)
    if decoder.shape != dictionary.shape:
        raise ShapeError(
            f"expected two dictionaries of the same shape; got {tuple(dictionary.shape)} and {tuple(decoder.shape)}"
        )


def check_dictionary(z: Tensor, dictionary: Tensor, *, square: bool) -> None:
    """Raise unless a dictionary (d, atoms) fits tokens z (..., n, d)."""
    fits = z.ndim >= 2 and dictionary.ndim == 2 and dictionary.shape[0] == z.shape[-1]
    if not fits or (square and dictionary.shape[0] != dictionary.shape[1]):
        atoms = "d" if square else "atoms"
        raise ShapeError(
            f"expected z (..., n, d) and a dictionary (d, {atoms}); got {tuple(z.shape)}, {tuple(dictionary.shape)}"
        )
    if not z.is_floating_point() or z.dtype != dictionary.dtype:
        raise InputError(f"expected z and the dictionary of one floating dtype; got {z.dtype}, {dictionary.dtype}")
