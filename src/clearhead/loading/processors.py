"""Images and sound as batches of a model's arguments, by the model's own processor."""

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.loading.folder_checks import check_processor
from clearhead.loading.huggingface import OPTIONS, PROCESSOR_FILES, offline, quiet
from clearhead.loading.objects import LoadError, error_line, first_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """Functions that make batches of a model's arguments.

    images: from PIL images
    audio: from waveforms at the rate that `rate()` returns, in samples per second
    """

    images: Callable[[Sequence[Any]], Mapping[str, Tensor]]
    audio: Callable[[Sequence[Any]], Mapping[str, Tensor]]
    rate: Callable[[], int]


def folder_processor(folder: Path, model: nn.Module) -> Processor | None:
    """Return the processor of a Hugging Face folder, loaded at the first call; None if the folder has none."""
    if not any((folder / name).is_file() for name in PROCESSOR_FILES):
        return None

    @functools.cache
    def load(kind: str) -> Any:
        transformers: Any = importlib.import_module("transformers")
        # The other backend needs torchvision.
        backend = {"backend": "pil"} if kind == "AutoImageProcessor" else {}
        try:
            check_processor(folder, PROCESSOR_FILES)
            with offline(), quiet(transformers):
                return getattr(transformers, kind).from_pretrained(folder, **backend, **OPTIONS)
        except LoadError:
            raise
        except Exception as error:
            media = "images" if kind == "AutoImageProcessor" else "sound"
            raise LoadError(
                f"{folder} has no processor for {media} that can be loaded: {first_line(error)}; give its inputs with "
                "--batches"
            ) from error

    return _processor(load, model)


def object_processor(made: Any, model: nn.Module) -> Processor:
    """Return the same for a processor that a function returned with its model."""
    return _processor(lambda kind: made, model)


def _processor(load: Callable[[str], Any], model: nn.Module) -> Processor:
    def encode_images(images: Sequence[Any]) -> Mapping[str, Tensor]:
        return _called(load("AutoImageProcessor"), "images", model, images=list(images))

    def encode_audio(waves: Sequence[Any]) -> Mapping[str, Tensor]:
        extractor = load("AutoFeatureExtractor")
        # Whisper's extractor cuts and pads every input to the length that the model takes.
        padding = {} if hasattr(extractor, "chunk_length") else {"padding": True}
        return _called(extractor, "sound", model, raw_speech=list(waves), sampling_rate=rate(), **padding)

    def rate() -> int:
        found = getattr(load("AutoFeatureExtractor"), "sampling_rate", None)
        if not isinstance(found, int) or found < 1:
            raise LoadError("the model's processor has no sampling rate: it does not read sound; give --batches")
        return found

    return Processor(images=encode_images, audio=encode_audio, rate=rate)


def _called(processor: Any, media: str, model: nn.Module, **inputs: Any) -> dict[str, Tensor]:
    first = inputs.pop("raw_speech", None)
    try:
        made = processor(*([] if first is None else [first]), return_tensors="pt", **inputs)
        batch = {name: value for name, value in dict(made).items() if isinstance(value, Tensor)}
    except Exception as error:
        raise LoadError(f"the model's processor fails on the {media}: {error_line(error)}") from error
    start = getattr(getattr(model, "config", None), "decoder_start_token_id", None)
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False) and batch and start is not None:
        count = len(next(iter(batch.values())))
        batch["decoder_input_ids"] = torch.full((count, 1), start)
    return batch
