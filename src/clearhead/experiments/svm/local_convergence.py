"""Where normalised descent leads: W to the SVM of least Frobenius norm, K and Q to that of least nuclear norm."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clearhead.experiments.cache import kept
from clearhead.experiments.estimates import estimate
from clearhead.experiments.experiment import RESULT, Experiment, Outcome, Request, write_text
from clearhead.experiments.seed_runs import PICTURE, command_of, line_over_runs, seeds_of, write_page
from clearhead.experiments.svm.descent.dynamics import train
from clearhead.experiments.svm.descent.parameters import Direct, Factored, Parameterisation
from clearhead.experiments.svm.descent.tasks import draw_start, draw_tasks
from clearhead.experiments.svm.solutions import ROOMS, nearness, solve_all
from clearhead.experiments.tables import (
    Field,
    as_columns,
    as_markdown,
    counted,
    decimals,
    mean_of,
    over_runs,
    plus_minus,
)
from clearhead.report.chart_axis import Axis
from clearhead.report.line_chart import Panel, picture
from clearhead.theories.max_margin import Norm
from clearhead.theories.max_margin.optimality import globally_optimal, locally_optimal, saturated

__all__ = ["LOCAL_CONVERGENCE"]

NAME = "svm/local-convergence"
N, T, D, STEPS = 6, 8, 10, 2000
SHOWN = (100, 500, 1000, 2000)
KEPT = sorted({*SHOWN, *(int(step) for step in np.geomspace(10, STEPS, 40))})
PARAMETERS: dict[str, Parameterisation] = {"W": Direct(), "K, Q": Factored()}
OWN = {"W": Norm.FROBENIUS, "K, Q": Norm.NUCLEAR}
PROTOTYPE = {
    ("W", Norm.FROBENIUS): (0.745, 0.972, 0.989, 0.996),
    ("W", Norm.NUCLEAR): (None, None, None, 0.861),
    ("K, Q", Norm.NUCLEAR): (0.852, 0.980, 0.991, 0.996),
    ("K, Q", Norm.FROBENIUS): (None, None, None, 0.851),
}
"""Cosines at `SHOWN` of the prototype's run, 100 seeds."""
PROTOTYPE_GLOBAL = {"W": 74, "K, Q": 78}
BARS = {"own": 0.99, "crossed": 0.90}
"""What the mean cosine to a parameterisation's own SVM reaches at least, and that to the other's at most."""


