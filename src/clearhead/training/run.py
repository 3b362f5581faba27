"""A run of a recipe: its data, model and task put together, trained, and saved."""

import dataclasses
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clearhead.data.corpus import read_corpus
from clearhead.data.image_sets import pixel_moments, read_images
from clearhead.errors import InputError
from clearhead.models.native import KINDS, save_native
from clearhead.operators.named import operator_to_dict
from clearhead.training.augmentation import random_changes
from clearhead.training.batches import Batches, TensorBatches, TokenBatches
from clearhead.training.distributed import ALONE, Processes, whole_tensor
from clearhead.training.evaluation import measure_accuracy, measure_perplexity
from clearhead.training.loop import train
from clearhead.training.recipe_file import RecipeFile, layer_operators
from clearhead.training.tasks import Classification, Language, Task

__all__ = ["MODEL_FOLDER", "Run", "TrainedModel", "build_model", "prepare_run", "run_recipe"]

MODEL_FOLDER = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A model with its task and data, ready to be trained.

    describe: plain values that identify data and model
    """

    model: nn.Module
    task: Task
    batches: Batches
    describe: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """The result of a run: its folder, log and number of parameters."""

    folder: Path
    log: tuple[Mapping[str, Any], ...]
    parameters: int


def run_recipe(
    file: RecipeFile,
    data: Path,
    folder: Path,
    *,
    processes: Processes = ALONE,
    tensorboard: bool = False,
    progress: Callable[[int, int, float], None] | None = None,
    notice: Callable[[str], None] = warnings.warn,
) -> TrainedModel:
    """Train the model of a recipe on the data and save it in the folder. An interrupted run continues.

    The other arguments are those of `clearhead.training.loop.train`.
    """
    run = prepare_run(file, data)
    log = train(
        run.model,
        run.task,
        run.batches,
        recipe=file.recipe,
        folder=folder,
        processes=processes,
        describe=run.describe,
        tensorboard=tensorboard,
        progress=progress,
        notice=notice,
    )
    weights = {name: whole_tensor(tensor) for name, tensor in run.model.state_dict().items()}
    if processes.first:
        whole = type(run.model)(run.model.config)
        whole.load_state_dict(weights)
        save_native(whole, folder / MODEL_FOLDER)
    processes.wait()
    parameters = sum(weights[name].numel() for name, _ in run.model.named_parameters())
    return TrainedModel(folder=folder, log=tuple(log), parameters=parameters)


def prepare_run(file: RecipeFile, data: Path) -> Run:
    """Return the run of a recipe on the data. Raise InputError if they do not fit."""
    try:
        prepare = {"classification": _classification, "language": _language}[file.task]
        return prepare(file, data)
    except InputError as error:
        if data.exists() or not file.data.get:
            raise
        raise InputError(f"{error}. To get the data: {file.data.get}") from None


def build_model(file: RecipeFile, **sizes: Any) -> nn.Module:
    """Return the recipe's model with fresh weights. `sizes` are those that the data determine."""
    settings = {**sizes, **file.model}
    kind = settings.pop("kind", None)
    if kind not in KINDS:
        raise InputError(f"{file.name} has the model kind {kind!r}; expected one of {', '.join(KINDS)}")
    if "attention" in settings:
        operators = layer_operators(settings["attention"], layers=settings.get("layers", 1))
        settings["attention"] = [operator_to_dict(operator) for operator in operators]
    generator = torch.Generator().manual_seed(file.recipe.seed)
    try:
        model: nn.Module = KINDS[kind].model(KINDS[kind].from_json(settings), generator=generator)
    except TypeError as error:
        raise InputError(f"{file.name} has a bad section [model]: {error}") from None
    return model


def _describe(file: RecipeFile, model: nn.Module, contents: str) -> dict[str, Any]:
    kind = next(name for name, kind in KINDS.items() if type(model) is kind.model)
    return {
        "task": file.task,
        "model": {"kind": kind, **json.loads(json.dumps(KINDS[kind].as_json(model.config)))},
        "data": {**dataclasses.asdict(file.data), "contents": contents},
    }


def _classification(file: RecipeFile, data: Path) -> Run:
    images, recipe = read_images(data), file.recipe
    mean, spread = pixel_moments(images.train_images)
    channels, height, width = images.train_images.shape[1:]
    if height != width:
        raise InputError(f"expected square images; {images.name} has {height} x {width}")
    model = build_model(
        file, image_size=width, channels=channels, classes=images.classes, pixel_mean=mean, pixel_spread=spread
    )

    def evaluate(trained: nn.Module) -> Mapping[str, Any]:
        accuracy = measure_accuracy(trained, images.test_images, images.test_labels)
        return {"right": accuracy.right, "images": accuracy.images, "accuracy": accuracy.value}

    changes = partial(random_changes, max_pixels=file.data.shift, flip=file.data.flip)
    batches = TensorBatches(
        images.train_images,
        images.train_labels,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        augment=changes if file.data.shift or file.data.flip else None,
    )
    task = Classification(recipe, evaluate)
    return Run(model=model, task=task, batches=batches, describe=_describe(file, model, images.fingerprint()))


def _language(file: RecipeFile, data: Path) -> Run:
    corpus, recipe = read_corpus(data), file.recipe
    model = build_model(file, vocabulary=len(corpus.vocabulary))
    context: int = model.config.context  # type: ignore[union-attr, assignment]

    def evaluate(trained: nn.Module) -> Mapping[str, Any]:
        return {
            f"{split}_perplexity": measure_perplexity(trained, getattr(corpus, split), context=context)
            for split in ("valid", "test")
        }

    batches = TokenBatches(corpus.train, context=context, batch_size=recipe.batch_size, seed=recipe.seed)
    describe = _describe(file, model, corpus.fingerprint())
    return Run(model=model, task=Language(evaluate), batches=batches, describe=describe)
