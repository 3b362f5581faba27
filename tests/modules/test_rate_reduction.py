"""The MCR2 loss: the published formula, its arguments, and training with it."""

import math

import pytest
import torch
from torch import Tensor

from clearhead.modules.rate_reduction import RateReductionLoss
from clearhead.numerics.coding_rate import rate_reduction
from tests.numerics.test_logdet import normal

Z, LABELS = normal(23, 5), torch.arange(23) % 3


def published(z: Tensor, labels: Tensor, *, eps_squared: float, gamma1: float, gamma2: float) -> Tensor:
    """Return the formula of the paper, with features in columns."""
    w = z.T
    d, n = w.shape
    one = torch.eye(d, dtype=z.dtype)
    expansion = torch.logdet(one + gamma1 * d / (n * eps_squared) * w @ w.T) / 2
    compression = sum(
        float(own.sum()) / n * torch.logdet(one + d / (own.sum() * eps_squared) * (w * own) @ w.T) / 2
        for own in (labels == k for k in range(int(labels.max()) + 1))
    )
    return -gamma2 * expansion + compression


def test_loss_is_the_published_formula() -> None:
    z = Z.clone().requires_grad_()
    for eps_squared, gamma1, gamma2 in ((0.5, 1.0, 1.0), (0.01, 1.0, 1.0), (0.5, 2.0, 1.0), (0.5, 1.0, 0.3)):
        loss = RateReductionLoss(eps=math.sqrt(eps_squared), gamma1=gamma1, gamma2=gamma2)(z, LABELS)
        want = published(z, LABELS, eps_squared=eps_squared, gamma1=gamma1, gamma2=gamma2)
        torch.testing.assert_close(loss, want)
        torch.testing.assert_close(*(torch.autograd.grad(x, z)[0] for x in (loss, want)))
    default = published(z, LABELS, eps_squared=0.5, gamma1=1.0, gamma2=1.0)
    torch.testing.assert_close(RateReductionLoss()(z, LABELS), default)
    assert (RateReductionLoss(eps=0.5)(z, LABELS) - default).abs() > 0.1  # the argument is epsilon, not its square


def test_memberships_can_replace_labels() -> None:
    members = torch.nn.functional.one_hot(LABELS, 3).T.double()
    torch.testing.assert_close(RateReductionLoss()(Z, membership=members), RateReductionLoss()(Z, LABELS))


def test_features_are_normalised_on_request() -> None:
    loss = RateReductionLoss(normalise=True)
    torch.testing.assert_close(loss(7 * Z, LABELS), loss(Z, LABELS))
    assert abs(float(RateReductionLoss()(7 * Z, LABELS) - RateReductionLoss()(Z, LABELS))) > 0.1
    unit = torch.nn.functional.normalize(Z, dim=-1)
    want = rate_reduction(unit, labels=LABELS, eps=loss.eps)
    torch.testing.assert_close(loss(Z, LABELS), -want.value)
    torch.testing.assert_close(loss.rates(Z, LABELS).expansion, want.expansion)


def test_training_lowers_the_loss_and_separates_the_classes() -> None:
    """Train a linear map of overlapping features with the published optimiser."""
    layer = torch.nn.Linear(5, 7, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(normal(7, 5, seed=1))
    loss = RateReductionLoss(normalise=True)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    values = []
    for _ in range(60):
        optimiser.zero_grad()
        value = loss(layer(Z), LABELS)
        value.backward()
        optimiser.step()
        values.append(float(value))
    assert values[-1] < values[0] - 0.1
    assert values[-1] < 0


def test_invalid_arguments_raise_an_error_and_repr_shows_settings() -> None:
    assert repr(RateReductionLoss()) == "RateReductionLoss(eps=0.707107, gamma1=1, gamma2=1, normalise=False)"
    for wrong in ({"eps": 0.0}, {"gamma1": 0.0}, {"gamma2": -1.0}):
        with pytest.raises(ValueError, match="expected"):
            RateReductionLoss(**wrong)
    with pytest.raises(ValueError, match="labels or a membership"):
        RateReductionLoss()(Z)
