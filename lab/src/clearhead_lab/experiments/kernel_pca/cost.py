"""Table 13: parameters, multiply-adds, time and memory of attention variants.

Memory is the peak of the tensors that a computation creates, the same on every machine.
"""

import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from clearhead.private_names import DispatchMode
from clearhead.report.plots import COLOURS, finish_panel, make_panels
from clearhead.report.tables import Field, Table
from clearhead_lab.experiments.cache import cached
from clearhead_lab.experiments.experiment import Report, Request
from clearhead_lab.experiments.robustness.step_time import (
    StepTimes,
    interleave,
    load_step_times,
    measure_step_times,
    store_step_times,
)
from clearhead_lab.experiments.study import (
    ASYMMETRIC_RPC,
    CLAMPED,
    RPC_ALL,
    RPC_FIRST,
    SCALED,
    SOFTMAX,
    SYMMETRIC,
    Study,
    study_experiment,
)
from clearhead_lab.models.catalogue import ModelSize, config_of, measure_size
from clearhead_lab.models.transformer_block import config_as_json, config_from_json
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from clearhead_lab.training.loop import Stepper
from clearhead_lab.training.recipe import Recipe
from clearhead_lab.training.recipe_file import RecipeFile, layer_operators
from clearhead_lab.training.tasks import Classification

STUDY = Study(
    small="vit-cifar-10-small",
    paper="deit-tiny-imagenet",
    variants={**SOFTMAX, **SYMMETRIC, **CLAMPED, **RPC_FIRST, **RPC_ALL, **ASYMMETRIC_RPC, **SCALED},
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of one model by variant.

    forward: seconds of a forward pass, one per round; memory: peak bytes of a training step and of inference
    """

    title: str
    sizes: Mapping[str, ModelSize]
    forward: StepTimes
    memory: Mapping[str, Mapping[str, int]]
    steps: StepTimes | None = None


def forward_seconds(*, models: Mapping[str, Any], batch_size: int, rounds: int) -> dict[str, Sequence[float]]:
    """Return the seconds of forward passes on random images, interleaved. models: settings as `config_as_json`."""

    @torch.no_grad()
    def forward(model: nn.Module, images: Tensor) -> None:
        model(images)

    built = {name: _build(settings).eval() for name, settings in models.items()}
    calls = {name: partial(forward, model, _images(model, batch_size)) for name, model in built.items()}
    return dict(interleave(calls, rounds=rounds))


def peak_memory(*, models: Mapping[str, Any], batch_size: int) -> dict[str, dict[str, int]]:
    """Return the peak bytes of a training step and of inference by model, without weights and optimizer states."""
    peaks = {}
    for name, settings in models.items():
        model = _build(settings)
        images = _images(model, batch_size)
        recipe = Recipe(epochs=1, batch_size=batch_size)
        step = Stepper(model, recipe, Classification(recipe))
        take = partial(step, images, torch.zeros(batch_size, dtype=torch.long), learning_rate=recipe.learning_rate)
        take()  # creates the states of the optimizer
        training = peak_bytes(take)
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            peaks[name] = {"training": training, "inference": peak_bytes(partial(model.eval(), images))}
    return peaks


def _build(settings: Mapping[str, Any]) -> VisionTransformer:
    return VisionTransformer(
        config_from_json(VisionTransformerConfig, settings), generator=torch.Generator().manual_seed(0)
    )


def _images(model: VisionTransformer, count: int) -> Tensor:
    side = model.config.image_size
    return torch.rand(count, model.config.channels, side, side, generator=torch.Generator().manual_seed(0))


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
    recipe = dataclasses.replace(files[BASELINE].recipe, batch_size=STEP_BATCH[request.scale])

    def measure(name: str, function: Callable[..., Any], **settings: Any) -> Any:
        request.progress(f"{title}: {name}", 0, None)
        path = folder / "measured" / f"{request.scale}-{name}.json"
        packages = ("operators", "modules", "models", "kernels", "training")
        return cached(path, function, {"models": models, **settings}, packages=packages, notice=request.notice)

    forward = measure("forward", forward_seconds, batch_size=batch_size, rounds=ROUNDS)
    return Costs(
        title=f"{title}, {next(iter(configs.values())).tokens} tokens",
        sizes={variant: measure_size(name, **own) for variant, (name, own) in named.items()},
        forward=StepTimes(key={}, seconds=forward),
        memory=measure("memory", peak_memory, batch_size=batch_size),
        steps=_step_times(configs, recipe, request, folder) if steps else None,
    )


def _step_times(
    configs: Mapping[str, VisionTransformerConfig], recipe: Recipe, request: Request, folder: Path
) -> StepTimes:
    stored = load_step_times(folder, configs, recipe, rounds=ROUNDS, request=request)
    if stored is not None:
        return stored
    times = measure_step_times(
        configs, recipe, rounds=ROUNDS,
        progress=lambda done, total: request.progress("time of a step, rounds", done, total),
    )  # fmt: skip
    store_step_times(folder, times)
    return times


def _report(results: Sequence[Costs], request: Request) -> Report:
    deit = results[-1].forward
    to_symmetric, to_softmax = (deit.ratio(REVIEWED, to=name).median for name in (REVIEWED_TO, BASELINE))
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
                "forward": dict(costs.forward.seconds),
                "steps": {} if costs.steps is None else dict(costs.steps.seconds),
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


def _ratio(times: StepTimes, variant: str, to: str) -> str:
    ratio = times.ratio(variant, to=to)
    return f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def _draw(results: Sequence[Costs]) -> Any:
    bars = [(f"Training step, {costs.title}", costs.steps) for costs in results if costs.steps is not None]
    bars += [(f"Forward pass, {costs.title}", costs.forward) for costs in results]
    figure, panels = make_panels(len(bars), title="Relative times of attention variants")
    from matplotlib.ticker import MultipleLocator  # after make_panels, which names the package if it is missing

    for axes, (title, times) in zip(panels, bars, strict=True):
        names = list(times.seconds)
        ratios = [times.ratio(name, to=BASELINE) for name in names]
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


def peak_bytes(compute: Callable[[], Any]) -> int:
    """Return the largest number of bytes of tensors that `compute` created and that exist at the same time.

    Tensors from before, also if they are changed in place, and memory inside compiled kernels are not counted.
    """
    live = _LiveBytes()
    with live:
        compute()
    return live.peak


class _LiveBytes(DispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of new storages while they exist."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._counted: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        inputs = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(results):
            if isinstance(leaf, Tensor) and id(leaf.untyped_storage()) not in inputs:
                self._count(leaf.untyped_storage())
        return results

    def _count(self, storage: Any) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._counted:
            return

        def forget(_: Any) -> None:
            self.now -= size
            self._counted.pop(key, None)

        self._counted[key] = weakref.ref(storage, forget)
        self.now += size
        self.peak = max(self.peak, self.now)
