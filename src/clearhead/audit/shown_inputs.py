"""Inputs that the report shows: their tokens or image patches, the attention of every head, and theories' pictures.

They are the first inputs of the first batch, recorded while it is measured. Weights are kept in one byte each, and the
numbers of inputs and tokens shrink with the number of heads, so that a report stays small.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.audit.examples import make_examples
from clearhead.heads import Heads, attention_weights
from clearhead.loading.encoding import Decode
from clearhead.theories.example import Cache, Example
from clearhead.theories.theory import Picture, Theory, Windows

__all__ = ["InputRecorder", "ShownInput", "ShownLayer", "input_texts"]

MOST_INPUTS, MOST_TOKENS, FEWEST_TOKENS = 3, 48, 24
MOST_WEIGHTS = 1_500_000
"""Weights of all heads and inputs together, of one byte each."""
IMAGE_QUERIES = 12
"""Patches of an image whose attention is shown, evenly spaced."""
LONGEST_TOKEN, LONGEST_TEXT, TEXT_TOKENS = 40, 120, 48


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownLayer:
    """One layer on one input: roots of weights by head, query and key, in 255ths, and the pictures of theories."""

    layer: int
    weights: NDArray[np.uint8]
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownInput:
    """One input: its number from 1, the tokens shown of all, and its layers.

    tokens: labels of the keys shown; queries: those among them that are queries shown; length: number of all tokens
    grid: rows and columns of the patches of an image, which are the last tokens
    colours: mean red, green and blue of each patch
    """

    number: int
    tokens: tuple[str, ...]
    queries: tuple[int, ...]
    length: int
    layers: tuple[ShownLayer, ...]
    grid: tuple[int, int] | None = None
    colours: NDArray[np.uint8] | None = None


class InputRecorder:
    """Takes the attention calls of one batch, one after the other, and keeps what a report shows of its first inputs.

    heads: number of heads in all layers that are measured; layers: their numbers, or None for all
    """

    def __init__(
        self,
        batch: Any,
        theories: Sequence[Theory],
        *,
        heads: int,
        layers: Collection[int] | None = None,
        decode: Decode | None = None,
    ) -> None:
        self._batch, self._theories, self._layers, self._decode = batch, theories, layers, decode
        self._count = MOST_INPUTS
        while self._count > 1 and heads * self._count * FEWEST_TOKENS**2 > MOST_WEIGHTS:
            self._count -= 1
        self._most = min(MOST_TOKENS, max(math.isqrt(MOST_WEIGHTS // max(heads * self._count, 1)), 8))
        self._inputs: list[_Positions] = []

    def __call__(self, heads: Heads) -> None:
        """Record one call."""
        if self._layers is not None and heads.layer not in self._layers:
            return
        by_input = make_examples(heads, Windows.WHOLE, first=0, seed=0, controls=False, per_audit=Cache())
        examples = [examples[0][0] for examples in by_input[: self._count]]
        if not self._inputs:
            self._inputs = [self._positions(example, index) for index, example in enumerate(examples)]
        for example, positions in zip(examples, self._inputs, strict=False):
            weights = _weights(example, positions.queries, positions.keys)
            pictures = tuple(_pictures(example, self._theories))
            positions.layers.append(ShownLayer(layer=example.layer, weights=weights, pictures=pictures))

    def inputs(self) -> tuple[ShownInput, ...]:
        """Return what was recorded."""
        return tuple(self._shown(index, positions) for index, positions in enumerate(self._inputs))

    def _positions(self, example: Example, index: int) -> "_Positions":
        """Choose the queries and keys: the first tokens, or some patches of an image and all that they attend to."""
        visible = example.tokens.cpu()
        image = _image(self._batch, index, len(visible)) if example.windows == 1 else None
        if image is None:
            return _Positions(queries=visible[: self._most], keys=visible[: self._most], length=len(visible))
        side = math.isqrt(len(visible))
        patches = np.linspace(len(visible) - side * side, len(visible) - 1, IMAGE_QUERIES).round().astype(int)
        queries = visible[sorted({0, *patches.tolist()})]
        return _Positions(queries=queries, keys=visible, length=len(visible), grid=(side, side), image=image)

    def _shown(self, index: int, positions: "_Positions") -> ShownInput:
        keys = positions.keys.tolist()
        image, grid = positions.image, positions.grid
        return ShownInput(
            number=index + 1,
            tokens=tuple(_labels(self._batch, index, keys, positions, self._decode)),
            queries=tuple(keys.index(query) for query in positions.queries.tolist()),
            length=positions.length,
            grid=grid,
            colours=None if image is None or grid is None else _colours(image, grid),
            layers=tuple(positions.layers),
        )


@dataclass(slots=True, kw_only=True)
class _Positions:
    queries: Tensor
    keys: Tensor
    length: int
    grid: tuple[int, int] | None = None
    image: Tensor | None = None
    layers: list[ShownLayer] = field(default_factory=list)


def _weights(example: Example, queries: Tensor, keys: Tensor) -> NDArray[np.uint8]:
    """Return the attention weights between these queries and keys, of the whole softmax: their roots in 255ths.

    Roots keep the digits of the small weights that many tokens have. Positions that a layer does not have, as in
    cross-attention, are left out.
    """
    queries, keys = queries[queries < example.q.shape[-2]], keys[keys < example.k.shape[-2]]
    mask, bias = (None if x is None else x[:, queries].cpu() for x in (example.mask, example.bias))
    weights = attention_weights(
        example.q[:, queries].float().cpu(),
        example.k.float().cpu(),
        scale=example.scale,
        mask=mask,
        bias=None if bias is None else bias.float(),
        softcap=example.softcap,
        sinks=None if example.sinks is None else example.sinks.float().cpu(),
    )[..., keys]
    rounded: NDArray[np.uint8] = (weights.nan_to_num().clamp(0, 1).sqrt() * 255).round().to(torch.uint8).numpy()
    return rounded


def _pictures(example: Example, theories: Sequence[Theory]) -> Iterator[Picture]:
    for theory in theories:
        picture = None if theory.picture is None else theory.picture(example)
        if picture is not None:
            yield picture


def _labels(batch: Any, index: int, keys: Sequence[int], positions: _Positions, decode: Decode | None) -> Iterator[str]:
    """Yield the text of each token, the row and column of each patch, or the numbers of the tokens."""
    ids, grid = _token_ids(batch, index), positions.grid
    if grid is not None:
        others = positions.length - grid[0] * grid[1]
        yield from (
            f"token {key}" if key < others else f"row {(key - others) // grid[1]}, column {(key - others) % grid[1]}"
            for key in keys
        )
    elif ids is None or decode is None or len(ids) <= max(keys, default=0):
        yield from (str(key) for key in keys)
    else:
        yield from (_decoded(decode, ids[key : key + 1], LONGEST_TOKEN) for key in keys)


def input_texts(batch: Any, count: int, decode: Decode | None) -> list[str]:
    """Return the beginning of the text of every input of a batch; "" for inputs that are not tokens."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    texts = []
    for index in range(count):
        ids = _token_ids(batch, index)
        if ids is not None and isinstance(mask, Tensor) and mask[index].shape == ids.shape:
            ids = ids[mask[index].bool()]
        texts.append("" if ids is None or decode is None else _decoded(decode, ids[:TEXT_TOKENS], LONGEST_TEXT))
    return texts


