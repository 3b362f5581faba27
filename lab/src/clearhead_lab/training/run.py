"""A run of a recipe: its data, model and task put together, trained, and saved."""

import dataclasses
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.loading.objects import first_line
from clearhead.operators.named import operator_to_dict
from clearhead_lab.data.augmentation import image_transform
from clearhead_lab.data.batches import Batches, SampleBatches, all_samples
from clearhead_lab.data.corpus import read_corpus
from clearhead_lab.data.image_sets import ImageSet, pixel_moments, read_images
from clearhead_lab.data.samples import Samples, open_samples
from clearhead_lab.models.catalogue import build, config_of
from clearhead_lab.models.image_sizes import check_sizes
from clearhead_lab.models.native import KINDS, save_native
from clearhead_lab.models.transformer_block import config_as_json, config_from_json
from clearhead_lab.training.batches import TensorBatches, TokenBatches, random_changes
from clearhead_lab.training.distributed import ALONE, Processes, whole_tensor
from clearhead_lab.training.evaluation import as_pixels, measure_classifier, measure_overlap, measure_perplexity
from clearhead_lab.training.loop import train
from clearhead_lab.training.recipe_file import RecipeFile, layer_operators
from clearhead_lab.training.tasks import Classification, Evaluate, Language, Segmentation, Task

MODEL_FOLDER = "model"
EVALUATED_AT_ONCE = 250
"""Images in a batch of an evaluation."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How images are decoded: the number of worker processes, and what happens at a corrupt one."""

    workers: int = 0
    on_corrupt: Literal["refuse", "skip"] = "refuse"
    notice: Callable[[str], None] = warnings.warn


DEFAULT_LOADING = Loading()


def run_recipe(
    file: RecipeFile,
    data: Path | ImageSet,
    folder: Path,
    *,
    processes: Processes = ALONE,
    loading: Loading = DEFAULT_LOADING,
    after_epoch: Evaluate | None = None,
    tensorboard: bool = False,
    progress: Callable[[int, int, float], None] | None = None,
    notice: Callable[[str], None] = warnings.warn,
) -> TrainedModel:
    """Train the model of a recipe on the data and save it in the folder. An interrupted run continues.

    data: where they are, or images that are in memory already
    loading: how images are decoded; it changes no result
    after_epoch: measures the model after every epoch, for the log, in addition to the evaluation of the task

    The other arguments are those of `clearhead_lab.training.loop.train`.
    """
    run = prepare_run(file, data, loading=loading)
    kind = type(run.model)  # sharding changes the class of the model
    if after_epoch is not None:
        evaluate = run.task.evaluate
        run.task.evaluate = lambda model: {**evaluate(model), **after_epoch(model)}
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
        whole = kind(run.model.config)
        whole.load_state_dict(weights)
        save_native(whole, folder / MODEL_FOLDER)
    processes.wait()
    parameters = sum(weights[name].numel() for name, _ in run.model.named_parameters())
    return TrainedModel(folder=folder, log=tuple(log), parameters=parameters)


def prepare_run(file: RecipeFile, data: Path | ImageSet, *, loading: Loading = DEFAULT_LOADING) -> Run:
    """Return the run of a recipe on the data. Raise InputError if they do not fit."""
    if isinstance(data, ImageSet):
        return _images_in_memory(file, data)
    try:
        if file.task == "language":
            return _language(file, data)
        if file.task == "classification" and not file.data.image_size:
            return _images_in_memory(file, read_images(data))
        return _samples(file, data, loading)
    except InputError as error:
        if data.exists() or not file.data.get:
            raise
        raise InputError(f"{error}. To get the data: {file.data.get}") from None


def held_out_images(file: RecipeFile, data: Path, count: int) -> Tensor:
    """Return the first images that a classification recipe evaluates on, (count, c, y, x), from 0 to 1."""
    if not file.data.image_size:
        return as_pixels(read_images(data).test_images[:count])
    transform = image_transform(file.data.augmentation, file.data.image_size, train=False)
    images, _ = next(all_samples(open_held_out(data, target=file.data.target), batch_size=count, transform=transform))
    return images


def build_model(file: RecipeFile, **sizes: Any) -> nn.Module:
    """Return the recipe's model with fresh weights. `sizes` are those of the data, which replace the recipe's."""
    settings = {**file.model, **sizes}
    kind, name = settings.pop("kind", None), settings.pop("name", None)
    if name is None and kind not in KINDS:
        raise InputError(f"{file.name} has the model kind {kind!r}; expected one of {', '.join(KINDS)}")
    for attention, layers in (("attention", "layers"), ("decoder_attention", "decoder_layers")):
        if attention in settings:
            count = settings.get(layers) or (1 if name is None else getattr(config_of(name), layers))
            check_sizes(layers=count)
            operators = layer_operators(settings[attention], layers=count)
            settings[attention] = [operator_to_dict(operator) for operator in operators]
    generator = torch.Generator().manual_seed(file.recipe.seed)
    try:
        if name is not None:
            return build(name, generator=generator, **settings)
        model: nn.Module = KINDS[kind].model(config_from_json(KINDS[kind].config, settings), generator=generator)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"{file.name} has a bad section [model]: {first_line(error)}") from None
    return model


