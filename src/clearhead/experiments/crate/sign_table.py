"""Does one step of attention lower the coding rate? Counts of up and down, by step and by what is held still."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.experiments.cache import kept
from clearhead.experiments.experiment import RESULT, Experiment, Outcome, Request
from clearhead.experiments.seed_runs import command_of, write_page
from clearhead.experiments.tables import Field, as_columns, as_markdown
from clearhead.numerics.threads import one_thread
from clearhead.theories.coding_rate.change import rate_change
from clearhead.theories.coding_rate.random_tokens import TokenDistribution, draw_bases, draw_tokens
from clearhead.theories.coding_rate.steps import (
    exact_step,
    expansion_ratio,
    hook_rate,
    neumann_step,
    paper_step,
    released_step,
)

__all__ = ["SIGN_TABLE", "STILL", "counted_signs", "measure"]

NAME = "coding-rate/sign-table"
TOKENS, WIDTH, HEADS, HEAD_WIDTH = 128, 32, 4, 8
ERRORS = (1.0, 0.5, 0.1)
CELLS = [(kind, eps) for kind in TokenDistribution for eps in ERRORS]
STILL = 1e-10
"""A relative change below this is none: rounding is some 1e-14, and the smallest step changes rates by 1e-7."""
METRICS = {"raw": "raw", "unit": "unit norm", "matched": "scale-matched", "hook": "released hook"}

Step = Callable[[Tensor, Tensor, float], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table: its steps, the cells that it counts, and what a prototype counted."""

    title: str
    steps: tuple[str, ...]
    prototype: str
    converging: bool | None = None
    """Only cells in which the expansion converges in all trials, or in none; None for all."""


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
    Row(title="exact gradient, κ = .1/a and 1/a", steps=("exact .1", "exact 1"), prototype="down, down"),
    Row(title="first order, a s² < 1", steps=("first order .1",), converging=True, prototype="down, down"),
    Row(title="first order, a s² > 1", steps=("first order .1",), converging=False, prototype="up, down"),
    Row(title="paper, κ = .1/a and .5/a", steps=("paper .1", "paper .5"), prototype="down, down"),
    Row(title="null: .9 Z", steps=("shrink",), prototype="down, still"),
    Row(title="released, Z + SSA", steps=tuple(s for s in STEPS if s.startswith("released 1")), prototype="up, down"),
    Row(
        title="released, Z + .1 SSA", steps=tuple(s for s in STEPS if s.startswith("released .1")), prototype="up, down"
    ),
    Row(title="negated, Z - .1 SSA", steps=("negated",), prototype="down, up"),
)


def measure(*, kind: str, eps: float, trials: int, seed: int) -> dict[str, Any]:
    """Relative changes of every rate by every step in one cell, and how far the expansion is from converging."""
    generator = torch.Generator().manual_seed(seed)
    with one_thread():
        bases = draw_bases(HEADS, WIDTH, HEAD_WIDTH, generator=generator)
        z = draw_tokens(TokenDistribution(kind), bases, trials=trials, n=TOKENS, generator=generator)
        hook = hook_rate(z, bases)
        changes = {}
        for name, step in STEPS.items():
            after = step(z, bases, eps)
            found = rate_change(z, after, bases=bases, eps=eps)
            each = {
                "raw": found.raw / found.before,
                "unit": found.unit_norm / found.before,
                "matched": found.scale_matched / found.before,
                "hook": hook_rate(after, bases) / hook - 1,
            }
            changes[name] = {metric: values.tolist() for metric, values in each.items()}
        return {"ratio": expansion_ratio(z, bases, eps=eps).tolist(), "changes": changes}


def counted_signs(values: Sequence[float]) -> str:
    """As in "240 of 240 down" or "717 of 720 down, 3 up"; "still" if nothing moves."""
    down, up = (sum(sign * value > STILL for value in values) for sign in (-1, 1))
    if not down and not up:
        return "still"
    parts = sorted(((down, "down"), (up, "up")), reverse=True)
    first = f"{parts[0][0]} of {len(values)} {parts[0][1]}"
    return first if not parts[1][0] else f"{first}, {parts[1][0]} {parts[1][1]}"


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return "0" if max(-low, high) <= STILL else f"{100 * low:+.3g} to {100 * high:+.3g} %"


def _of_row(row: Row, found: Mapping[str, Mapping[str, Any]], metric: str) -> list[float]:
    cells = [
        one
        for one in found.values()
        if row.converging is None or (max(one["ratio"]) < 1 if row.converging else min(one["ratio"]) > 1)
    ]
    return [value for one in cells for step in row.steps for value in one["changes"][step][metric]]


