"""Training in the plane, to look at: directions that turn to the SVM's, and tokens that part in good and bad."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead.experiments.experiment import RESULT, Experiment, Outcome, Request, write_text
from clearhead.experiments.seed_runs import command_of, write_page
from clearhead.experiments.svm.descent.attention_task import AttentionTask
from clearhead.experiments.svm.descent.dynamics import Trajectory, train
from clearhead.experiments.svm.descent.parameters import Direct, Factored
from clearhead.experiments.svm.descent.prediction import LinearHead
from clearhead.experiments.svm.descent.tasks import draw_small_start
from clearhead.experiments.svm.solutions import nearness, solve_all
from clearhead.experiments.tables import Field, as_columns, as_markdown, decimals
from clearhead.report.chart_axis import Axis
from clearhead.report.line_chart import Chart, Line, Panel, Sample, picture
from clearhead.report.plane_chart import Dots, Plane, Ray, Route
from clearhead.theories.max_margin import MaxMargin, Norm
from clearhead.theories.max_margin.optimality import globally_optimal

__all__ = ["TRAJECTORIES"]

NAME = "svm/trajectories"
N, D, STEPS = 2, 2, 2000
KEPT = sorted({0, *range(1, 10), *(int(step) for step in np.geomspace(10, STEPS, 60))})
OWN = {"W": Norm.FROBENIUS, "K, Q": Norm.NUCLEAR}
PICTURES = {"W": "picture-W.svg", "K, Q": "picture-KQ.svg"}
TASKS = {"T = 3": 1, "T = 5": 3}
"""The published pictures and their seeds."""
LEGEND = [
    Sample("sequence 1", 0, "solid"),
    Sample("sequence 2", 1, "solid"),
    Sample("selected token", 4, "dot"),
    Sample("other tokens", 4, "ring"),
    Sample("W z, farther out at later steps", 4, "solid"),
    Sample("W z of the SVM", 4, "ray"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    """One run with the SVMs of the tokens that it selected."""

    trained: str
    name: str
    task: AttentionTask
    found: Trajectory
    solutions: Mapping[Norm, MaxMargin]

    @property
    def own(self) -> Tensor:
        """The matrix of the SVM that training should lead to."""
        W = self.solutions[OWN[self.trained]].W
        assert W is not None, "tokens that are selected in the end can be separated"
        return W

    def facts(self) -> dict[str, Any]:
        """What it came to."""
        W, queries, selected = self.found.W[-1], self.task.queries[0], self.found.selected[-1]
        cosines = torch.nn.functional.cosine_similarity(queries @ W[0].mT, queries @ self.own.mT, dim=-1)
        return {
            "trained": self.trained,
            "task": self.name,
            "selected": selected[0].tolist(),
            "global": bool(globally_optimal(self.task.token_scores, selected)[0]),
            "largest": self.found.largest[-1, 0].tolist(),
            "near": {norm: nearness(W, [solved])[0] for norm, solved in self.solutions.items()},
            "angles": [math.degrees(math.acos(min(cosine, 1.0))) for cosine in cosines.tolist()],
        }


def _three(generator: torch.Generator) -> tuple[Tensor, ...]:
    """Three tokens around (-1, 0) and three around (1, 0)."""
    v = torch.randn(D, generator=generator)
    tokens = 0.3 * torch.randn(N, 3, D, generator=generator) + torch.tensor([[[-1.0, 0.0]], [[1.0, 0.0]]])
    return v, tokens, torch.randn(N, D, generator=generator)


def _five(generator: torch.Generator) -> tuple[Tensor, ...]:
    """One token at (1, 1/2) or (1, -1/2), and four around (-1, 0)."""
    v = torch.randn(D, generator=generator)
    tokens = 0.5 * torch.randn(N, 5, D, generator=generator) + torch.tensor([-1.0, 0.0])
    tokens[:, 0] = torch.tensor([[1.0, 0.5], [1.0, -0.5]])
    return v, tokens, torch.randn(N, D, generator=generator)


def drawn_task(name: str, seed: int) -> AttentionTask:
    """One run, all labels positive; v and queries of length one."""
    v, tokens, queries = (_three if name == "T = 3" else _five)(torch.Generator().manual_seed(seed))
    return AttentionTask(
        tokens=tokens.double()[None],
        queries=(queries / queries.norm(dim=-1, keepdim=True)).double()[None],
        labels=torch.ones(1, N).double(),
        head=LinearHead((v / v.norm()).double()[None]),
    )


def _watch(trained: str, name: str, seed: int) -> _Watched:
    task = drawn_task(name, seed)
    start = (torch.zeros(1, D, D).double(),) if trained == "W" else draw_small_start([seed], (D, D))
    parameters = Direct() if trained == "W" else Factored()
    found = train(task, start, steps=STEPS, keep=KEPT, parameters=parameters)
    solutions = {norm: solve_all(task.tokens, task.queries, found.selected[-1], norm)[0] for norm in OWN.values()}
    return _Watched(trained=trained, name=name, task=task, found=found, solutions=solutions)


def _run(request: Request, folder: Path) -> Outcome:
    asked = [(trained, name) for trained in OWN for name in TASKS]
    watched = []
    for place, (trained, name) in enumerate(asked):
        request.tell(f"{trained}, {name}", place, len(asked))
        watched.append(_watch(trained, name, TASKS[name] + request.seed))
    rows = [one.facts() for one in watched]
    table, command = _table(rows), command_of(NAME, request)
    page = write_page(
        folder,
        title="Training in the plane",
        command=command,
        setting=(
            f"n = {N} sequences of tokens in the plane, normalised descent from W = 0 (K of spread 0.1, Q = 0), "
            f"{STEPS:,} steps; tasks of seeds {' and '.join(str(seed + request.seed) for seed in TASKS.values())}. "
            "Angles, in degrees, are those between W z and the same of the run's own SVM (least Frobenius norm for W, "
            "nuclear for K and Q), for each sequence."
        ),
        tables=[("In the end", as_markdown(table))],
    )
    for trained, file in PICTURES.items():
        charts = [part for one in watched if one.trained == trained for part in (_plane(one), _separation(one))]
        write_text(folder / file, picture(charts, title=f"Training {trained} in the plane"))
    near = ", ".join(decimals(row["near"][OWN[row["trained"]]]) for row in rows)
    return Outcome(
        headline=f"cosines to the own SVM {near}",
        tables=as_columns(table),
        remarks=(
            "Cosines of W to both SVMs of the selected tokens; angle: between W z and the same of the own SVM, for "
            "each sequence; good: whether the selected tokens have the highest scores.",
        ),
        files=(page, *(folder / file for file in PICTURES.values()), folder / RESULT),
        facts={"command": command, "runs": rows},
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> list[Field]:
    return [
        Field(title="trained", cells=[row["trained"] for row in rows], words=True),
        Field(title="task", cells=[row["task"] for row in rows], words=True),
        Field(title="selected tokens", short="tokens", cells=[_listed(row["selected"]) for row in rows], rank=2),
        Field(title="of highest score", short="good", cells=["yes" if row["global"] else "no" for row in rows], rank=1),
        *(
            Field(title=f"cosine, {norm}", short=str(norm), cells=[decimals(row["near"][norm]) for row in rows])
            for norm in OWN.values()
        ),
        Field(title="angles", cells=[", ".join(f"{angle:.2f}" for angle in row["angles"]) for row in rows], rank=3),
    ]


def _listed(tokens: Sequence[int]) -> str:
    return ", ".join(str(token + 1) for token in tokens)


def _plane(one: _Watched) -> Chart:
    """Tokens, and the direction of W z at every step, drawn the farther out the later."""
    tokens, queries = one.task.tokens[0], one.task.queries[0]
    reach = float(tokens.norm(dim=-1).max())
    lengths = [reach * math.log1p(step) / math.log1p(STEPS) for step in one.found.steps]
    dots, routes, rays = [], [], []
    for i, chosen in enumerate(one.found.selected[-1, 0].tolist()):
        places = [(x, y) for x, y in tokens[i].tolist()]
        others = [place for t, place in enumerate(places) if t != chosen]
        dots += [Dots(points=others, colour=i, hollow=True), Dots(points=[places[chosen]], colour=i)]
        directions = torch.nn.functional.normalize(one.found.W[:, 0] @ queries[i], dim=-1).tolist()
        points = [(length * x, length * y) for length, (x, y) in zip(lengths, directions, strict=True)]
        routes.append(Route(points=points[1:], colour=i))
        x, y = (one.own @ queries[i]).tolist()
        rays.append(Ray(towards=(x, y), colour=i))
    return Plane(
        title=f"{one.name}: tokens, and where W z points",
        x_label="first coordinate",
        y_label="second coordinate",
        legend=LEGEND,
        dots=dots,
        routes=routes,
        rays=rays,
    )


def _separation(one: _Watched) -> Chart:
    """Probabilities of all tokens by the step."""
    lines, found = [], one.found
    for i, best in enumerate(one.task.token_scores[0].argmax(dim=-1).tolist()):
        for t in range(one.task.tokens.shape[2]):
            good = t == best
            lines.append(
                Line(
                    name="good tokens (of highest score)" if good else "bad tokens",
                    x=found.steps[1:],
                    y=found.attention[1:, 0, i, t].tolist(),
                    colour=2 if good else 5,
                    solid=good,
                )
            )
    return Panel(
        title=f"{one.name}: probabilities of tokens",
        x_label="steps",
        y_label="probability",
        lines=lines,
        x_log=True,
        y_axis=Axis(low=-0.02, high=1.02),
    )


TRAJECTORIES = Experiment(
    name=NAME,
    reproduces="pictures of training in the plane: W z turns to the SVM's direction, good tokens part from bad ones",
    cost="10 s",
    run=_run,
)
