"""Theorem 1 of Ji and Xie over drawn tokens, weights and permutations, and the rows of `clearhead verify`."""

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor

from clearhead.findings import Theorem
from clearhead.numerics.precision import tolerance
from clearhead.operators.general import dot_product, embedded_gaussian, general_attention
from clearhead.report.json_file import theorems_as_json
from clearhead.report.terminal import print_theorems
from tests.theorems.conftest import Verified

SEEDS = st.integers(0, 2**31)
EXACT = tolerance(torch.float64, terms=1024)


def _drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _order(n: int, seed: int) -> Tensor:
    """Any permutation but the identity."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(n, generator=generator)
        if not torch.equal(order, torch.arange(n)):
            return order


def _apart(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@given(st.integers(2, 31), st.integers(1, 13), st.integers(1, 11), st.booleans(), SEEDS)
def test_self_attention_is_equivariant(n: int, d: int, e: int, softmax: bool, seed: int) -> None:
    x, w_q, w_k, w_v = (_drawn(*s, seed=seed + i) for i, s in enumerate(((n, d), (d, 3), (d, 3), (d, e))))
    w_q, w_k = w_q / d, w_k / d
    kind = (embedded_gaussian if softmax else dot_product)(lambda x: x @ w_q, lambda x: x @ w_k)
    order = _order(n, seed)

    def attend(x: Tensor) -> Tensor:
        return general_attention(x, x, x, similarity=kind, value=lambda x: x @ w_v)

    plain = attend(x)
    assert _apart(attend(x[order]), plain[order]) < EXACT
    assert _apart(attend(x[order]), plain) > 100 * EXACT, "outputs in their old places"


@given(st.integers(2, 31), st.integers(1, 13), st.integers(1, 7), st.integers(1, 5), SEEDS)
def test_attention_with_a_learned_query_is_invariant(n: int, d: int, e: int, asked: int, seed: int) -> None:
    x, queries, w_k, w_v = (_drawn(*s, seed=seed + i) for i, s in enumerate(((n, d), (asked, 3), (d, 3), (d, e))))
    kind = embedded_gaussian(None, lambda x: x @ w_k / d)

    def attend(x: Tensor) -> Tensor:
        return general_attention(queries, x, x, similarity=kind, value=lambda x: x @ w_v)

    assert attend(x).shape == (asked, e)
    assert _apart(attend(x[_order(n, seed)]), attend(x)) < EXACT
    assert _apart(attend(x[:-1]), attend(x)) > 100 * EXACT, "a token left out"


@given(st.integers(2, 13), st.integers(3, 31), st.integers(1, 11), st.integers(1, 7), SEEDS)
def test_the_general_law(n: int, m: int, d: int, e: int, seed: int) -> None:
    q, k, v = _drawn(n, d, seed=seed) / d, _drawn(m, d, seed=seed + 1), _drawn(m, e, seed=seed + 2)
    p, r = _order(n, seed), _order(m, seed + 1)
    plain = general_attention(q, k, v)
    assert _apart(general_attention(q[p], k[r], v[r]), plain[p]) < EXACT
    assert _apart(general_attention(q[p], k[r], v), plain[p]) > 100 * EXACT, "values parted from their keys"


@given(st.integers(2, 13), st.integers(2, 31), SEEDS)
def test_softmax_commutes_with_permutations(n: int, m: int, seed: int) -> None:
    scores, p, r = _drawn(n, m, seed=seed), _order(n, seed), _order(m, seed + 1)
    weights = torch.softmax(scores, dim=-1)
    assert _apart(torch.softmax(scores[p][:, r], dim=-1), weights[p][:, r]) < EXACT
    assert _apart(torch.softmax(scores[p][:, r], dim=-1), weights[p]) > 100 * EXACT, "columns not moved"


IDS = [
    "A1", "A2", "A3", "A4", "A5", "A6", "B1", "B2", "C1", "C2", "D1", "D2", "D3", "E1", "E2",
    "T1a", "T1b", "T2", "T3", "T4", "T5", "T6a", "T6b", "T6c", "T6d", "T6e", "T7a", "T7b", "T7c", "T7d",
    "F1", "F2", "F3a", "F3b", "F4", "F5a", "F5b", "F6", "S1", "S2", "S3",
]  # fmt: skip


@pytest.fixture
def rows(verified: Verified) -> dict[str, Theorem]:
    return verified.of("general attention")


def test_every_statement_of_the_source_has_its_row(rows: dict[str, Theorem]) -> None:
    assert list(rows) == IDS
    assert len(rows) >= 28
    assert len({row.statement for row in rows.values()}) == len(rows)
    assert all(("Ji and Xie" in row.citation) or ("Wang et al. 2018" in row.citation) for row in rows.values())


@pytest.mark.parametrize("row", IDS)
def test_every_row_holds_and_its_control_fails(rows: dict[str, Theorem], row: str) -> None:
    assert rows[row].holds
    assert rows[row].residual <= rows[row].tolerance == 1e-12
    assert rows[row].residual_single <= rows[row].tolerance_single == tolerance(torch.float32)
    # All controls are of order one; the least, for outputs outside the hull, is relative to the hull's side.
    assert rows[row].control_residual > 0.05


def test_the_rows_do_not_touch_the_callers_randomness(verified: Verified) -> None:
    assert torch.equal(verified.before, verified.after)


@pytest.mark.parametrize("width", [44, 80, 120, 300])
def test_identifiers_and_citations_are_shown(rows: dict[str, Theorem], width: int) -> None:
    shown = io.StringIO()
    print_theorems(list(rows.values()), Console(file=shown, width=width))
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for row in IDS:
        assert sum(row in line.split()[:2] for line in lines) == 1
    words = " ".join(shown.getvalue().split())
    assert all(" ".join(row.citation.split()) in words for row in rows.values())
    assert [row["id"] for row in theorems_as_json(list(rows.values()))["theorems"]] == IDS
