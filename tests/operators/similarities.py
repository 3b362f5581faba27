"""The similarities under test, the value maps, and operands for them."""

import torch
from torch import Tensor

from clearhead.operators.general import (
    Similarity,
    concatenation,
    dot_product,
    embedded_gaussian,
    gaussian,
    gaussian_distance,
    general_attention,
    slow_general_attention,
)
from clearhead.testing import OperatorSubject
from clearhead.testing.operators import WIDTH

WEIGHT = torch.linspace(-0.5, 0.7, 2 * WIDTH, dtype=torch.float64)


def rotate(x: Tensor) -> Tensor:
    return 1.3 * x.roll(1, dims=-1).tanh()


def laplacian() -> Similarity:
    """exp(-|q - k|_1), a similarity of a third party: it has scores, but no form for the fused kernel."""
    return Similarity(
        pair=lambda q, k: (-(q - k).abs().sum(dim=-1)).exp(),
        scores=lambda q, k: -(q.unsqueeze(-2) - k.unsqueeze(-3)).abs().sum(dim=-1),
        exponential=True,
    )


EXPONENTIAL = {
    "gaussian": gaussian(),
    "scaled gaussian": gaussian(scale=WIDTH**-0.5),
    "embedded gaussian": embedded_gaussian(rotate, torch.tanh, scale=0.7),
    "gaussian distance": gaussian_distance(bandwidth=2.0),
    "laplacian": laplacian(),
}
COUNTED = {"dot product": dot_product(), "concatenation": concatenation(WEIGHT)}
SIMILARITIES = EXPONENTIAL | COUNTED


VALUES = {"identity": None, "linear": lambda v: 3 * v.flip(-1), "not linear": lambda v: v.square() - v.sum(-1, True)}


def random_operands(*, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    subject = OperatorSubject(operator=general_attention, reference=slow_general_attention, seed=seed)
    q, k, v = subject.draw(dtype=dtype).values()
    return q, k, v
