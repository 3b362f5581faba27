"""Does one step of attention lower the coding rate? Counts of changes up and down, by step and by normalisation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.numerics.threads import one_thread
from clearhead.report.tables import Field, Table
from clearhead_lab.experiments.cache import measure_cells
from clearhead_lab.experiments.experiment import Experiment, Report, Request
from clearhead_lab.theorems.coding_rate.change import rate_change
from clearhead_lab.theorems.coding_rate.steps import (
    TokenDistribution,
    draw_bases,
    draw_tokens,
    exact_step,
    expansion_ratio,
    hook_rate,
    neumann_step,
    paper_step,
    released_step,
)

TOKENS, WIDTH, HEADS, HEAD_WIDTH = 128, 32, 4, 8
ERRORS = (1.0, 0.5, 0.1)
CELLS = {f"{kind}, eps = {eps:g}": {"kind": str(kind), "eps": eps} for kind in TokenDistribution for eps in ERRORS}
UNCHANGED = 1e-10
"""A smaller relative change counts as none: rounding is about 1e-14, the smallest step changes rates by 1e-7."""
METRICS = {"raw": "raw", "unit": "unit norm", "matched": "scale-matched", "hook": "released hook"}
RANKS = {"raw": 0, "unit": 0, "hook": 2, "matched": 3}

Step = Callable[[Tensor, Tensor, float], Tensor]
Results = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table: its steps, and the signs that an independent implementation found.

    converging: count only cells in which the expansion converges in all trials (True) or in none (False)
    """

    title: str
    steps: tuple[str, ...]
    reference: str
    converging: bool | None = None


def _released(rate: float, sharpness: float) -> Step:
    return lambda z, bases, eps: released_step(z, bases, rate=rate, sharpness=sharpness)


STEPS: dict[str, Step] = {
    "exact .1": lambda z, bases, eps: exact_step(z, bases, rate=0.1, eps=eps),
    "exact 1": lambda z, bases, eps: exact_step(z, bases, rate=1.0, eps=eps),
    "first order .1": lambda z, bases, eps: neumann_step(z, bases, rate=0.1, eps=eps),
    "paper .1": lambda z, bases, eps: paper_step(z, bases, rate=0.1, eps=eps),
    "paper .5": lambda z, bases, eps: paper_step(z, bases, rate=0.5, eps=eps),
    "shrink": lambda z, bases, eps: 0.9 * z,
    "released 1, 1": _released(1.0, 1.0),
    "released 1, p^-1/2": _released(1.0, HEAD_WIDTH**-0.5),
    "released 1, 20": _released(1.0, 20.0),
    "released .1, 1": _released(0.1, 1.0),
    "released .1, p^-1/2": _released(0.1, HEAD_WIDTH**-0.5),
    "released .1, 20": _released(0.1, 20.0),
    "negated": _released(-0.1, 1.0),
}
ROWS = (
    Row(title="exact gradient, κ = .1/a and 1/a", steps=("exact .1", "exact 1"), reference="down, down"),
    Row(title="first order, a s² < 1", steps=("first order .1",), converging=True, reference="down, down"),
    Row(title="first order, a s² > 1", steps=("first order .1",), converging=False, reference="up, down"),
    Row(title="paper, κ = .1/a and .5/a", steps=("paper .1", "paper .5"), reference="down, down"),
    Row(title="null: .9 Z", steps=("shrink",), reference="down, unchanged"),
    Row(title="released, Z + SSA", steps=tuple(s for s in STEPS if s.startswith("released 1")), reference="up, down"),
    Row(
        title="released, Z + .1 SSA", steps=tuple(s for s in STEPS if s.startswith("released .1")), reference="up, down"
    ),
    Row(title="negated, Z - .1 SSA", steps=("negated",), reference="down, up"),
)
RELEASED = ROWS[5:7]
SETTING = (
    f"{TOKENS} tokens of length one in {WIDTH} dimensions, {HEADS} orthogonal subspaces of dimension {HEAD_WIDTH} that "
    "span them; tokens in random directions, or each in one of the subspaces with noise of .3 per coordinate and a "
    "signal of size one; eps = 1, .5, .1. κ = .1/a in the rows of first order. Released: sharpness 1, p^-1/2 and 20. "
    "The hook is measured on tokens after a layer norm, with each projection at length one, at eps² = .01, before "
    "and after the step."
)


