"""Training a prompt, which scores tokens by x.p, alone and together with the head (Tarzanagh et al., 2306.13596)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from clearhead.experiments.experiment import RESULT, Experiment, Outcome, Request, write_text
from clearhead.experiments.seed_runs import PICTURE, command_of, write_page
from clearhead.experiments.svm.descent.prediction import CORRELATION, LOGISTIC
from clearhead.experiments.svm.prompt_cases import (
    STEPS,
    JointCase,
    PromptCase,
    by_loss,
    jointly,
    one_sequence,
    three_sequences,
)
from clearhead.experiments.tables import Field, as_columns, as_markdown, decimals
from clearhead.report.chart_axis import Axis
from clearhead.report.line_chart import Chart, Line, Panel, Sample, picture
from clearhead.report.plane_chart import Dots, Plane, Ray, Route

__all__ = ["PROMPT"]

NAME = "svm/prompt"
LEGEND = [
    Sample("the best tokens", 0, "dot"),
    Sample("other tokens", 4, "ring"),
    Sample("prompts p, length by logarithm", 1, "solid"),
    Sample("prompt of an SVM", 0, "ray"),
]


def _run(request: Request, folder: Path) -> Outcome:
    request.tell("prompts", 0, 2)
    cases = [
        one_sequence("1 sequence, others equal", 0.9),
        one_sequence("1 sequence, one worse", 0.0),
        three_sequences(request.seed),
        by_loss(LOGISTIC),
        by_loss(CORRELATION),
    ]
    request.tell("prompts with heads", 1, 2)
    joint = [jointly("with a head, 3 support", 1.0), jointly("with a head, 2 support", 1.5)]
    table, command = _table(cases, joint), command_of(NAME, request)
    page = write_page(
        folder,
        title="Training a prompt",
        command=command,
        setting=(
            f"Normalised descent, rate 0.1, {STEPS:,} steps, double precision; tasks and starts as published "
            "(arXiv 2306.13596), the third with tokens drawn from "
            f"seed {request.seed}. Cosines of p to the SVM of the tokens that each run selected; of the head v to the "
            "SVM of the selected tokens' labels. The prototype has no figures for these."
        ),
        tables=[("In the end", as_markdown(table))],
    )
    write_text(folder / PICTURE, _picture(cases, joint))
    nearest = [cosine for case in cases[:3] for cosine in case.facts()["near"] if cosine is not None]
    heaviest = ", ".join(decimals(case.facts()["near"][-1]) for case in cases[3:])
    return Outcome(
        headline=f"prompts to their SVM at least {decimals(min(nearest))}; scores of 100 {heaviest} (two losses); "
        f"with heads {', '.join(decimals(case.prompt[-1]) for case in joint)}",
        tables=as_columns(table),
        remarks=(
            "Cosine of the prompt to the SVM of the tokens it selects, mean and least over starts; best: runs that "
            "select the tokens of highest score; head: cosine of a head trained along to its own SVM. Under the "
            "logistic loss a score of 100 leaves nothing to learn from its sequence, so the prompt follows the other.",
        ),
        files=(page, folder / PICTURE, folder / RESULT),
        facts={
            "command": command,
            "cases": [case.facts() for case in cases],
            "joint": [
                {"case": case.name, "prompt": case.prompt[-1], "head": case.head[-1], "support": case.support}
                for case in joint
            ],
        },
    )


def _table(cases: Sequence[PromptCase], joint: Sequence[JointCase]) -> list[Field]:
    alone = [_row(case.facts()) for case in cases]
    together = [
        [case.name, "1", "-", decimals(case.prompt[-1]), decimals(case.prompt[-1]), decimals(case.head[-1])]
        for case in joint
    ]
    titles = ("task", "runs", "best tokens", "cosine of p", "least", "cosine of v")
    shorts = ("", "", "best", "p", "", "head")
    ranks = (0, 2, 1, 0, 1, 1)
    columns = zip(*alone, *together, strict=True)
    return [
        Field(title=title, short=short, cells=cells, rank=rank, words=title == "task")
        for title, short, rank, cells in zip(titles, shorts, ranks, columns, strict=True)
    ]


def _row(facts: Mapping[str, Any]) -> list[str]:
    near = [cosine for cosine in facts["near"] if cosine is not None]
    best = f"{sum(facts['best'])} of {len(facts['best'])}"
    mean, least = (sum(near) / len(near), min(near)) if near else (None, None)
    return [facts["case"], str(len(facts["best"])), best, decimals(mean), decimals(least), "-"]


def _picture(cases: Sequence[PromptCase], joint: Sequence[JointCase]) -> str:
    lines = []
    for colour, case in enumerate(cases[:3]):
        for run in range(len(case.solutions)):
            steps, cosines = case.found.steps[1:], [at[run] for at in case.near()[1:]]
            lines.append(Line(name=case.name, x=steps, y=cosines, colour=(1, 3, 2)[colour]))
    both = [
        line
        for colour, case in enumerate(joint)
        for line in (
            Line(name=f"p, {case.name}", x=case.steps[1:], y=case.prompt[1:], colour=2 * colour),
            Line(name=f"v, {case.name}", x=case.steps[1:], y=case.head[1:], colour=2 * colour + 1),
        )
    ]
    charts: list[Chart] = [
        _plane(cases[1]),
        _plane(cases[2]),
        *(
            Panel(
                title=title,
                x_label="steps",
                y_label="cosine",
                lines=shown,
                x_log=True,
                y_axis=Axis(low=-1.02, high=1.02),
            )
            for title, shown in (("prompts to their SVMs", lines), ("prompt p and head v, trained together", both))
        ),
    ]
    return picture(charts, title="Prompts that are trained, and the SVMs that they turn to")


def _plane(case: PromptCase) -> Chart:
    """Tokens, the ways of the prompts, their lengths by logarithms, and the prompts of the SVMs."""
    tokens, best = case.task.tokens[0], case.task.token_scores[0].argmax(dim=-1)
    places = [[(x, y) for x, y in sequence] for sequence in tokens.tolist()]
    good = [sequence[t] for sequence, t in zip(places, best.tolist(), strict=True)]
    others = [p for sequence, t in zip(places, best.tolist(), strict=True) for p in sequence[:t] + sequence[t + 1 :]]
    prompts = case.found.W[..., 0]
    lengths = prompts.norm(dim=-1, keepdim=True)
    shown = torch.nn.functional.normalize(prompts, dim=-1) * lengths.log1p() / lengths.log1p().max()
    shown = 1.2 * float(tokens.norm(dim=-1).max()) * shown
    routes = [Route(points=[(x, y) for x, y in way], colour=1) for way in shown.transpose(0, 1).tolist()]
    solutions = {tuple(round(c, 6) for c in W.flatten().tolist()) for W in case.solutions if W is not None}
    return Plane(
        title=case.name,
        x_label="first coordinate",
        y_label="second coordinate",
        legend=LEGEND,
        dots=[Dots(points=others, colour=4, hollow=True), Dots(points=good, colour=0)],
        routes=routes,
        rays=[Ray(towards=(towards[0], towards[1]), colour=0) for towards in sorted(solutions)],
    )


PROMPT = Experiment(
    name=NAME,
    reproduces="a trained prompt turns to the SVM of the tokens it selects, with other losses and with its head too",
    cost="10 s",
    run=_run,
)
