"""The comparison as tables: they agree with the runs and fit the terminal."""

import dataclasses
import io
import json
import re

import pytest
import torch
from rich.console import Console

from clearhead.errors import InputError
from clearhead.operators.named import Softmax, Symmetric
from clearhead.report.columns import first_that_fits, print_columns
from clearhead.report.tables import as_columns, as_markdown
from clearhead_lab.experiments.experiment import Report
from clearhead_lab.experiments.robustness.attention_variants import DIGITS_DESIGN
from clearhead_lab.experiments.robustness.report import CLEAN, NOISE, OTHER, as_report, compare
from clearhead_lab.experiments.robustness.runs import Run
from clearhead_lab.experiments.robustness.step_time import StepTimes
from clearhead_lab.experiments.robustness.variants import VARIANTS, Variant
from clearhead_lab.robustness.corruptions import CORRUPTIONS, NOISES

DESIGN = DIGITS_DESIGN
TWO = (
    Variant(name="softmax", meaning="plain", attention=lambda config: Softmax()),
    Variant(name="symmetric", meaning="by keys", attention=lambda config: Symmetric(), baselines=()),
)


def _runs(shift: dict[str, int]) -> list[Run]:
    """Return three seeds of every variant with 500 + `shift` right answers and some noise."""
    generator = torch.Generator().manual_seed(0)
    runs = []
    for seed in range(3):
        for variant, more in shift.items():
            noise = int(torch.randint(-3, 4, (), generator=generator))
            each = {
                c.name: [80 + 5 * kind + 10 * seed + more // 2 + noise + i for i in range(5)]
                for kind, c in enumerate(CORRUPTIONS)
            }
            runs.append(
                Run(
                    variant=variant, seed=seed, parameters=1234, clean=500 + 40 * seed + more + noise, images=1000,
                    by_corruption=each, corrupted=200,
                )
            )  # fmt: skip
    return runs


TIMES = StepTimes(key={"rounds": 3}, seconds={"softmax": (1.0, 2.0, 4.0), "symmetric": (0.5, 1.0, 3.0)})


def test_the_table_agrees_with_the_runs() -> None:
    runs = _runs({"softmax": 60, "symmetric": 0})
    comparison = compare(TWO, runs, TIMES, classes=10)
    by = {(run.variant, run.seed): run for run in runs}
    noises = {noise.name for noise in NOISES}
    for measure, kinds in ((NOISE, noises), (OTHER, {c.name for c in CORRUPTIONS} - noises), ("blur", {"blur"})):
        shares = [r / 200 for run in runs if run.variant == "softmax" for k in kinds for r in run.by_corruption[k]]
        estimated = comparison.estimates[measure]["softmax"]
        assert estimated is not None
        assert estimated.mean == pytest.approx(sum(shares) / len(shares))
    clean = next(d for d in comparison.differences if d.measure == CLEAN)
    assert clean.by_seed == pytest.approx(
        [(by["softmax", s].clean - by["symmetric", s].clean) / 1000 for s in range(3)]
    )
    assert (clean.variant, clean.baseline, clean.verdict) == ("softmax", "symmetric", "higher")
    report = as_report(comparison, DESIGN)
    text = _text(report)
    mean = sum(by["symmetric", s].clean for s in range(3)) / 3000
    row = next(line for line in text.splitlines() if line.startswith(f"| symmetric | {mean:.3f} ["))
    assert row.endswith("| 1,234 | 0.50 [0.50, 0.62] |")
    assert re.search(r"\| softmax \| symmetric \| clean \| \+0\.0[56]\d \[.*\] \| 0\.0\d+ \| \S+ \| higher \|", text)
    assert "- symmetric: by keys" in text
    estimated = comparison.estimates[NOISE]["symmetric"]
    assert estimated is not None
    assert estimated.interval is not None
    half = estimated.interval.high - estimated.mean
    assert report.terminal is not None
    assert report.terminal[2].cells[1] == f"{estimated.mean:.3f} ± {half:.3f}"
    best = sum(by["softmax", s].clean for s in range(3)) / 3000
    count = len(comparison.significant)
    assert report.headline == f"6 runs, clean {mean:.3f} to {best:.3f}; {count} of 3 differences significant"
    facts = json.loads(json.dumps(report.facts, allow_nan=False))
    assert facts["runs"][0]["clean"] == runs[0].clean
    assert facts["step_times"]["ratios"]["symmetric"]["median"] == 0.5


def _text(report: Report) -> str:
    return "\n\n".join(
        f"## {heading}\n\n{content if isinstance(content, str) else as_markdown(content)}"
        for heading, content in report.sections
    )


def _remarks(shift: dict[str, int], variants: tuple[Variant, ...] = TWO, times: StepTimes = TIMES) -> list[str]:
    return list(as_report(compare(variants, _runs(shift), times, classes=10), DESIGN).remarks)


def test_remarks_name_significant_differences_and_count_the_others() -> None:
    nothing = _remarks({"softmax": 0, "symmetric": 0})[1]
    assert nothing == "Compared with symmetric: 3 of 3 differences not significant."
    higher = _remarks({"softmax": 60, "symmetric": 0})[1]
    assert re.match(r"Compared with symmetric: softmax higher \(clean, \+0\.0\d+ \[", higher)
    third = Variant(name="third", meaning="-", attention=lambda config: Softmax(), baselines=("softmax", "symmetric"))
    times = dataclasses.replace(TIMES, seconds={**TIMES.seconds, "third": (1.0, 1.0, 1.0)})
    _, by_symmetric, by_softmax = _remarks({"softmax": 60, "symmetric": 0, "third": 60}, (*TWO, third), times)
    assert re.match(r"Compared with symmetric: softmax higher .*; third higher .*; 0 of 6 differences", by_symmetric)
    assert by_softmax == "Compared with softmax: 3 of 3 differences not significant."


def test_variants_that_do_not_exceed_chance_are_named_and_not_compared() -> None:
    runs = [dataclasses.replace(r, clean=100) if r.variant == "softmax" and r.seed else r for r in _runs(EQUAL)]
    report = as_report(compare(TWO, runs, TIMES, classes=10), DESIGN)
    assert report.headline.endswith("; 0 of 0 differences significant")
    assert "- softmax: did not train" in _text(report)
    control = compare(TWO, runs, TIMES, classes=10**6)  # chance is nearly 0; the interval of two failed seeds holds it
    assert control.untrained == ("softmax",)
    assert compare(TWO, _runs(EQUAL), TIMES, classes=10).untrained == ()


EQUAL = {"softmax": 0, "symmetric": 0}


@pytest.mark.parametrize("width", [80, 60, 40, 30, 22])
def test_the_printed_table_fits_the_terminal(width: int) -> None:
    longest = dataclasses.replace(VARIANTS[0], name=max((v.name for v in VARIANTS), key=len))
    variants = (longest, TWO[1])
    times = dataclasses.replace(TIMES, seconds={longest.name: (1.0,), "symmetric": (10.0,)})
    table = as_report(compare(variants, _runs({longest.name: 0, "symmetric": 0}), times, classes=10), DESIGN).terminal
    assert table is not None
    console = Console(width=width, record=True, file=io.StringIO())
    print_columns(first_that_fits(as_columns(table), width=width), console)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert longest.name in lines[1]
    assert "0." in lines[1]


def test_the_table_shows_which_bounds_clamp() -> None:
    runs = [dataclasses.replace(run, clamped=(0.01 * run.seed, None)) for run in _runs({"softmax": 0, "symmetric": 0})]
    runs = [run if run.variant == "softmax" else dataclasses.replace(run, clamped=(None, None)) for run in runs]
    text = _text(as_report(compare(TWO, runs, TIMES, classes=10), DESIGN))
    clamped = text.split("first clamping, in per cent\n\n")[1].split("\n\n")[0]
    assert clamped.splitlines() == ["| variant | layer 1 | layer 2 |", "| --- | --- | --- |", "| softmax | 1 | - |"]
    unbounded = compare(TWO, _runs({"softmax": 0, "symmetric": 0}), TIMES, classes=10)
    assert "first clamping" not in _text(as_report(unbounded, DESIGN))


def test_more_right_answers_than_images_are_refused() -> None:
    run = _runs({"softmax": 0})[0]
    for changes in ({"clean": 1001}, {"clean": -1}, {"by_corruption": {"blur": [201]}}):
        with pytest.raises(InputError, match="softmax, seed 0: more right answers than images"):
            dataclasses.replace(run, **changes)
