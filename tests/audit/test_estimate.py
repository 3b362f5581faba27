"""Estimates of the time and memory of an audit, from a few of its inputs."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.audit import estimate as module
from clearhead.audit.estimate import Estimate, estimate
from clearhead.audit.options import AuditOptions, Baseline
from clearhead.audit.record import Timing
from clearhead.errors import AuditError
from tests.interfaces.zoo import FAMILIES


class _Record:
    def __init__(self, timing: Timing) -> None:
        self.timing = timing


def _audits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Any]]:
    """Replace the audit by one of given times.

    It takes 3 s, 2 s for each input and 4 s for its controls, and 5 s for each input of a baseline model.
    """
    seen = []

    def audit(options: AuditOptions, model: nn.Module, batches: list[Tensor], *, baseline: Any = None) -> _Record:
        assert options.baseline is Baseline.NONE
        inputs = sum(len(batch) for batch in batches)
        seen.append((inputs, options))
        models = 0 if baseline is None else len(baseline)
        seconds = 3.0 + 2.0 * inputs + 4.0 * min(inputs, options.control_inputs)
        total = seconds + 0.5 + 0.25 * inputs + models * 5.0 * min(inputs, module.BASELINE_INPUTS)
        return _Record(Timing(check=0.5, forward=0.25 * inputs, theory={"t": seconds}, total=total, peak_memory=7))

    monkeypatch.setattr(module, "audit_with", audit)
    return seen


@pytest.mark.parametrize("size", [1, 3, 8, 50])
def test_fixed_and_growing_parts_are_told_apart(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    seen = _audits(monkeypatch)
    batches = [torch.zeros(size, 4) for _ in range(40)]
    found = estimate(nn.Identity(), batches, AuditOptions(theories=("kernel-pca",), seed=5))
    inputs = 40 * size
    assert found.inputs == inputs
    assert found.theories == {"t": pytest.approx(3 + 2 * inputs + 4 * 24)}
    assert found.forward == pytest.approx(0.5 + 0.25 * inputs)
    assert (found.baseline, found.memory) == (0, 7)
    assert found.tried == max(count for count, _ in seen) <= 2 * max(size, 8 + size)
    assert {options.seed for _, options in seen} == {5}


@pytest.mark.parametrize(("baseline", "seconds"), [(Baseline.AUTO, 5.0 * 10 * 12), (Baseline.NONE, 0)])
def test_the_baseline_is_ten_runs_on_its_own_inputs(
    monkeypatch: pytest.MonkeyPatch, baseline: Baseline, seconds: float
) -> None:
    _audits(monkeypatch)
    batches = [torch.zeros(3, 4) for _ in range(20)]
    found = estimate(nn.Linear(3, 5), batches, AuditOptions(theories=("coding-rate",), baseline=baseline))
    assert found.baseline == pytest.approx(seconds)
    two_models = 2 * 4 * (3 * 5 + 5)
    assert found.memory == 7 + (two_models if seconds else 0)
    assert found.seconds == pytest.approx(3 + 2 * 60 + 4 * 24 + 0.5 + 0.25 * 60 + seconds)


def test_a_model_is_estimated_and_no_input_is_an_error() -> None:
    family = FAMILIES["bert"]
    found = estimate(family.make(), [family.inputs()] * 3, AuditOptions(theories=("attention-sinks",)))
    assert isinstance(found, Estimate)
    assert 0 < found.seconds < 600
    assert set(found.theories) == {"attention sinks"}
    with pytest.raises(AuditError, match="no inputs"):
        estimate(family.make(), [], AuditOptions())