def _describe(file: RecipeFile, model: nn.Module, contents: str) -> dict[str, Any]:
    kind = next(name for name, kind in KINDS.items() if type(model) is kind.model)
    settings = dataclasses.asdict(file.data)
    for name in ("get", "rows"):  # they change no result
        del settings[name]
    if settings["repeats"] == 1:  # left out, so that runs without this setting continue
        del settings["repeats"]
    return {
        "task": file.task,
        "model": {"kind": kind, **json.loads(json.dumps(config_as_json(model.config)))},
        "data": {**settings, "contents": contents},
    }


def _images_in_memory(file: RecipeFile, images: ImageSet) -> Run:
    recipe = file.recipe
    if file.data.take:
        taken = slice(file.data.take)
        images = dataclasses.replace(
            images, train_images=images.train_images[taken], train_labels=images.train_labels[taken]
        )
    mean, spread = pixel_moments(images.train_images)
    channels, height, width = images.train_images.shape[1:]
    if height != width:
        raise InputError(f"expected square images; {images.name} has {height} x {width}")
    model = build_model(
        file, image_size=width, channels=channels, classes=images.classes, pixel_mean=mean, pixel_spread=spread
    )

    def evaluate(trained: nn.Module) -> Mapping[str, Any]:
        parts = zip(
            torch.split(images.test_images, EVALUATED_AT_ONCE),
            torch.split(images.test_labels, EVALUATED_AT_ONCE),
            strict=True,
        )
        return measure_classifier(trained, ((as_pixels(pixels), labels) for pixels, labels in parts))

    changes = partial(random_changes, max_pixels=file.data.shift, flip=file.data.flip)
    batches = TensorBatches(
        images.train_images,
        images.train_labels,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        augment=changes if file.data.shift or file.data.flip else None,
        repeats=file.data.repeats,
    )
    task = Classification(recipe, evaluate)
    return Run(model=model, task=task, batches=batches, describe=_describe(file, model, images.fingerprint()))


def _samples(file: RecipeFile, data: Path, loading: Loading) -> Run:
    """Return the run on images that are decoded as they are needed, with labels or masks."""
    recipe, size = file.recipe, file.data.image_size
    if size < 1:
        raise InputError(f"{file.name} has no image_size in [data]; images from files need one")
    options: dict[str, Any] = {"target": file.data.target, "border_class": file.data.border_class}
    training = open_samples(data, split="train", **options)
    held_out = open_held_out(data, **options)
    if held_out.classes > training.classes:
        raise InputError(f"{data} has {training.classes} classes for training and {held_out.classes} for evaluation")
    model = build_model(file, image_size=size, classes=training.classes)
    decoding: dict[str, Any] = {
        "workers": loading.workers, "on_corrupt": loading.on_corrupt, "notice": loading.notice,
    }  # fmt: skip
    batches = SampleBatches(
        training,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        transform=image_transform(file.data.augmentation, size, train=True),
        repeats=file.data.repeats,
        **decoding,
    )

    def evaluate(trained: nn.Module) -> Mapping[str, Any]:
        transform = image_transform(file.data.augmentation, size, train=False)
        # Masks have a number for each pixel and class, so that many images at once would not fit into memory.
        at_once = EVALUATED_AT_ONCE if file.task == "classification" else recipe.batch_size
        stream = all_samples(held_out, batch_size=at_once, transform=transform, **decoding)
        if file.task == "classification":
            return measure_classifier(trained, stream)
        overlap = measure_overlap(trained, stream, classes=training.classes)
        return {
            "mean_iou": overlap.mean,
            "mean_iou_of_majority": overlap.of_majority().mean,
            "mean_accuracy": overlap.mean_accuracy,
            "pixel_accuracy": overlap.pixel_accuracy,
        }

    task = Classification(recipe, evaluate) if file.task == "classification" else Segmentation(evaluate)
    contents = f"{training.fingerprint()} {held_out.fingerprint()}"
    return Run(model=model, task=task, batches=batches, describe=_describe(file, model, contents))


def open_held_out(data: Path, **options: Any) -> Samples:
    """Open the validation split, or the test split where there is none."""
    try:
        return open_samples(data, split="val", **options)
    except InputError as error:
        try:
            return open_samples(data, split="test", **options)
        except InputError:
            raise error from None


def _language(file: RecipeFile, data: Path) -> Run:
    if file.data.repeats != 1:
        raise InputError(f"{file.name} has repeats = {file.data.repeats} in [data]; text has no augmentation to repeat")
    corpus, recipe = read_corpus(data), file.recipe
    model = build_model(file, vocabulary=len(corpus.vocabulary))
    context: int = model.config.context  # type: ignore[union-attr, assignment]

    def evaluate(trained: nn.Module) -> Mapping[str, Any]:
        return {
            f"{split}_perplexity": measure_perplexity(trained, getattr(corpus, split), context=context)
            for split in ("valid", "test")
        }

    tokens = corpus.train[: file.data.take] if file.data.take else corpus.train
    batches = TokenBatches(tokens, context=context, batch_size=recipe.batch_size, seed=recipe.seed)
    describe = _describe(file, model, corpus.fingerprint())
    return Run(model=model, task=Language(evaluate), batches=batches, describe=describe)
