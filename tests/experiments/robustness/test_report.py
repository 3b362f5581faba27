"""The comparison as tables: that they say what the runs say, and fit the terminal."""

import dataclasses
import io
import json
import re

import pytest
import torch
from rich.console import Console

from clearhead.experiments.robustness.attention_variants import DIGITS_PLAN
from clearhead.experiments.robustness.comparison import CLEAN, NOISE, OTHER, compare
from clearhead.experiments.robustness.report import (
    as_columns,
    as_facts,
    as_markdown,
    headline,
    remarks,
)
from clearhead.experiments.robustness.runs import Run
from clearhead.experiments.robustness.step_time import StepTimes
from clearhead.experiments.robustness.variants import VARIANTS, Variant
from clearhead.operators.drop_in import Softmax, Symmetric
from clearhead.report.columns import first_that_fits, print_columns
from clearhead.robustness.corruptions import CORRUPTIONS, NOISES

PLAN = DIGITS_PLAN
TWO = (
    Variant(name="softmax", meaning="plain", attention=lambda config: Softmax()),
    Variant(name="symmetric", meaning="by keys", attention=lambda config: Symmetric(), beside=()),
)


def _runs(shift: dict[str, int]) -> list[Run]:
    """Three seeds of every variant, 500 right and `shift` more, with a little chance of its own."""
    generator = torch.Generator().manual_seed(0)
    runs = []
    for seed in range(3):
        for variant, more in shift.items():
            chance = int(torch.randint(-3, 4, (), generator=generator))
            each = {
                c.name: [80 + 5 * kind + 10 * seed + more // 2 + chance + i for i in range(5)]
                for kind, c in enumerate(CORRUPTIONS)
            }
            runs.append(
                Run(
                    variant=variant, seed=seed, parameters=1234, clean=500 + 40 * seed + more + chance, images=1000,
                    by_corruption=each, corrupted=200,
                )
            )  # fmt: skip
    return runs


TIMES = StepTimes(key={"rounds": 3}, seconds={"softmax": (1.0, 2.0, 4.0), "symmetric": (0.5, 1.0, 3.0)})


def test_the_table_says_what_the_runs_say() -> None:
    runs = _runs({"softmax": 60, "symmetric": 0})
    found = compare(TWO, runs, TIMES)
    by = {(run.variant, run.seed): run for run in runs}
    noises = {noise.name for noise in NOISES}
    for measure, kinds in ((NOISE, noises), (OTHER, {c.name for c in CORRUPTIONS} - noises), ("blur", {"blur"})):
        seen = [r / 200 for run in runs if run.variant == "softmax" for k in kinds for r in run.by_corruption[k]]
        estimated = found.estimates[measure]["softmax"]
        assert estimated is not None
        assert estimated.mean == pytest.approx(sum(seen) / len(seen))
    clean = next(d for d in found.differences if d.measure == CLEAN)
    assert clean.by_seed == pytest.approx(
        [(by["softmax", s].clean - by["symmetric", s].clean) / 1000 for s in range(3)]
    )
    assert (clean.variant, clean.beside, clean.verdict) == ("softmax", "symmetric", "higher")
    text = as_markdown(found, title="Title", command="clearhead x", plan=PLAN)
    mean = sum(by["symmetric", s].clean for s in range(3)) / 3000
    row = next(line for line in text.splitlines() if line.startswith(f"| symmetric | {mean:.3f} ["))
    assert row.endswith("| 1,234 | 0.50 [0.50, 0.62] |")
    assert re.search(r"\| softmax \| symmetric \| clean \| \+0\.0[56]\d \[.*\] \| \S+ \| higher \|", text)
    assert "Made by `clearhead x` on 20" in text
    assert "- symmetric: by keys" in text
    estimated = found.estimates[NOISE]["symmetric"]
    assert estimated is not None
    assert estimated.interval is not None
    half = estimated.interval.high - estimated.mean
    assert str(as_columns(found)[0][2].cells[1]).strip() == f"{estimated.mean:.3f} ± {half:.3f}"
    best = sum(by["softmax", s].clean for s in range(3)) / 3000
    assert headline(found) == f"6 runs, clean {mean:.3f} to {best:.3f}; {len(found.told)} of 3 differences told"
    facts = json.loads(json.dumps(as_facts(found, command="clearhead x", plan=PLAN), allow_nan=False))
    assert facts["runs"][0]["clean"] == runs[0].clean
    assert facts["step_times"]["ratios"]["symmetric"]["median"] == 0.5


def test_no_difference_is_said_so() -> None:
    found = compare(TWO, _runs({"softmax": 0, "symmetric": 0}), TIMES)
    assert remarks(found)[1] == "Beside symmetric: 3 of 3 differences not distinguishable from none."
    told = compare(TWO, _runs({"softmax": 60, "symmetric": 0}), TIMES)
    assert re.match(r"Beside symmetric: softmax higher \(clean, \+0\.0\d+ \[", remarks(told)[1])
    third = Variant(name="third", meaning="-", attention=lambda config: Softmax(), beside=("softmax", "symmetric"))
    times = dataclasses.replace(TIMES, seconds={**TIMES.seconds, "third": (1.0, 1.0, 1.0)})
    _, by_symmetric, by_softmax = remarks(
        compare((*TWO, third), _runs({"softmax": 60, "symmetric": 0, "third": 60}), times)
    )
    assert re.match(r"Beside symmetric: softmax higher .*; third higher .*; 0 of 6 differences", by_symmetric)
    assert by_softmax == "Beside softmax: 3 of 3 differences not distinguishable from none."


@pytest.mark.parametrize("width", [80, 60, 40, 30, 22])
def test_the_printed_table_fits_the_terminal(width: int) -> None:
    longest = dataclasses.replace(VARIANTS[0], name=max((v.name for v in VARIANTS), key=len))
    variants = (longest, TWO[1])
    times = dataclasses.replace(TIMES, seconds={longest.name: (1.0,), "symmetric": (10.0,)})
    found = compare(variants, _runs({longest.name: 0, "symmetric": 0}), times)
    console = Console(width=width, record=True, file=io.StringIO())
    print_columns(first_that_fits(as_columns(found), width=width), console)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert longest.name in lines[1]
    assert "0." in lines[1]


def test_the_table_shows_which_bounds_bind() -> None:
    runs = [dataclasses.replace(run, beyond=(0.01 * run.seed, None)) for run in _runs({"softmax": 0, "symmetric": 0})]
    runs = [run if run.variant == "softmax" else dataclasses.replace(run, beyond=(None, None)) for run in runs]
    text = as_markdown(compare(TWO, runs, TIMES), title="Title", command="x", plan=PLAN)
    cut = text.split("cuts, per cent\n\n")[1].split("\n\n")[0]
    assert cut.splitlines() == ["| variant | layer 1 | layer 2 |", "| --- | --- | --- |", "| softmax | 1 | - |"]
    assert "cuts, per cent" not in as_markdown(
        compare(TWO, _runs({"softmax": 0, "symmetric": 0}), TIMES), title="Title", command="x", plan=PLAN
    )
