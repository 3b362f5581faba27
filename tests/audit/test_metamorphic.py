"""What must not change a verdict does not: the order of heads, the basis of values, noise in the last bit, processors.

A verdict may change if it is borderline. A p-value stays within those that moving all numbers by their resolution
gives (`clearhead.audit.rounding`). Inputs in another order get other random draws, which are not rounding: they are
compared in `test_invariance`.
"""

import copy
import dataclasses
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clearhead._capture.recording import capture
from clearhead.audit import engine
from clearhead.audit.findings import Finding, NoEvidence, Verdict
from clearhead.audit.record import AuditRecord
from clearhead.audit.rounding import ROUNDING, move_by_rounding
from clearhead.audit.run import audit
from clearhead.heads import Heads
from clearhead.theories.accumulator import Accumulator
from clearhead.theories.catalogue import load_theories
from clearhead.theories.example import Example, Random
from clearhead.theories.reason import Reason
from clearhead.theories.theory import Role, Sample, Samples, Theory, Unit
from tests.audit.small_models import HEADS, LAYER, MODELS, WIDTH, Subject, subject
from tests.measured import Measured
from tests.noise import noisy_heads, noisy_weights
from tests.once import once

DRAWS = 20
ORDER = [3, 0, 4, 1, 2]
BY_INPUT = ("kernel-pca", "coding-rate", "attention-sinks", "symmetry")
"""The theories that measure inputs one at a time."""


def audited(made: Subject, theories: Sequence[str] = (), *, model: nn.Module | None = None) -> AuditRecord:
    return audit(model or made.model, made.batches, theories=theories, layers=[LAYER], baseline=made.draws)


@pytest.fixture(scope="module", params=list(MODELS))
def made(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param)


@pytest.fixture(scope="module")
def reference(made: Subject) -> AuditRecord:
    return audited(made)


def assert_same_within_rounding(reference: Sequence[Finding], findings: Sequence[Finding]) -> None:
    for ours, theirs in zip(reference, findings, strict=True):
        assert ours.verdict is theirs.verdict or ours.borderline, ours
        if ours.claim.role is Role.PRIMARY and not np.isnan(ours.p_value):
            nearby = [move_by_rounding(ours, *signs).p_value for signs in ROUNDING]
            low, high = min(*nearby, ours.p_value), max(*nearby, ours.p_value)
            assert low * (1 - 1e-9) <= theirs.p_value <= high * (1 + 1e-9) or ours.borderline, ours