def _run(request: Request, folder: Path) -> Outcome:
    trials = request.seeds or 20
    found: dict[str, Mapping[str, Any]] = {}
    for place, (kind, eps) in enumerate(CELLS):
        request.tell(f"tokens {kind}, eps = {eps:g}", place, len(CELLS))
        # One draw for each kind: its cells differ in eps alone.
        settings = {"kind": str(kind), "eps": eps, "trials": trials, "seed": request.seed}
        path = folder / "measured" / f"{kind.name.lower()}-{eps:g}.json"
        found[f"{kind}, eps = {eps:g}"] = kept(path, measure, settings, rooms=("theories/coding_rate", "numerics"))
    table = _table(found)
    released = [value for row in ROWS[5:7] for value in _of_row(row, found, "raw")]
    at_unit = [value for row in ROWS[5:7] for value in _of_row(row, found, "unit")]
    more = _cells_where_shrinking_wins(found)
    command = command_of(NAME, request)
    remarks = (
        f"Relative changes of R^c over {trials} trials in each of {len(CELLS)} cells. In the prototype's column the "
        "first word is of the raw rate, the second of unit tokens.",
        f"Shrinking alone, .9 Z, lowers the raw rate by more than the paper's step with κ = .1/a in {more} of "
        f"{len(CELLS)} cells.",
    )
    page = write_page(
        folder,
        title="Does one step of attention lower the coding rate?",
        command=command,
        setting=" ".join((*remarks, SETTING)),
        tables=[("Signs and ranges of the change", as_markdown(table)), ("Cells", as_markdown(_cells(found)))],
    )
    return Outcome(
        headline=f"the released step: raw rate {counted_signs(released)}, of unit tokens {counted_signs(at_unit)}",
        tables=as_columns(table),
        remarks=remarks,
        files=(page, folder / RESULT),
        facts={"command": command, "trials": trials, "setting": SETTING, "cells": found},
    )


SETTING = (
    f"{TOKENS} tokens of length one in {WIDTH} dimensions, {HEADS} orthogonal subspaces of {HEAD_WIDTH} that fill "
    "them; tokens in random directions, or in one of the subspaces each with noise of .3 in every coordinate beside "
    "coordinates of size one; eps = 1, .5, .1. κ = .1/a in the rows of first order. Released: sharpness 1, p^-1/2 and "
    "20. The hook is measured on tokens after a layer norm, with each projection at length one, at eps² = .01, before "
    "and after the step."
)


def _cells_where_shrinking_wins(found: Mapping[str, Mapping[str, Any]]) -> int:
    def mean(one: Mapping[str, Any], step: str) -> float:
        values = one["changes"][step]["raw"]
        return float(sum(values) / len(values))

    return sum(mean(one, "shrink") < mean(one, "paper .1") for one in found.values())


def _table(found: Mapping[str, Mapping[str, Any]]) -> list[Field]:
    values = {metric: [_of_row(row, found, metric) for row in ROWS] for metric in METRICS}
    fields = [Field(title="step", cells=[row.title for row in ROWS], words=True)]
    for metric, title in METRICS.items():
        rank = {"raw": 0, "unit": 0, "hook": 2, "matched": 3}[metric]
        fields.append(Field(title=title, cells=[counted_signs(each) for each in values[metric]], rank=rank))
        fields.append(
            Field(title=f"{title}, range", short="range", cells=[_range(each) for each in values[metric]], rank=4)
        )
    return [*fields, Field(title="prototype", short="prot.", cells=[row.prototype for row in ROWS], rank=1, words=True)]


def _cells(found: Mapping[str, Mapping[str, Any]]) -> list[Field]:
    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    return [
        Field(title="tokens", cells=list(found), words=True),
        Field(title="mean a s²", cells=[f"{mean(one['ratio']):.2f}" for one in found.values()]),
        *(
            Field(title=step, cells=[f"{100 * mean(one['changes'][step]['raw']):+.3g} %" for one in found.values()])
            for step in ("exact .1", "paper .1", "shrink", "released 1, 1", "negated")
        ),
    ]


SIGN_TABLE = Experiment(
    name=NAME,
    reproduces="attention steps raise or lower the coding rate by how the size of tokens is dealt with",
    cost="10 s",
    run=_run,
    options=frozenset({"seeds"}),
)
