"""Theorem 1 of Ji and Xie over random tokens, weights and permutations, and the theorem checks of symmetry."""

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor

from clearhead.numerics.precision import tolerance
from clearhead.operators.general import dot_product, embedded_gaussian, general_attention
from clearhead_lab.theorems.table import print_theorems, theorems_as_json
from clearhead_lab.theorems.theorem import TheoremCheck
from lab.tests.theorems.conftest import Verification

SEEDS = st.integers(0, 2**31)
EXACT = tolerance(torch.float64, terms=1024)


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _order(n: int, seed: int) -> Tensor:
    """Return a random permutation other than the identity."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(n, generator=generator)
        if not torch.equal(order, torch.arange(n)):
            return order


def _relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@given(st.integers(2, 31), st.integers(1, 13), st.integers(1, 11), st.booleans(), SEEDS)
def test_self_attention_is_equivariant(n: int, d: int, e: int, softmax: bool, seed: int) -> None:
    x, w_q, w_k, w_v = (_normal(*s, seed=seed + i) for i, s in enumerate(((n, d), (d, 3), (d, 3), (d, e))))
    w_q, w_k = w_q / d, w_k / d
    kind = (embedded_gaussian if softmax else dot_product)(lambda x: x @ w_q, lambda x: x @ w_k)
    order = _order(n, seed)

    def attend(x: Tensor) -> Tensor:
        return general_attention(x, x, x, similarity=kind, value=lambda x: x @ w_v)

    plain = attend(x)
    assert _relative_error(attend(x[order]), plain[order]) < EXACT
    assert _relative_error(attend(x[order]), plain) > 100 * EXACT, "outputs not permuted"


@given(st.integers(2, 31), st.integers(1, 13), st.integers(1, 7), st.integers(1, 5), SEEDS)
def test_attention_with_a_learned_query_is_invariant(n: int, d: int, e: int, m: int, seed: int) -> None:
    x, queries, w_k, w_v = (_normal(*s, seed=seed + i) for i, s in enumerate(((n, d), (m, 3), (d, 3), (d, e))))
    kind = embedded_gaussian(None, lambda x: x @ w_k / d)

    def attend(x: Tensor) -> Tensor:
        return general_attention(queries, x, x, similarity=kind, value=lambda x: x @ w_v)

    assert attend(x).shape == (m, e)
    assert _relative_error(attend(x[_order(n, seed)]), attend(x)) < EXACT
    assert _relative_error(attend(x[:-1]), attend(x)) > 100 * EXACT, "a token left out"


@given(st.integers(2, 13), st.integers(3, 31), st.integers(1, 11), st.integers(1, 7), SEEDS)
def test_the_general_law(n: int, m: int, d: int, e: int, seed: int) -> None:
    q, k, v = _normal(n, d, seed=seed) / d, _normal(m, d, seed=seed + 1), _normal(m, e, seed=seed + 2)
    p, r = _order(n, seed), _order(m, seed + 1)
    plain = general_attention(q, k, v)
    assert _relative_error(general_attention(q[p], k[r], v[r]), plain[p]) < EXACT
    assert _relative_error(general_attention(q[p], k[r], v), plain[p]) > 100 * EXACT, (
        "values not permuted with their keys"
    )


@given(st.integers(2, 13), st.integers(2, 31), SEEDS)
def test_softmax_commutes_with_permutations(n: int, m: int, seed: int) -> None:
    scores, p, r = _normal(n, m, seed=seed), _order(n, seed), _order(m, seed + 1)
    weights = torch.softmax(scores, dim=-1)
    assert _relative_error(torch.softmax(scores[p][:, r], dim=-1), weights[p][:, r]) < EXACT
    assert _relative_error(torch.softmax(scores[p][:, r], dim=-1), weights[p]) > 100 * EXACT, "columns not permuted"


IDS = [
    "A1", "A2", "A3", "A4", "A5", "A6", "B1", "B2", "C1", "C2", "D1", "D2", "D3", "E1", "E2",
    "T1a", "T1b", "T2", "T3", "T4", "T5", "T6a", "T6b", "T6c", "T6d", "T6e", "T7a", "T7b", "T7c", "T7d",
    "F1", "F2", "F3a", "F3b", "F4", "F5a", "F5b", "F6", "S1", "S2", "S3",
]  # fmt: skip


@pytest.fixture
def checks(verification: Verification) -> dict[str, TheoremCheck]:
    return verification.by_id("general attention")


def test_every_statement_of_the_source_is_checked(checks: dict[str, TheoremCheck]) -> None:
    assert list(checks) == IDS
    assert all("Ji and Xie" in check.citation or "Wang et al. 2018" in check.citation for check in checks.values())


@pytest.mark.parametrize("id", IDS)
def test_theorem_holds_and_its_control_fails(checks: dict[str, TheoremCheck], id: str) -> None:
    check = checks[id]
    assert check.holds
    assert check.residual <= check.tolerance == 1e-12
    assert check.residual_single <= check.tolerance_single == tolerance(torch.float32)
    # All controls are of order one; the smallest, A6, is relative to the range of the values.
    assert check.control_residual > 0.05


@pytest.mark.parametrize("width", [44, 80, 120, 300])
def test_identifiers_and_citations_are_shown(checks: dict[str, TheoremCheck], width: int) -> None:
    output = io.StringIO()
    print_theorems(list(checks.values()), Console(file=output, width=width))
    lines = output.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for id in IDS:
        assert sum(id in line.split()[:2] for line in lines) == 1
    words = " ".join(output.getvalue().split())
    assert all(" ".join(check.citation.split()) in words for check in checks.values())
    assert [theorem["id"] for theorem in theorems_as_json(list(checks.values()))["theorems"]] == IDS
