"""Training in the plane: the direction of W z turns to that of the SVM, and attention separates good and bad tokens."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead.report.plots import COLOURS, finish_panel, make_panels
from clearhead.report.tables import Field, Table, decimals
from clearhead_lab.experiments.experiment import Axes, Figure, Report, Request
from clearhead_lab.experiments.svm.descent.attention_task import AttentionTask, LinearHead
from clearhead_lab.experiments.svm.descent.solutions import (
    PREDICTED,
    cosines,
    solve_all,
    svm_experiment,
    train_from_zero,
)
from clearhead_lab.experiments.svm.plane import plot_plane
from clearhead_lab.theorems.max_margin.convergence import globally_optimal

N, D, STEPS = 2, 2, 2000
RECORDED = sorted({0, *range(1, 10), *(int(step) for step in np.geomspace(10, STEPS, 60))})
FILES = {"W": "picture-W.svg", "K, Q": "picture-KQ.svg"}
TASKS = {"T = 3": 1, "T = 5": 3}
"""The seeds of the published figures."""
TABULATED = ("trained", "task", "selected", "global", "largest", "cosines", "angles")

Result = Mapping[str, Any]


def measure(*, trained: str, task: str, seed: int) -> dict[str, Any]:
    """Train on one task; return the trajectory, the SVMs of the selected tokens, and how close W came to them."""
    sampled = draw_task(task, seed)
    run = train_from_zero(trained, sampled, [seed], steps=STEPS, record=RECORDED)
    selected, W, queries = run.selected[-1], run.W[-1], sampled.queries[0]
    solutions = {norm: solve_all(sampled.tokens, sampled.queries, selected, norm) for norm in PREDICTED.values()}
    svm = solutions[PREDICTED[trained]][0].W
    assert svm is not None, "tokens that are selected at the end can be separated"
    directions = torch.nn.functional.cosine_similarity(queries @ W[0].mT, queries @ svm.mT, dim=-1)
    return {
        "trained": trained,
        "task": task,
        "selected": selected[0].tolist(),
        "global": bool(globally_optimal(sampled.token_scores, selected)[0]),
        "largest": run.largest[-1, 0].tolist(),
        "cosines": {norm: cosines(W, solved)[0] for norm, solved in solutions.items()},
        "angles": [math.degrees(math.acos(min(cosine, 1.0))) for cosine in directions.tolist()],
        "steps": run.steps,
        "tokens": sampled.tokens[0].tolist(),
        "best": sampled.token_scores[0].argmax(dim=-1).tolist(),
        "attention": run.attention[:, 0].tolist(),
        "directions": torch.nn.functional.normalize(queries @ run.W[:, 0].mT, dim=-1).tolist(),
        "svm directions": (queries @ svm.mT).tolist(),
    }


def draw_task(name: str, seed: int) -> AttentionTask:
    """Draw one task with positive labels; v and queries have length one."""
    generator = torch.Generator().manual_seed(seed)
    v, tokens, queries = (_three_tokens if name == "T = 3" else _five_tokens)(generator)
    return AttentionTask(
        tokens=tokens.double()[None],
        queries=(queries / queries.norm(dim=-1, keepdim=True)).double()[None],
        labels=torch.ones(1, N).double(),
        head=LinearHead((v / v.norm()).double()[None]),
    )


def _three_tokens(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw three tokens around (-1, 0) and three around (1, 0)."""
    v = torch.randn(D, generator=generator)
    tokens = 0.3 * torch.randn(N, 3, D, generator=generator) + torch.tensor([[[-1.0, 0.0]], [[1.0, 0.0]]])
    return v, tokens, torch.randn(N, D, generator=generator)


