"""The vision transformers of the model tables, trained on real images."""

from collections.abc import Callable
from pathlib import Path

from clearhead.errors import InputError
from clearhead_lab.data.image_sets import ImageSet, digits, read_images
from clearhead_lab.experiments.experiment import Experiment, Report, Request
from clearhead_lab.experiments.training_runs import LOG, MODEL_FOLDER, Plan, TrainedRun, train_run
from clearhead_lab.training.batches import random_changes, random_shift
from clearhead_lab.training.recipe import Recipe

__all__ = ["DEBIAN_FASHION_MNIST", "DIGITS", "DIGITS_PLAN", "FASHION_MNIST", "fashion_mnist"]

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""The folder of Debian's package dataset-fashion-mnist."""

FASHION_PLAN = Plan(
    patch_size=4,
    width=128,
    layers=6,
    heads=8,
    mlp_width=256,
    recipe=Recipe(epochs=8, learning_rate=1e-3, label_smoothing=0.1),
    augment=random_changes,
)
DIGITS_PLAN = Plan(
    patch_size=2,
    width=32,
    layers=3,
    heads=4,
    mlp_width=64,
    recipe=Recipe(epochs=60, batch_size=64, learning_rate=2e-3, warmup=3.0),
    augment=lambda images, generator: random_shift(images, generator, max_pixels=1),
)


def fashion_mnist(folder: Path | None) -> ImageSet:
    """Read Fashion-MNIST (Xiao, Rasul and Vollgraf 2017) from the folder, by default that of Debian's package."""
    if folder is None and not DEBIAN_FASHION_MNIST.is_dir():
        raise InputError(
            "Fashion-MNIST was not found; install Debian's package dataset-fashion-mnist, or give the folder of its "
            "four IDX files with --data"
        )
    return read_images(DEBIAN_FASHION_MNIST if folder is None else folder)


def _training_of(images: Callable[[Request], ImageSet], plan: Plan) -> Callable[[Request, Path], TrainedRun]:
    def measure(request: Request, folder: Path) -> TrainedRun:
        data = images(request)
        return train_run(
            data,
            plan.vit_for(data),
            plan.recipe_of(request),
            folder,
            name="vit",
            augment=plan.augment,
            progress=lambda step, steps, loss: request.progress(f"training, loss {loss:.3f}", step, steps),
            notice=request.notice,
        )

    return measure


def report(run: TrainedRun, request: Request) -> Report:
    """Report the test accuracy."""
    if run.reason:
        raise InputError(run.reason)
    accuracy = run.accuracy
    low, high = accuracy.interval.low, accuracy.interval.high
    return Report(
        headline=f"test accuracy {accuracy.value:.4f} [{low:.4f}, {high:.4f}], {accuracy.images:,} images",
        files=(run.folder / MODEL_FOLDER, run.folder / LOG),
    )


FASHION_MNIST = Experiment(
    name="vit/fashion-mnist",
    title="A vision transformer on Fashion-MNIST",
    reproduces="a vision transformer trained on Fashion-MNIST, for the audit and for robustness studies",
    cost="1 h",
    measure=_training_of(lambda request: fashion_mnist(request.data), FASHION_PLAN),
    report=report,
    options=frozenset({"data", "epochs"}),
)
DIGITS = Experiment(
    name="vit/digits",
    title="A vision transformer on digits",
    reproduces="the same on scikit-learn's digits, which needs no download",
    cost="1 min",
    measure=_training_of(lambda request: digits(), DIGITS_PLAN),
    report=report,
    options=frozenset({"epochs"}),
)