def _decoded(decode: Decode, ids: Tensor, most: int) -> str:
    """Return the text of some ids, cut to `most` characters and without half characters; their numbers if that fails.

    A report without words is better than an audit without a report.
    """
    try:
        text = decode(ids.tolist())
    except Exception:
        text = " ".join(map(str, ids.tolist()))
    text = str(text)[: most + 1].encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _token_ids(batch: Any, index: int) -> Tensor | None:
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return ids[index].cpu() if isinstance(ids, Tensor) and ids.ndim == 2 and index < len(ids) else None


def _image(batch: Any, index: int, length: int) -> Tensor | None:
    """Return the image of an input whose tokens are the patches of a square, after one or no other token."""
    side = math.isqrt(length)
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else [batch]
    for value in values:
        pixels = isinstance(value, Tensor) and value.ndim == 4 and value.shape[1] in (1, 3) and index < len(value)
        if pixels and value.is_floating_point() and side >= 2 and length - side * side in (0, 1):
            image: Tensor = value[index].detach().float().cpu()
            return image
    return None


def _colours(image: Tensor, grid: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the mean colour of each patch, (rows, columns, 3), stretched to the range of the image."""
    low, high = image.min(), image.max()
    patches = torch.nn.functional.adaptive_avg_pool2d((image - low) / (high - low).clamp_min(1e-9), grid)
    colours: NDArray[np.uint8] = (patches.expand(3, -1, -1).permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()
    return colours
