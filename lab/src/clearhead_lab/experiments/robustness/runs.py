"""The measurement of trained variants: accuracy on clean and corrupted images, and the clamped key entries."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators.clamped_keys import KeyBound
from clearhead.operators.named import RPC, ClampedKeys
from clearhead.storage import tensor_fingerprint
from clearhead_lab.data.image_sets import ImageSet
from clearhead_lab.experiments.cache import code_fingerprint, remembered
from clearhead_lab.experiments.experiment import Request
from clearhead_lab.experiments.study import Study, StudyRun, train_all
from clearhead_lab.models.vit import VisionTransformer
from clearhead_lab.robustness.corruptions import sweep
from clearhead_lab.training.evaluation import as_pixels, measure_accuracy


def clamped_shares(model: VisionTransformer, pixels: Tensor) -> list[float | None]:
    """Return the share of key entries that the first clamping changes, per layer; None for layers without a bound.

    Later iterations of a pursuit clamp other matrices, which are not counted.
    """
    shares: list[float | None] = [None] * model.config.layers
    training = model.training
    with ExitStack() as hooks, torch.no_grad():
        for layer, (block, operator) in enumerate(zip(model.blocks, model.config.layer_attention, strict=True)):
            bound = _bound_of(operator)
            if bound is None:
                continue

            def count(_: Any, __: Any, keys: Tensor, layer: int = layer, bound: KeyBound = bound) -> None:
                k = keys.reshape(*keys.shape[:-1], model.config.heads, -1).movedim(-2, -3)
                shares[layer] = float((k.abs() > bound.compute(k)).double().mean())

            projection = block.get_submodule("attention.key")
            hooks.callback(projection.register_forward_hook(count).remove)
        model.eval()(pixels)
    model.train(training)
    return shares


def _bound_of(operator: Any) -> KeyBound | None:
    if isinstance(operator, RPC):
        return operator.options.bound
    return operator.limit if isinstance(operator, ClampedKeys) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One variant from one seed: the number of right answers, or the reason why training failed.

    clean: right answers of `images`; by_corruption: of `corrupted` images, at severities 1 to 5
    clamped: the share of key entries that the bound clamps, per layer; None for layers without a bound
    seconds: of every epoch of training, with evaluation
    """

    variant: str
    seed: int
    parameters: int
    clean: int = 0
    images: int = 0
    by_corruption: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    corrupted: int = 0
    clamped: Sequence[float | None] = ()
    seconds: Sequence[float] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        counts = [right for each in self.by_corruption.values() for right in each]
        if not 0 <= self.clean <= self.images or any(not 0 <= right <= self.corrupted for right in counts):
            raise InputError(
                f"{self.variant}, seed {self.seed}: more right answers than images; delete its folder and run again"
            )


def measure_runs(images: ImageSet, study: Study, corrupted: int, request: Request, folder: Path) -> list[Run]:
    """Train every variant from every seed and measure it. A run that diverges is reported, and the others go on.

    corrupted: the number of test images that are corrupted
    """
    subset = dataclasses.replace(
        images, test_images=images.test_images[:corrupted], test_labels=images.test_labels[:corrupted]
    )
    trained = train_all(study, request, data=subset, folder=folder)
    runs = []
    for number, run in enumerate(trained):
        values: dict[str, Any] = {"variant": run.variant, "seed": run.seed, "parameters": run.parameters}
        if run.reason:
            runs.append(Run(**values, reason=run.reason))
            continue

        def progress(corruption: str, number: int = number, cell: str = f"{run.variant}, seed {run.seed}") -> None:
            request.progress(f"{cell}: {corruption}", number, len(trained))

        seconds = [float(epoch["seconds"]) for epoch in run.log]
        runs.append(Run(**values, seconds=seconds, **_measure(run, images, subset, request, progress)))
    return runs


class Counts(TypedDict):
    """Right answers of one model, and the shares of values that its layers clamped."""

    clean: int
    images: int
    corrupted: int
    clamped: list[float | None]
    by_corruption: dict[str, list[int]]


def _measure(
    run: StudyRun, images: ImageSet, subset: ImageSet, request: Request, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Count the right answers of one model, or return the cached counts for this model and these images."""
    model = run.model()
    assert isinstance(model, VisionTransformer), "every variant is a vision transformer"
    path = run.folder / "measured.json"
    key = {
        "weights": tensor_fingerprint(model.state_dict().values()),
        "images": tensor_fingerprint([images.test_images, images.test_labels]),
        "corrupted": len(subset.test_images),
        "seed": request.seed,  # of the corruptions, so that all runs see the same images
        "code": code_fingerprint("robustness"),
        "torch": torch.__version__,
    }

    def count() -> Counts:
        clean = measure_accuracy(model, images.test_images, images.test_labels)
        swept = sweep(
            subset.test_images,
            lambda corrupted: measure_accuracy(model, corrupted, subset.test_labels).right,
            seed=request.seed,
            progress=progress,
        )
        return {
            "clean": clean.right,
            "images": clean.images,
            "corrupted": len(subset.test_images),
            "clamped": clamped_shares(model, as_pixels(subset.test_images)),
            "by_corruption": {each.corruption: [int(right) for right in each.values] for each in swept},
        }

    return dict(remembered(path, key, count, notice=request.notice, kind=Counts))
