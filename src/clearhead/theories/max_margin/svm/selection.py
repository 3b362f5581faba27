"""The constraints of an attention SVM from tokens, queries and the selected tokens."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.moments import Array
from clearhead.shapes import Bool, Float, Int, ShapeError
from clearhead.theories.max_margin.svm.constraints import Constraints


def selection_constraints(
    x: Float[Tensor, "n t d"],
    z: Float[Tensor, "n e"] | None,
    selected: Int[Tensor, "n"],
    *,
    mask: Bool[Tensor, "n t"] | None = None,
) -> tuple[Constraints, NDArray[np.int64]]:
    """Return the constraints that each selected token scores highest, in float64, and the selected tokens.

    The arguments are those of `attention_svm`; raise InputError or ShapeError if they do not fit together.
    """
    n, t = x.shape[:2] if x.ndim == 3 else (-1, -1)
    wrong_z = z is not None and (z.ndim != 2 or z.shape[0] != n)
    if n < 0 or wrong_z or selected.shape != (n,) or (mask is not None and mask.shape != (n, t)):
        raise ShapeError(
            f"expected x (n, t, d), z (n, e), selected (n), mask (n, t); got {describe_shapes(x, z, selected, mask)}"
        )
    if selected.is_floating_point():
        raise InputError(f"expected selected of an integer dtype; got {selected.dtype}")
    tokens, queries, visible = visible_operands(x, z, mask)
    chosen: NDArray[np.int64] = selected.detach().cpu().numpy().astype(np.int64)
    nonempty = visible.any(axis=1)
    in_range = (chosen >= 0) & (chosen < t)
    if not in_range[nonempty].all() or not visible[nonempty, chosen[nonempty]].all():
        raise InputError("a selected token is out of range or hidden by the mask; select a visible token")
    others = visible.copy()
    others[nonempty, chosen[nonempty]] = False
    sequence, token = np.nonzero(others)
    count = len(sequence)
    constraints = Constraints(
        delta=tokens[sequence, chosen[sequence]] - tokens[sequence, token],
        z=queries,
        sequence=sequence,
        token=token,
        bound=np.ones(count),
        equal=np.zeros(count, dtype=bool),
    )
    return constraints, chosen


def visible_operands(
    x: Float[Tensor, "n t d"], z: Float[Tensor, "n e"] | None, mask: Bool[Tensor, "n t"] | None
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return tokens and queries in float64 and the mask, with zeros where the mask hides what may not be finite.

    Without z, every query is the number one, so that W is a vector.
    """
    visible = np.ones(x.shape[:2], dtype=bool)
    if mask is not None:
        visible = mask.detach().cpu().numpy().astype(bool)
        x = x.masked_fill(~mask[:, :, None], 0)
        z = None if z is None else z.masked_fill(~mask.any(dim=1)[:, None], 0)
    queries = np.ones((x.shape[0], 1)) if z is None else to_float64(z, "z")
    return to_float64(x, "x"), queries, visible


def to_float64(tensor: Tensor, name: str) -> Array:
    """Convert to a numpy array in float64; raise InputError if the dtype is not floating or an entry not finite."""
    if not tensor.is_floating_point():
        raise InputError(f"expected {name} of a floating dtype; got {tensor.dtype}")
    array: Array = tensor.detach().cpu().double().numpy()
    if not np.isfinite(array).all():
        raise InputError(f"{name} has entries that are not finite; correct or leave out those sequences")
    return array


def describe_shapes(x: Tensor, z: Tensor | None, selected: Tensor, mask: Tensor | None) -> str:
    """List the shapes of the operands for an error message."""
    operands = {"x": x, "z": z, "selected": selected, "mask": mask}
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in operands.items() if tensor is not None)
