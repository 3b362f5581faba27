import dataclasses

import pytest

from clearhead.audit.findings import Verdict
from clearhead.audit.record import AuditRecord
from clearhead.theories.theory import TheoremCheck
from tests.report.synthetic import DISPUTE, EIGENVALUE, KERNEL_PCA, LOSS, MAX_MARGIN, OVERLAP, record_of


@pytest.fixture(scope="session")
def record() -> AuditRecord:
    """6 layers x 12 heads, one claim."""
    made = record_of([12] * 6, KERNEL_PCA)
    seen = {finding.verdict for finding in made.findings}
    assert seen == set(Verdict) - {Verdict.TRUE_BY_CONSTRUCTION, Verdict.NOT_JUDGED}
    return made


@pytest.fixture(scope="session")
def two_claims() -> AuditRecord:
    """Layers of unequal width, two claims; the predicted value of the second lies below its controls."""
    return record_of([3, 13, 5, 11, 7], KERNEL_PCA, MAX_MARGIN)


@pytest.fixture(scope="session")
def disputed() -> AuditRecord:
    """Claims of every role, a second theory, and a dispute."""
    return record_of([5, 11, 3, 7], KERNEL_PCA, OVERLAP, LOSS, EIGENVALUE, MAX_MARGIN, disputes=(DISPUTE,))


@pytest.fixture(scope="session")
def theorems() -> list[TheoremCheck]:
    """Seven statements that hold and one that does not."""
    sound = TheoremCheck(
        source="Teo and Nguyen 2024, Proposition 1",
        statement="Attention outputs are projections of the queries onto the principal axes of the keys",
        residual=3.1e-15,
        residual_single=2.2e-6,
        tolerance=1e-12,
        tolerance_single=1e-4,
        control="values drawn at random",
        control_residual=0.83,
        citation="Teo and Nguyen 2024",
    )
    return [
        *[dataclasses.replace(sound, source=f"Source {i}") for i in range(7)],
        dataclasses.replace(sound, residual=0.5),
    ]


@pytest.fixture(scope="session")
def unchecked(theorems: list[TheoremCheck]) -> list[TheoremCheck]:
    """The same, and one statement whose package is missing."""
    nan = float("nan")
    last = dataclasses.replace(
        theorems[0],
        source="Source 8",
        residual=nan,
        residual_single=nan,
        control_residual=nan,
        missing="scikit-learn",
    )
    return [*theorems, last]
