"""Table 13: parameters, multiply-adds, time and memory of attention variants.

Memory is the peak of the tensors that a computation creates, the same on every machine.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clearhead.report.plots import COLOURS, finish_panel, make_panels
from clearhead.report.tables import Field, Table
from clearhead_lab.experiments.cache import cached
from clearhead_lab.experiments.experiment import Report, Request
from clearhead_lab.experiments.kernel_pca.measured_cost import forward_seconds, peak_memory, step_seconds
from clearhead_lab.experiments.study import VARIANTS, Study, study_experiment
from clearhead_lab.models.catalogue import ModelSize, config_of, measure_size
from clearhead_lab.models.transformer_block import config_as_json
from clearhead_lab.models.vit import VisionTransformerConfig
from clearhead_lab.training.recipe_file import RecipeFile, layer_operators

STUDY = Study(small="vit-cifar-10-small", paper="deit-tiny-imagenet", variants=VARIANTS)
CIFAR = "vit-cifar"
"""The named model whose sizes of images the small recipe has."""
STEP_BATCH = {"small": 64, "paper": 16}
FORWARD_BATCH, ROUNDS = 2, 15
BASELINE, REVIEWED, REVIEWED_TO = "softmax", "RPC, all layers", "symmetric"
CLAIMED = (
    "Time, flops and memory of RPC-Attention are comparable to the baseline's at test time (Table 13). A reviewer read "
    "version 1 of the paper as 70% more inference time for 2 iterations in all layers. The cells of the table are not "
    "at hand."
)
DIFFER = (
    "Times are of one CPU thread and Clearhead's own operators, among them a compiled kernel for symmetric attention "
    "and RPC; the paper's are of a GPU and of its PyTorch code, and a GPU has other bottlenecks. Symmetric attention "
    "has no query map, so it has fewer parameters and multiply-adds than softmax attention. Memory is that of tensors "
    "that torch allocates; scratch memory inside the compiled kernel is not counted."
)

Seconds = Mapping[str, Sequence[float]]
"""Of each variant, one per round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of one model by variant.

    forward, steps: of forward passes and training steps; memory: peak bytes of a training step and of inference
    """

    title: str
    sizes: Mapping[str, ModelSize]
    forward: Seconds
    memory: Mapping[str, Mapping[str, int]]
    steps: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The median ratio over rounds, and its quartiles."""

    median: float
    low: float
    high: float


def ratio(seconds: Seconds, variant: str, *, to: str) -> Ratio:
    """Return the time of one variant relative to another in the same round, over rounds."""
    ratios = np.array(seconds[variant]) / np.array(seconds[to])
    low, median, high = (float(x) for x in np.quantile(ratios, (0.25, 0.5, 0.75)))
    return Ratio(median=median, low=low, high=high)


def _model_settings(file: RecipeFile) -> tuple[str, dict[str, Any]]:
    """Return the named model of a recipe and the settings that replace its own, with an operator for every layer."""
    settings = {name: value for name, value in file.model.items() if name not in ("kind", "name")}
    name = file.model.get("name", CIFAR)
    layers = settings.get("layers") or config_of(name).layers
    return name, {**settings, "attention": layer_operators(settings["attention"], layers=layers)}


def _measure(request: Request, folder: Path) -> list[Costs]:
    paper = dataclasses.replace(request, scale="paper")
    costs = [_measure_model("DeiT-tiny", paper, folder, FORWARD_BATCH, steps=request.scale == "paper")]
    if request.scale == "small":
        costs.insert(0, _measure_model("Small ViT", request, folder, STEP_BATCH["small"], steps=True))
    return costs


def _measure_model(title: str, request: Request, folder: Path, batch_size: int, *, steps: bool) -> Costs:
    files = {variant: STUDY.recipe(request, variant, request.seed) for variant in STUDY.variants}
    named = {variant: _model_settings(file) for variant, file in files.items()}
    configs: dict[str, VisionTransformerConfig] = {v: config_of(name, **own) for v, (name, own) in named.items()}
    models = {variant: config_as_json(config) for variant, config in configs.items()}

    def measure(name: str, function: Callable[..., Any], **settings: Any) -> Any:
        request.progress(f"{title}: {name}", 0, None)
        path = folder / "measured" / f"{request.scale}-{name}.json"
        packages = ("operators", "modules", "models", "kernels", "training")
        return cached(path, function, {"models": models, **settings}, packages=packages, notice=request.notice)

    recipe = dataclasses.replace(files[BASELINE].recipe, batch_size=STEP_BATCH[request.scale])
    step = {"recipe": dataclasses.asdict(recipe), "rounds": ROUNDS}
    return Costs(
        title=f"{title}, {next(iter(configs.values())).tokens} tokens",
        sizes={variant: measure_size(name, **own) for variant, (name, own) in named.items()},
        forward=measure("forward", forward_seconds, batch_size=batch_size, rounds=ROUNDS),
        memory=measure("memory", peak_memory, batch_size=batch_size),
        steps=measure("steps", step_seconds, **step) if steps else None,
    )