def _five_tokens(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw four tokens around (-1, 0) for each sequence, next to one at (1, 1/2) or (1, -1/2)."""
    v = torch.randn(D, generator=generator)
    tokens = 0.5 * torch.randn(N, 5, D, generator=generator) + torch.tensor([-1.0, 0.0])
    tokens[:, 0] = torch.tensor([[1.0, 0.5], [1.0, -0.5]])
    return v, tokens, torch.randn(N, D, generator=generator)


def report(results: Mapping[str, Result], request: Request) -> Report:
    """Tabulate the cosines and angles at the end."""
    rows = list(results.values())
    predicted = ", ".join(decimals(row["cosines"][PREDICTED[row["trained"]]]) for row in rows)
    return Report(
        headline=f"cosines to the predicted SVM {predicted}",
        setting=(
            f"n = {N} sequences of tokens in the plane, normalised descent from W = 0 (K with standard deviation 0.1, "
            f"Q = 0), {STEPS:,} steps; tasks of seeds {' and '.join(str(s + request.seed) for s in TASKS.values())}. "
            "Angles, in degrees, are between W z and the direction of the predicted SVM (least Frobenius norm for W, "
            "nuclear for K and Q), for each sequence."
        ),
        sections=[("At the end", _table(rows))],
        remarks=(
            "Cosines of W to both SVMs of the selected tokens; angles: between W z and the direction of the predicted "
            "SVM, for each sequence; good: the selected tokens have the highest scores.",
        ),
        figures={
            file: lambda trained=trained: draw([row for row in rows if row["trained"] == trained])  # type: ignore[misc]
            for trained, file in FILES.items()
        },
        facts={"runs": [{name: row[name] for name in TABULATED} for row in rows]},
    )


def _table(rows: list[Result]) -> Table:
    def listed(numbers: list[Any]) -> str:
        return ", ".join(map(str, numbers))

    return [
        Field(title="trained", cells=[row["trained"] for row in rows], text=True),
        Field(title="task", cells=[row["task"] for row in rows], text=True),
        Field(
            title="selected tokens",
            short="tokens",
            rank=2,
            cells=[listed([t + 1 for t in row["selected"]]) for row in rows],
        ),
        Field(title="of highest score", short="good", cells=["yes" if row["global"] else "no" for row in rows], rank=1),
        *(
            Field(title=f"cosine, {norm}", short=str(norm), cells=[decimals(row["cosines"][norm]) for row in rows])
            for norm in PREDICTED.values()
        ),
        Field(title="angles", cells=[listed([f"{angle:.2f}" for angle in row["angles"]]) for row in rows], rank=3),
    ]


def draw(rows: list[Result]) -> Figure:
    """Plot tokens and the direction of W z, and the probabilities of all tokens by step."""
    figure, panels = make_panels(2 * len(rows), title=f"Training {rows[0]['trained']} in the plane")
    for row, plane, probabilities in zip(rows, panels[::2], panels[1::2], strict=True):
        _draw_plane(plane, row)
        _draw_probabilities(probabilities, row)
    return figure


def _draw_plane(axes: Axes, row: Result) -> None:
    """Plot tokens, and the direction of W z at every step, farther out at later steps."""
    tokens = np.array(row["tokens"])
    reach = np.linalg.norm(tokens, axis=-1).max()
    lengths = reach * np.log1p(row["steps"]) / math.log1p(STEPS)
    filled, hollow, paths, rays = [], [], [], []
    for i, chosen in enumerate(row["selected"]):
        sequence = f"sequence {i + 1}: "
        filled.append((tokens[i, [chosen]], i, f"{sequence}selected token"))
        hollow.append((np.delete(tokens[i], chosen, axis=0), i, f"{sequence}other tokens"))
        directions = np.array(row["directions"])[:, i]
        paths.append(((lengths[:, None] * directions)[1:], i, f"{sequence}W z, farther out at later steps"))
        rays.append((np.array(row["svm directions"][i]), i, f"{sequence}W z of the SVM"))
    plot_plane(axes, filled=filled, hollow=hollow, paths=paths, rays=rays)
    title = f"{row['task']}: tokens and the direction of W z"
    finish_panel(axes, title=title, x="first coordinate", y="second coordinate")


def _draw_probabilities(axes: Axes, row: Result) -> None:
    attention = np.array(row["attention"])
    for i, best in enumerate(row["best"]):
        for t in range(attention.shape[-1]):
            good = t == best
            axes.plot(
                row["steps"][1:],
                attention[1:, i, t],
                color=COLOURS[2 if good else 5],
                linestyle="-" if good else ":",
                label="good tokens (of highest score)" if good else "bad tokens",
            )
    title = f"{row['task']}: probabilities of tokens"
    finish_panel(axes, title=title, x="steps", y="probability", x_log=True, y_range=(-0.02, 1.02))


TRAJECTORIES = svm_experiment(
    "trajectories",
    measure,
    lambda request: {
        f"{trained}, {task}": {"trained": trained, "task": task, "seed": seed + request.seed}
        for trained in PREDICTED
        for task, seed in TASKS.items()
    },
    report,
    title="Training in the plane",
    reproduces="training in the plane: W z turns to the direction of the SVM, attention separates good and bad tokens",
    cost="10 s",
    seeds=False,
)