def measure(*, trained: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Train one parameterisation from every seed, and compare it with both SVMs of what it selected in the end."""
    task = draw_tasks(seeds, n=N, t=T, d=D)
    start = draw_start(seeds, (D, D), (D, D))
    found = train(task, start if trained != "W" else start[:1], steps=STEPS, keep=KEPT, parameters=PARAMETERS[trained])
    selected = found.selected[-1]
    solutions = {norm: solve_all(task.tokens, task.queries, selected, norm) for norm in OWN.values()}
    scores = task.token_scores
    return {
        "steps": found.steps,
        "near": {norm: [nearness(W, solved) for W in found.W] for norm, solved in solutions.items()},
        "gap": {norm: max(solved.gap for solved in each) for norm, each in solutions.items()},
        "saturated": saturated(found.attention[-1]).tolist(),
        "global": globally_optimal(scores, selected).tolist(),
        "local": [
            bool(locally_optimal(scores[run], selected[run], solved.support))
            for run, solved in enumerate(solutions[OWN[trained]])
        ],
    }


def _run(request: Request, folder: Path) -> Outcome:
    seeds = seeds_of(request, 20)
    found: dict[str, dict[str, Any]] = {}
    for place, trained in enumerate(PARAMETERS):
        request.tell(f"{trained}: {len(seeds)} runs", place, len(PARAMETERS))
        path = folder / "measured" / f"{trained.replace(', ', '')}.json"
        found[trained] = kept(path, measure, {"trained": trained, "seeds": seeds}, rooms=ROOMS)
    cosines, selections = _cosines(found), _selections(found)
    command = command_of(NAME, request)
    setting = (
        f"{len(seeds)} tasks drawn from seeds {seeds[0]} to {seeds[-1]}: n = {N}, T = {T}, d = {D}, cross-attention, "
        "tokens and queries of length one, a fixed linear head, logistic loss. Normalised descent, rate 0.1, starts as "
        "of a linear layer. Cosines to the SVM of the tokens selected in the end: means with Student's 95 % intervals."
    )
    page = write_page(
        folder,
        title="Where training attention leads",
        command=command,
        setting=setting,
        tables=[
            ("Cosine to the SVM, by the number of steps", as_markdown(cosines)),
            (
                "Runs that saturate, and select optimal tokens, per cent with Wilson's intervals",
                as_markdown(selections),
            ),
        ],
    )
    write_text(folder / PICTURE, _picture(found))
    last = {key: estimate([c for c in found[key[0]]["near"][key[1]][-1] if c is not None]) for key in PROTOTYPE}
    met = {
        f"{trained} to {norm}": (one.mean >= BARS["own"] if OWN[trained] is norm else one.mean <= BARS["crossed"])
        for (trained, norm), one in last.items()
        if one is not None
    }
    own, crossed = (
        [mean_of(last[key]) for key in PROTOTYPE if (OWN[key[0]] is key[1]) is mine] for mine in (True, False)
    )
    return Outcome(
        headline=f"own SVM {' and '.join(own)}, the other's {' and '.join(crossed)}; {sum(met.values())} of 4 bars met",
        tables=as_columns(cosines),
        remarks=(
            "Mean cosine after so many steps, ± half of Student's 95 % interval over seeds; prot.: the same of the "
            "prototype's run, 100 seeds, at the end.",
            *(
                f"{trained}: saturated {counted(one['saturated'])} %, global tokens {counted(one['global'])} % "
                f"(prot. {PROTOTYPE_GLOBAL[trained]} %), local {counted(one['local'])} %."
                for trained, one in found.items()
            ),
        ),
        files=(page, folder / PICTURE, folder / RESULT),
        facts={"command": command, "seeds": seeds, "bars": BARS, "met": met, "runs": found},
    )


def _cosines(found: Mapping[str, Mapping[str, Any]]) -> list[Field]:
    fields = [
        Field(title="trained", cells=[trained for trained, _ in PROTOTYPE], words=True),
        Field(title="SVM of least", cells=[norm for _, norm in PROTOTYPE], short="SVM", words=True),
    ]
    for place, step in enumerate(SHOWN):
        each = [
            over_runs(found[trained]["near"][norm][found[trained]["steps"].index(step)]) for trained, norm in PROTOTYPE
        ]
        rank = (2, 3, 1, 0)[place]
        shown = [plus_minus(one) for one in each]
        fields.append(
            Field(title=f"{step:,} steps", short=f"{step:,}", cells=shown, narrow=[mean_of(e) for e in each], rank=rank)
        )
    least = [min(c for c in found[trained]["near"][norm][-1] if c is not None) for trained, norm in PROTOTYPE]
    fields.append(Field(title="least at the end", short="least", cells=[decimals(v) for v in least], rank=2))
    told = [" / ".join(decimals(v) for v in values if v is not None) for values in PROTOTYPE.values()]
    last = [decimals(values[-1]) for values in PROTOTYPE.values()]
    return [*fields, Field(title="prototype", short="prot.", cells=told, narrow=last, rank=1)]


def _selections(found: Mapping[str, Mapping[str, Any]]) -> list[Field]:
    rows = list(found.items())
    return [
        Field(title="trained", cells=[trained for trained, _ in rows], words=True),
        *(
            Field(title=title, cells=[counted(one[name]) for _, one in rows])
            for name, title in (
                ("saturated", "saturated"),
                ("global", "globally optimal"),
                ("local", "locally optimal"),
            )
        ),
        Field(title="prototype, globally optimal", cells=[str(PROTOTYPE_GLOBAL[trained]) for trained, _ in rows]),
    ]


def _picture(found: Mapping[str, Mapping[str, Any]]) -> str:
    panels = []
    for trained, one in found.items():
        lines = [
            line_over_runs(f"cosine to the SVM of least {norm} norm", one["steps"], one["near"][norm], colour=colour)
            for colour, norm in enumerate((Norm.FROBENIUS, Norm.NUCLEAR))
        ]
        panels.append(
            Panel(
                title=f"{trained} trained by normalised descent",
                x_label="steps",
                y_label="cosine",
                lines=lines,
                x_log=True,
                y_axis=Axis(low=0.0, high=1.02),
            )
        )
    return picture(panels, title="Cosine of trained attention to attention SVMs, by the number of steps")


LOCAL_CONVERGENCE = Experiment(
    name=NAME,
    reproduces="training W leads to the Frobenius SVM, K and Q to the nuclear one (Tarzanagh et al. 2023)",
    cost="10 s",
    run=_run,
    options=frozenset({"seeds"}),
)