@pytest.fixture
def with_noise(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let every captured tensor be moved by one unit in the last place."""
    split = engine.make_examples

    def start(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def noisy(heads: Heads, *rest: Any, **options: Any) -> Any:
            return split(noisy_heads(heads, generator), *rest, **options)

        monkeypatch.setattr(engine, "make_examples", noisy)

    return start


@once
def test_the_reference_has_something_to_find(made: Subject, reference: AuditRecord) -> None:
    assert len({f.verdict for f in reference.findings}) > 1
    assert any(f.no_evidence is not NoEvidence.EQUAL for f in reference.findings if f.no_evidence is not None)


@once
def test_noise_in_the_last_bit_changes_no_verdict(
    made: Subject, reference: AuditRecord, with_noise: Callable[[int], None]
) -> None:
    with_noise(3)
    record = audited(made)
    assert [f.value for f in record.findings] != [f.value for f in reference.findings]
    assert_same_within_rounding(reference.findings, record.findings)


@once
def test_noise_in_the_last_bit_of_all_weights_changes_no_verdict(made: Subject, reference: AuditRecord) -> None:
    """Layers multiply it, as they do the rounding of another processor; large scores of a head do so most."""
    for seed in range(3):
        with noisy_weights(made.model, seed=seed):
            record = audited(made)
        assert_same_within_rounding(reference.findings, record.findings)


def differences(theory: Theory, calls: Sequence[Heads], generator: torch.Generator | None = None) -> list[Finding]:
    """Return the findings of the primary claims on captured calls, with noise if there is a generator."""
    measurement = Measured(theory, claims=theory.deciding_claims)
    for heads in calls:
        measurement.feed(heads if generator is None else noisy_heads(heads, generator))
    return [finding for finding in measurement.findings() if finding.claim.role is Role.PRIMARY and finding.applies]


@once
@pytest.mark.parametrize("key", ["kernel-pca", "max-margin", "coding-rate", "attention-sinks", "symmetry"])
def test_the_resolution_is_above_the_noise_floor(made: Subject, key: str) -> None:
    """Noise moves differences from controls by at most half of the resolution, and not by far less than it."""
    with torch.no_grad(), capture(made.model, residual_stream=True) as captured:
        for batch in made.batches:
            made.model(**batch) if isinstance(batch, dict) else made.model(batch)
    calls = [heads for heads in captured.heads if heads.layer == LAYER]
    [theory] = load_theories((key,)).theories
    quiet = differences(theory, calls)
    moved = [differences(theory, calls, torch.Generator().manual_seed(seed)) for seed in range(DRAWS)]
    shares = [
        abs(other[i].controls[j].difference - control.difference) / control.resolution
        for other in moved
        for i, finding in enumerate(quiet)
        for j, control in enumerate(finding.controls)
        if control.resolution and np.isfinite(control.difference)
    ]
    assert max(shares, default=0.0) <= 0.5
    assert not shares or max(shares) > 1e-4


def changed(model: nn.Module, change: Callable[[str, Tensor], Tensor]) -> nn.Module:
    """Return a copy of the model with other parameters in the audited layer, by the kind of each."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for path, parameter in copied.named_parameters():
            if f".{LAYER}." in path:
                kind = next((kind for kind, words in KINDS.items() if any(word in path for word in words)), "")
                parameter.copy_(change(kind, parameter))
    return copied


KINDS = {
    "queries or keys": ("query.", "q_proj.", "key.", "k_proj."),
    "values": ("value.", "v_proj."),
    "output": ("attention.output.dense.weight", "o_proj.weight"),
}


def reordered(kind: str, x: Tensor) -> Tensor:
    """Put the heads in another order. Keys and values that all heads share stay."""
    rows = torch.cat([torch.arange(head * WIDTH, (head + 1) * WIDTH) for head in ORDER])
    if kind == "output":
        return x[:, rows]
    return x[rows] if kind and len(x) == len(rows) else x


def rotated(kind: str, x: Tensor) -> Tensor:
    """Rotate the features of every head's values, and the output map back."""
    rotation = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(4))).Q
    if kind == "values":
        return torch.einsum("ij,hj...->hi...", rotation, x.unflatten(0, (-1, WIDTH))).flatten(0, 1)
    if kind == "output":
        return torch.einsum("ij,chj->chi", rotation, x.unflatten(1, (-1, WIDTH))).flatten(1)
    return x


def by_head(record: AuditRecord, order: Sequence[int] = range(HEADS)) -> list[Finding]:
    """Return the findings on heads, each of the place at which the head stands in the order."""
    findings = {(f.claim, f.head): f for f in record.findings if f.claim.unit is Unit.HEAD}
    return [findings[claim, order.index(head)] for claim, head in findings]


@once
def test_the_order_of_heads_changes_no_value(made: Subject, reference: AuditRecord) -> None:
    """Draws belong to a head's number, so only claims without draws keep their p-values: attention sinks."""
    draws = [changed(draw, reordered) for draw in made.draws]
    record = audited(dataclasses.replace(made, model=changed(made.model, reordered), draws=draws))
    for ours, theirs in zip(by_head(reference), by_head(record, ORDER), strict=True):
        if not math.isnan(ours.value) and ours.claim.theory != "symmetry":
            assert abs(ours.value - theirs.value) <= max(ours.resolution, theirs.resolution), ours
    sinks, moved = (
        [f for f in findings if f.claim.theory == "attention sinks" and f.claim.role is Role.PRIMARY]
        for findings in (by_head(reference), by_head(record, ORDER))
    )
    assert_same_within_rounding(sinks, moved)


