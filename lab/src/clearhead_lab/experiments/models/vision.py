"""The vision transformers of the model tables, trained on real images."""

from collections.abc import Callable
from pathlib import Path

from clearhead.errors import InputError
from clearhead_lab.data.image_sets import ImageSet, digits, read_images
from clearhead_lab.experiments.experiment import Experiment, Report, Request
from clearhead_lab.experiments.study import Study, StudyRun, in_memory, train_run, variants_named
from clearhead_lab.training.loop import LOG
from clearhead_lab.training.recipe import Recipe
from clearhead_lab.training.recipe_file import DataSettings
from clearhead_lab.training.run import MODEL_FOLDER

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""The folder of Debian's package dataset-fashion-mnist."""

FASHION_STUDY = Study(
    small=in_memory(
        Recipe(epochs=8, learning_rate=1e-3, label_smoothing=0.1), data=DataSettings(shift=2, flip=True),
        kind="vision-transformer", patch_size=4, width=128, layers=6, heads=8, mlp_width=256,
    ),
    variants=variants_named("softmax"),
)  # fmt: skip
DIGITS_STUDY = Study(
    small=in_memory(
        Recipe(epochs=60, batch_size=64, learning_rate=2e-3, warmup=3.0), data=DataSettings(shift=1),
        kind="vision-transformer", patch_size=2, width=32, layers=3, heads=4, mlp_width=64,
    ),
    variants=variants_named("softmax"),
)  # fmt: skip


def fashion_mnist(folder: Path | None) -> ImageSet:
    """Read Fashion-MNIST (Xiao, Rasul and Vollgraf 2017) from the folder, by default that of Debian's package."""
    if folder is None and not DEBIAN_FASHION_MNIST.is_dir():
        raise InputError(
            "Fashion-MNIST was not found; install Debian's package dataset-fashion-mnist, or give the folder of its "
            "four IDX files with --data"
        )
    return read_images(DEBIAN_FASHION_MNIST if folder is None else folder)


def _training_of(images: Callable[[Request], ImageSet], study: Study) -> Callable[[Request, Path], StudyRun]:
    def measure(request: Request, folder: Path) -> StudyRun:
        return train_run(
            study.recipe(request, "softmax", request.seed),
            images(request),
            folder,
            request,
            variant="softmax",
            progress=lambda step, steps, loss: request.progress(f"training, loss {loss:.3f}", step, steps),
        )

    return measure


def report(run: StudyRun, request: Request) -> Report:
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
    measure=_training_of(lambda request: fashion_mnist(request.data), FASHION_STUDY),
    report=report,
    options=frozenset({"data", "epochs"}),
)
DIGITS = Experiment(
    name="vit/digits",
    title="A vision transformer on digits",
    reproduces="the same on scikit-learn's digits, which needs no download",
    cost="1 min",
    measure=_training_of(lambda request: digits(), DIGITS_STUDY),
    report=report,
    options=frozenset({"epochs"}),
)