def _report(results: Sequence[Costs], request: Request) -> Report:
    deit = results[-1].forward
    to_symmetric, to_softmax = (ratio(deit, REVIEWED, to=name).median for name in (REVIEWED_TO, BASELINE))
    return Report(
        headline=f"DeiT-tiny with RPC, 2 iterations in all layers: a forward pass takes {to_symmetric:.2f} times that "
        f"of symmetric attention and {to_softmax:.2f} times that of softmax attention (a reviewer's reading: 1.70)",
        setting=f"Median ratios of times to {BASELINE} attention in the same round with quartiles, {ROUNDS} rounds, "
        f"interleaved in one process on one thread. Training steps have {STEP_BATCH[request.scale]} images; forward "
        f"passes and memory are of {FORWARD_BATCH} images for DeiT-tiny and of {STEP_BATCH['small']} for the small "
        "ViT. Memory is the peak of tensors that a step or an inference creates, without weights and optimizer states. "
        "Multiply-adds are of one image.",
        sections=[
            ("Claimed", CLAIMED),
            *((f"Measured: {costs.title}", _table(costs)) for costs in results),
            ("Why they differ", DIFFER),
        ],
        figures={"cost.svg": lambda: _draw(results)},
        facts={
            costs.title: {
                "sizes": {variant: dataclasses.asdict(size) for variant, size in costs.sizes.items()},
                "forward": dict(costs.forward),
                "steps": {} if costs.steps is None else dict(costs.steps),
                "memory": dict(costs.memory),
            }
            for costs in results
        },
    )


def _table(costs: Costs) -> Table:
    variants = list(costs.sizes)
    times = {"forward pass": costs.forward, **({} if costs.steps is None else {"training step": costs.steps})}
    return [
        Field(title="variant", cells=variants, text=True),
        Field(title="parameters", cells=[f"{size.parameters:,}" for size in costs.sizes.values()], rank=1),
        Field(
            title="multiply-adds", cells=[f"{size.multiply_adds / 1e6:,.4g} M" for size in costs.sizes.values()], rank=1
        ),
        *(Field(title=title, cells=[_ratio(each, v, BASELINE) for v in variants]) for title, each in times.items()),
        Field(
            title=f"forward pass relative to {REVIEWED_TO}",
            short=f"to {REVIEWED_TO}",
            cells=[_ratio(costs.forward, variant, REVIEWED_TO) for variant in variants],
            rank=1,
        ),
        *(
            Field(title=f"memory, {kind}", cells=[f"{costs.memory[v][kind] / 1e6:,.3g} MB" for v in variants], rank=1)
            for kind in ("training", "inference")
        ),
    ]


def _ratio(seconds: Seconds, variant: str, to: str) -> str:
    found = ratio(seconds, variant, to=to)
    return f"{found.median:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _draw(results: Sequence[Costs]) -> Any:
    bars = [(f"Training step, {costs.title}", costs.steps) for costs in results if costs.steps is not None]
    bars += [(f"Forward pass, {costs.title}", costs.forward) for costs in results]
    figure, panels = make_panels(len(bars), title="Relative times of attention variants")
    from matplotlib.ticker import MultipleLocator  # after make_panels, which names the package if it is missing

    for axes, (title, times) in zip(panels, bars, strict=True):
        names = list(times)
        ratios = [ratio(times, name, to=BASELINE) for name in names]
        medians = [ratio.median for ratio in ratios]
        errors = [[r.median - r.low for r in ratios], [r.high - r.median for r in ratios]]
        axes.barh(names, medians, xerr=errors, color=COLOURS[0], ecolor=COLOURS[4], height=0.6)
        axes.axvline(1.0, color=COLOURS[1], linewidth=1.2)
        axes.invert_yaxis()
        finish_panel(axes, title=title, x=f"time relative to {BASELINE}", y="")
        axes.xaxis.set_major_locator(MultipleLocator(0.25))
    return figure


COST = study_experiment(
    STUDY,
    "cost",
    _measure,
    _report,
    title="Time, multiply-adds and memory of attention variants",
    reproduces="parameters, multiply-adds, relative times and peak memory of all variants; no data needed",
    source="Table 13",
    cost="5 min",
    full_cost="20 min",
    options=(),
)
