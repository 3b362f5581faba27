"""An evaluation under attacks as one HTML page without scripts: no network and no other file.

Its images are PNG files (ISO/IEC 15948, colour types 0 and 2, 8 bits), written without an image library.
"""

import base64
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from torch import Tensor

from clearhead.errors import InputError
from clearhead.report.html import page_file, page_policy, page_style, page_template
from clearhead.report.wording import number
from clearhead.shapes import Float
from clearhead_lab.robustness.attack_chart import attack_chart
from clearhead_lab.robustness.attack_words import (
    accuracy_rows,
    attack_headline,
    attacked,
    budget_unit,
    corruptions_sentence,
    counted,
    further_measures,
    interval_text,
    ordered_sanity,
    percent,
    sanity_counts,
    trust_sentence,
)
from clearhead_lab.robustness.record import Robustness
from clearhead_lab.robustness.results import Example, budget_text

LARGEST_SIDE = 256
"""Pixels of an image in each direction; of larger images, only every second, third, ... pixel is shown."""
TINY_SIDE = 64
"""Images up to this side are enlarged with visible pixels."""
MOST_BYTES = 1_500_000
"""Size of all images on the page."""
MISCLASSIFIED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picture:
    """An example on the page: addresses of its three images, their size, and its classes in words."""

    original: str
    change: str
    attacked: str
    size: tuple[int, int]
    label: str
    before: str
    after: str
    fooled: bool

    @property
    def bytes(self) -> int:
        """Size on the page."""
        return len(self.original) + len(self.change) + len(self.attacked)


def render_attack(record: Robustness) -> str:
    """Return the evaluation as the text of an HTML file. Every string is escaped, and no script can run."""
    style = f"{page_style()}{page_file('attack.css', __package__)}"
    factor = _magnification(record.examples)
    stride = _stride(record.examples)
    pictures = _pictures(record.examples, factor, stride)
    return page_template("attack.html.j2", __package__).render(
        record=record,
        headline=attack_headline(record),
        trust=trust_sentence(record),
        attacked=attacked(record),
        rows=accuracy_rows(record),
        budgets=[budget_text(eps) for eps in record.budgets],
        unit=budget_unit(record),
        chart=attack_chart(record),
        corrupted=record.corrupted_accuracy(),
        corruptions=corruptions_sentence(record),
        corruption_rows=_corruption_rows(record),
        corruption_errors={} if record.corruption_comparison is None else record.corruption_comparison.by_corruption,
        measures=further_measures(record),
        sanity=ordered_sanity(record),
        sanity_counts=sanity_counts(record),
        pictures=pictures,
        tiny=all(max(picture.size) <= TINY_SIDE for picture in pictures),
        stride=stride,
        factor=number(factor),
        settings=_settings(record),
        percent=percent,
        interval=interval_text,
        counted=counted,
        style=Markup(style),
        policy=page_policy(style=style),
    )


def _corruption_rows(record: Robustness) -> list[tuple[str, tuple[float, ...], float]]:
    """Return every corruption with its accuracies by severity and their mean."""
    return [(name, values, sum(values) / len(values)) for name, values in record.corruptions.items() if values]


def _magnification(examples: tuple[Example, ...]) -> float:
    """Return the factor by which changes are shown: the largest whole one for which all are visible without clipping.

    A change is added to medium grey, so that it may be at most a half. If changes are larger, they shrink.
    """
    largest = max((float((e.attacked - e.image).abs().max()) for e in examples), default=0.0)
    factor = 0.5 / largest if largest else 1.0
    return float(math.floor(factor)) if factor >= 1 else factor


def _stride(examples: tuple[Example, ...]) -> int:
    sides = [side for example in examples for side in example.image.shape[-2:]]
    return math.ceil(max(sides, default=1) / LARGEST_SIDE)


def _pictures(examples: tuple[Example, ...], factor: float, stride: int) -> list[_Picture]:
    """Return the first examples that fit on the page, at least one."""
    pictures: list[_Picture] = []
    size = 0
    for example in examples:
        image, changed = (_visible(pixels, stride) for pixels in (example.image, example.attacked))
        picture = _Picture(
            original=png_address(image),
            change=png_address(0.5 + factor * (changed - image)),
            attacked=png_address(changed),
            size=(image.shape[2], image.shape[1]),
            label=str(example.label),
            before=_predicted(example.before),
            after=_predicted(example.after),
            fooled=example.after not in (example.label, MISCLASSIFIED),
        )
        size += picture.bytes
        if pictures and size > MOST_BYTES:
            break
        pictures.append(picture)
    return pictures


def _visible(pixels: Tensor, stride: int) -> Tensor:
    """Return the pixels that are shown, in grey if the channels are not those of a colour image."""
    pixels = pixels.double()[:, ::stride, ::stride]
    return pixels if pixels.shape[0] in (1, 3) else pixels.mean(dim=0, keepdim=True)


def _predicted(predicted: int) -> str:
    return "misclassified before the attack" if predicted == MISCLASSIFIED else f"predicted {predicted}"


def _settings(record: Robustness) -> dict[str, str]:
    """Return everything that the numbers depend on, and the largest change that every attack made."""
    changes = {
        f"largest change by {result.title} at {budget_text(result.eps)}": (
            f"{number(result.largest_change)} = {number(255 * result.largest_change)}/255, "
            f"{counted(len(result.predicted), 'image')}"
        )
        for result in record.results
        if result.largest_change
    }
    names = {"model": record.model, "data": record.data, "suite": record.suite, "protocol": record.protocol}
    return {**names, **dict(_flat("", record.settings)), **changes}


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield nested settings with their names joined, as in "attacks, pgd, steps"."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}, ", value)
        else:
            yield f"{prefix}{name}", str(value)


GREY, COLOUR = 0, 2


def png_bytes(pixels: Float[Tensor, "c y x"]) -> bytes:
    """Return a grey (c = 1) or colour (c = 3) image with pixels from 0 to 1 as the bytes of a PNG file.

    Pixels are clipped to that range and rounded to multiples of 1/255.
    """
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3) or 0 in pixels.shape:
        raise InputError(f"expected pixels (c, y, x) with 1 or 3 channels; got {tuple(pixels.shape)}")
    channels, height, width = pixels.shape
    rounded = (pixels.detach().cpu().double().clamp(0, 1) * 255).round().permute(1, 2, 0)
    rows = rounded.numpy().astype(np.uint8).reshape(height, width * channels)
    header = struct.pack(">IIBBBBB", width, height, 8, GREY if channels == 1 else COLOUR, 0, 0, 0)
    data = zlib.compress(_filtered(rows, channels), level=9)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def png_address(pixels: Float[Tensor, "c y x"]) -> str:
    """Return the same as a data: address for HTML."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(pixels)).decode("ascii")


def _filtered(rows: npt.NDArray[np.uint8], channels: int) -> bytes:
    """Return the rows, each after its filter's number: as it is, minus the pixel to the left, or minus that above.

    Each row has the filter with the smallest sum of absolute differences, which compresses best as a rule.
    """
    left, above = np.zeros_like(rows), np.zeros_like(rows)
    left[:, channels:] = rows[:, :-channels]
    above[1:] = rows[:-1]
    choices = np.stack([rows, rows - left, rows - above])
    best = np.abs(choices.view(np.int8).astype(np.int32)).sum(axis=2).argmin(axis=0)
    chosen = choices[best, np.arange(len(rows))]
    return np.concatenate([best[:, None].astype(np.uint8), chosen], axis=1).tobytes()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