@once
def test_the_order_of_heads_changes_no_verdict(
    made: Subject, reference: AuditRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here random draws follow the head: samples are put into another order."""
    measure = Accumulator._samples

    def reordered_samples(self: Accumulator, example: Example, rng: Random) -> Samples:
        return {claim: _reordered(sample) for claim, sample in measure(self, example, rng).items()}

    monkeypatch.setattr(Accumulator, "_samples", reordered_samples)
    record = audited(made, BY_INPUT)
    expected = {(f.claim, f.head): f for f in reference.findings}
    for place, theirs in ((f.head, f) for f in record.findings):
        ours = expected[theirs.claim, ORDER[place] if theirs.claim.unit is Unit.HEAD else place]
        assert (ours.verdict, ours.p_value) == (theirs.verdict, pytest.approx(theirs.p_value, nan_ok=True)), ours


def _reordered(sample: Sample | Reason) -> Sample | Reason:
    if isinstance(sample, Reason) or len(sample.value) != HEADS:
        return sample
    return dataclasses.replace(
        sample,
        value=sample.value[ORDER],
        controls={control: draws[:, ORDER] for control, draws in sample.controls.items()},
        predicted=None if sample.predicted is None else sample.predicted[ORDER],
        covered=None if sample.covered is None else sample.covered[ORDER],
    )


@once
def test_the_basis_of_values_changes_no_verdict(made: Subject, reference: AuditRecord) -> None:
    record = audited(made, model=changed(made.model, rotated))
    assert_same_within_rounding(reference.findings, record.findings)


def twins(kind: str, x: Tensor) -> Tensor:
    """Give the last two heads the same queries, keys and values."""
    if kind in ("queries or keys", "values") and len(x) > WIDTH:
        x = x.clone()
        x[-WIDTH:] = x[-2 * WIDTH : -WIDTH]
    return x


def alike(kind: str, x: Tensor) -> Tensor:
    """Give all heads the queries, keys and values of the last one."""
    return x[-WIDTH:].repeat(len(x) // WIDTH, *[1] * (x.ndim - 1)) if kind in ("queries or keys", "values") else x


@once
@pytest.mark.parametrize(("name", "equal"), [("bert", {"kernel PCA", "coding rate"}), ("llama", {"coding rate"})])
def test_heads_that_equal_all_others_have_no_evidence(name: str, equal: set[str]) -> None:
    """The control by another head's values or weights is a tie; heads that share all values have none by values."""
    original = subject(name)
    record = audited(dataclasses.replace(original, model=changed(original.model, alike)))
    findings = [f for f in record.findings if f.claim.role is Role.PRIMARY and f.verdict is Verdict.NO_EVIDENCE]
    tied = [f for f in findings if f.no_evidence is NoEvidence.EQUAL]
    assert {f.claim.theory for f in tied} == equal
    assert len(tied) == HEADS * len(equal)
    assert all(f.p_value == 1 and not f.borderline for f in tied)


@once
@pytest.mark.parametrize("name", ["bert", "vit"])
def test_heads_that_equal_their_control_have_no_evidence(name: str) -> None:
    """Two heads of one layer with equal weights; and a head without queries, whose attention is uniform."""
    original = subject(name)
    pair = changed(original.model, twins)
    record = audited(dataclasses.replace(original, model=pair))
    uniform = [f for f in record.findings if f.claim.theory == "attention sinks" and f.head == 1]
    assert {(f.verdict, f.no_evidence) for f in uniform} == {(Verdict.NO_EVIDENCE, NoEvidence.EQUAL)}
    values = [[f.value for f in record.findings if f.head == head] for head in (HEADS - 2, HEADS - 1)]
    assert values[0] == pytest.approx(values[1], rel=1e-6, nan_ok=True)
    for finding in record.findings:
        assert finding.verdict is not Verdict.UNDECIDED or finding.reasons, finding


AUDIT = """
import pickle, sys
from clearhead.interfaces.torchvision_shim import ensure_torchvision
ensure_torchvision()
from tests.audit.test_metamorphic import audited
from tests.audit.small_models import subject
pickle.dump([audited(subject(name)).findings for name in sys.argv[1:]], sys.stdout.buffer)
"""


@once
@pytest.mark.parametrize(
    "setting",
    [
        {"OPENBLAS_CORETYPE": "Haswell", "ATEN_CPU_CAPABILITY": "default"},
        {"OPENBLAS_CORETYPE": "Prescott", "MKL_CBWR": "COMPATIBLE", "CLEARHEAD_KERNEL": "generic"},
    ],
    ids=["Haswell", "Prescott"],
)
def test_another_processor_changes_no_verdict(setting: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AUDIT, *MODELS], env=os.environ | setting, check=True, capture_output=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    for name, findings in zip(MODELS, pickle.loads(done.stdout), strict=True):  # noqa: S301
        assert_same_within_rounding(audited(subject(name)).findings, findings)
