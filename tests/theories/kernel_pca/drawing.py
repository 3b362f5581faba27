"""Random keys, queries and values, and the principal axes of random keys, for the tests of kernel PCA."""

import torch
from torch import Tensor

from clearhead.heads import Heads
from clearhead.theories.kernel_pca.space import KeySpace, Principal, key_space, principal_axes

HEADS, TOKENS, WIDTH, VALUES = 3, 23, 11, 5
SCALE = WIDTH**-0.5


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def space_of(seed: int = 0, *, size: float = 1.0) -> tuple[KeySpace, Principal]:
    space = key_space(size * normal(HEADS, TOKENS, WIDTH, seed=seed), scale=SCALE)
    return space, principal_axes(space, VALUES)


def mixing(e: int, seed: int) -> Tensor:
    """A mix that is neither a rotation nor a scaling, and far from singular."""
    return normal(e, e, seed=seed) + 3 * torch.eye(e, dtype=torch.float64)


def call(v: Tensor, k: Tensor, **more: object) -> Heads:
    given = {"q": k, "out": v, "scale": SCALE, "layer": 0, "name": "layer"} | more
    return Heads(k=k, v=v, **given)  # type: ignore[arg-type]
