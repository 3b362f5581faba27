"""Rates from running sums equal the rates of all tokens: in chunks, merged, and over processes."""

import math
import warnings
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from torch import distributed

from clearhead.numerics.coding_rate import RoundingNoiseWarning, coding_rate, rate_reduction
from clearhead.numerics.rate_stream import RateAccumulator
from tests.numerics.test_logdet import low_rank, normal
from tests.once import once

Z, LABELS = normal(101, 7), torch.arange(101) % 3


def filled(rows: slice, *, chunk: int = 13) -> RateAccumulator:
    sums = RateAccumulator(7, classes=5)
    for tokens, labels in zip(Z[rows].split(chunk), LABELS[rows].split(chunk), strict=True):
        sums.add(tokens, labels)
    return sums


def agrees(sums: RateAccumulator) -> bool:
    got, want = sums.rate_reduction(eps=0.3), rate_reduction(Z, labels=LABELS, eps=0.3)
    return all(
        math.isclose(float(a), float(b), rel_tol=1e-12)
        for a, b in ((got.expansion, want.expansion), (got.compression, want.compression), (got.value, want.value))
    )


def test_streamed_rate_equals_the_rate_of_all_tokens() -> None:
    assert agrees(filled(slice(None)))
    assert agrees(filled(slice(None), chunk=101))
    assert not agrees(filled(slice(100)))
    plain = RateAccumulator(7)
    for chunk in Z.split(29):
        plain.add(chunk)
    torch.testing.assert_close(plain.coding_rate(), coding_rate(Z))
    assert plain.count == 101


def test_merged_halves_equal_the_whole() -> None:
    first, second = filled(slice(50)), filled(slice(50, None))
    assert not agrees(first)
    first.merge(second)
    assert agrees(first)


def test_empty_classes_are_skipped_and_one_token_suffices() -> None:
    result = filled(slice(None)).class_rates()
    assert result.rates[3:].tolist() == result.weights[3:].tolist() == [0, 0]
    one = RateAccumulator(7)
    one.add(Z[:1])
    torch.testing.assert_close(one.coding_rate(), coding_rate(Z[:1]))


def test_half_precision_is_summed_in_double() -> None:
    sums = RateAccumulator(7)
    sums.add(Z.bfloat16())
    torch.testing.assert_close(sums.coding_rate(), coding_rate(Z.bfloat16().double()))


def test_singular_values_hidden_by_rounding_warn() -> None:
    sums = RateAccumulator(13)
    z = low_rank(101, 13, 5)
    sums.add(z)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RoundingNoiseWarning)
        torch.testing.assert_close(sums.coding_rate(eps=1e-5), coding_rate(z, eps=1e-5), rtol=1e-10, atol=0)
    with pytest.warns(RoundingNoiseWarning, match="hide singular values"):
        sums.coding_rate(eps=1e-8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RateAccumulator(0), "at least 1"),
        (lambda: RateAccumulator(7).coding_rate(), "at least one token"),
        (lambda: RateAccumulator(7).class_rates(), "no classes"),
        (lambda: RateAccumulator(7).add(Z, LABELS), "if and only if there are classes"),
        (lambda: RateAccumulator(7, classes=3).add(Z), "if and only if there are classes"),
        (lambda: RateAccumulator(7, classes=2).add(Z, LABELS), "from 0 to 1"),
        (lambda: RateAccumulator(7).add(Z * math.nan), "NaN or infinity"),
        (lambda: RateAccumulator(7).add(Z[:, :5]), r"\(n, 7\)"),
        (lambda: RateAccumulator(7).merge(RateAccumulator(5)), "width 7 with 0 classes; got one of width 5"),
        (lambda: filled(slice(None)).coding_rate(eps=0.0), "eps > 0"),
    ],
)
def test_error_messages_name_cause_and_remedy(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()


def half_of_it(rank: int, folder: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    sums = filled(slice(50) if rank == 0 else slice(50, None))
    alone = agrees(sums)
    sums.all_reduce()
    Path(folder, str(rank)).write_text(f"{alone} {agrees(sums)}")
    distributed.destroy_process_group()


@once
def test_two_processes_agree_on_all_tokens(tmp_path: Path) -> None:
    # Fork, because a new interpreter takes seconds to import torch.
    torch.multiprocessing.start_processes(half_of_it, args=(str(tmp_path),), nprocs=2, start_method="fork")
    assert [Path(tmp_path, str(rank)).read_text() for rank in range(2)] == ["False True"] * 2