def measure(*, kind: str, eps: float, trials: int, seed: int) -> dict[str, Any]:
    """Return the relative changes of every rate by every step in one cell, and the expansion ratios."""
    generator = torch.Generator().manual_seed(seed)
    with one_thread():
        bases = draw_bases(HEADS, WIDTH, HEAD_WIDTH, generator=generator)
        z = draw_tokens(TokenDistribution(kind), bases, trials=trials, n=TOKENS, generator=generator)
        hook = hook_rate(z, bases)
        changes = {}
        for name, step in STEPS.items():
            after = step(z, bases, eps)
            change = rate_change(z, after, bases=bases, eps=eps)
            each = {
                "raw": change.raw / change.before,
                "unit": change.unit_norm / change.before,
                "matched": change.scale_matched / change.before,
                "hook": hook_rate(after, bases) / hook - 1,
            }
            changes[name] = {metric: values.tolist() for metric, values in each.items()}
        return {"ratio": expansion_ratio(z, bases, eps=eps).tolist(), "changes": changes}


def count_signs(values: Sequence[float]) -> str:
    """Count as in "240 of 240 down" or "717 of 720 down, 3 up"; "unchanged" if nothing moves."""
    down, up = (sum(sign * value > UNCHANGED for value in values) for sign in (-1, 1))
    if not down and not up:
        return "unchanged"
    (most, direction), (fewer, opposite) = sorted(((down, "down"), (up, "up")), reverse=True)
    counts = f"{most} of {len(values)} {direction}"
    return f"{counts}, {fewer} {opposite}" if fewer else counts


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return "0" if max(-low, high) <= UNCHANGED else f"{100 * low:+.3g} to {100 * high:+.3g} %"


def _values(row: Row, results: Results, metric: str) -> list[float]:
    cells = [
        result
        for result in results.values()
        if row.converging is None or (max(result["ratio"]) < 1 if row.converging else min(result["ratio"]) > 1)
    ]
    return [value for result in cells for step in row.steps for value in result["changes"][step][metric]]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _trials(request: Request) -> int:
    return request.seeds or 20


def report(results: Results, request: Request) -> Report:
    """Tabulate the signs and ranges of the changes."""
    raw, unit = ([value for row in RELEASED for value in _values(row, results, metric)] for metric in ("raw", "unit"))
    shrinking_wins = sum(
        _mean(result["changes"]["shrink"]["raw"]) < _mean(result["changes"]["paper .1"]["raw"])
        for result in results.values()
    )
    remarks = (
        f"Relative changes of R^c over {_trials(request)} trials in each of {len(CELLS)} cells. In the reference "
        "column (an independent implementation) the first word is for the raw rate, the second for unit tokens.",
        f"Shrinking alone, .9 Z, lowers the raw rate by more than the paper's step with κ = .1/a in {shrinking_wins} "
        f"of {len(CELLS)} cells.",
    )
    return Report(
        headline=f"the released step: raw rate {count_signs(raw)}, of unit tokens {count_signs(unit)}",
        setting=" ".join((*remarks, SETTING)),
        sections=[("Signs and ranges of the change", _table(results)), ("Cells", cell_table(results))],
        remarks=remarks,
        facts={"trials": _trials(request), "setting": SETTING, "cells": dict(results)},
    )


def _table(results: Results) -> Table:
    fields = [Field(title="step", cells=[row.title for row in ROWS], text=True)]
    for metric, title in METRICS.items():
        values = [_values(row, results, metric) for row in ROWS]
        fields += [
            Field(title=title, cells=[count_signs(each) for each in values], rank=RANKS[metric]),
            Field(title=f"{title}, range", short="range", cells=[_range(each) for each in values], rank=4),
        ]
    return [*fields, Field(title="reference", short="ref.", cells=[row.reference for row in ROWS], rank=1, text=True)]


def cell_table(results: Results) -> Table:
    """Tabulate the mean change of the raw rate in every cell, for five steps."""
    return [
        Field(title="tokens", cells=list(results), text=True),
        Field(title="mean a s²", cells=[f"{_mean(result['ratio']):.2f}" for result in results.values()]),
        *(
            Field(
                title=step,
                cells=[f"{100 * _mean(result['changes'][step]['raw']):+.3g} %" for result in results.values()],
            )
            for step in ("exact .1", "paper .1", "shrink", "released 1, 1", "negated")
        ),
    ]


SIGN_TABLE = Experiment(
    name="coding-rate/sign-table",
    title="Does one step of attention lower the coding rate?",
    reproduces="attention steps raise or lower the coding rate, depending on how the size of tokens is normalised",
    cost="10 s",
    # One draw per kind: its cells differ in eps alone.
    measure=measure_cells(
        measure,
        lambda request: {
            name: {**cell, "trials": _trials(request), "seed": request.seed} for name, cell in CELLS.items()
        },
        packages=("theories/coding_rate", "theorems/coding_rate", "numerics"),
    ),
    report=report,
    options=frozenset({"seeds"}),
)
