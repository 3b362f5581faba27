"""Permutation errors of a whole model.

Attention alone treats its tokens as a set (Ji and Xie, theorem 1). Position codes, causal masks and position biases
break this symmetry, and the error of one layer propagates to all later ones. So the model is run on permuted tokens and
compared layer by layer.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead.theories.example import ModelOutput
from clearhead.theories.symmetry.groups import Element, random_permutations
from clearhead.theories.theory import ModelValues

FEWEST_TOKENS = 3
DRAWS = 2
NOT_MEASURED = ModelValues(
    theory="symmetry",
    question="Does the order of the tokens matter?",
    quantity="relative error when tokens are permuted (0: order does not matter)",
    control_name="an unrelated order",
    layers=(),
    whole=np.nan,
    control=np.nan,
    inputs=0,
    draws=DRAWS,
    note="Position codes, causal masks and position biases make it matter, and later layers inherit that.",
)
MOST_INPUTS = 4
AT_ONCE = 2**20
"""Number of outputs that are compared at once."""
LARGEST_OUTPUT = 2**22
"""Most numbers of the model's output that are compared; of logits of more, those of some words, drawn at random."""


def permutation_errors(run: Callable[[Any], ModelOutput], batch: Any, seed: int) -> ModelValues:
    """Permute the tokens of single inputs, run the model, and compare with its permuted outputs.

    The first inputs of the batch are used, without their padding, each under several permutations. The control is the
    error against outputs in another random order, which a model that ignores its tokens attains too.
    """
    reason = _obstacle(batch)
    if reason:
        return _not_measured(reason)

    def outputs(tokens: Any) -> list[Tensor | None]:
        """Return the output of every layer and the model's, with tokens on the axis before the last; None otherwise."""
        n = _length(tokens)
        result = run(tokens)
        layers = [out if out is not None and out.shape[-2] == n else None for out in result.attention]
        by_token = result.output.ndim == 3 and result.output.shape[1] == n
        return [*layers, _some_columns(result.output, seed) if by_token else None]

    # In functions, so that no output is held while the model computes the next: logits may be larger than the model.
    def compare(tokens: Any, original: list[Tensor | None], element: Element, other: Element) -> list[float]:
        permuted = outputs(_permute(tokens, element))
        errors = [_error(out, expected, element) for out, expected in zip(permuted, original, strict=True)]
        return [*errors, _error(permuted[-1], original[-1], other)]

    def compare_all(tokens: Any) -> list[list[float]]:
        elements = random_permutations(_length(tokens), draws=DRAWS + 1, seed=seed)
        original = outputs(tokens)
        return [compare(tokens, original, element, other) for element, other in pairwise(elements)]

    errors = [of_draw for tokens in _single_inputs(batch, MOST_INPUTS) for of_draw in compare_all(tokens)]
    if not errors:
        return _not_measured(f"inputs of fewer than {FEWEST_TOKENS} tokens")
    *layers, whole, unrelated = np.mean(errors, axis=0).tolist()
    return dataclasses.replace(
        NOT_MEASURED,
        layers=tuple(layers),
        whole=whole,
        control=unrelated,
        inputs=len(errors) // DRAWS,
        reason="" if np.isfinite(whole) else "the model's output is not one vector per token",
    )


def _some_columns(output: Tensor, seed: int) -> Tensor:
    """Return as many columns as make `LARGEST_OUTPUT`, the same for every output of the same shape: a copy."""
    width, most = output.shape[-1], max(1, LARGEST_OUTPUT * output.shape[-1] // max(1, output.numel()))
    if most >= width:
        return output
    columns = torch.randperm(width, generator=torch.Generator().manual_seed(seed))[:most].sort().values
    return output[..., columns.to(output.device)]


def _not_measured(reason: str) -> ModelValues:
    return dataclasses.replace(NOT_MEASURED, reason=reason)


def _error(actual: Tensor | None, original: Tensor | None, element: Element) -> float:
    """Return |actual - g original| / |g original|, some tokens at a time: logits may be larger than the model."""
    if actual is None or original is None:
        return float("nan")
    step = max(1, AT_ONCE * actual.shape[-2] // actual.numel())
    order = torch.split(torch.tensor(element.order, device=actual.device), step)
    differences, sizes = [], []
    for some, rows in zip(torch.split(actual, step, dim=-2), order, strict=True):
        expected = original[..., rows, :].double()
        differences.append((some.double() - expected).norm())
        sizes.append(expected.norm())
    difference, size = torch.stack(differences).norm(), torch.stack(sizes).norm()
    return float(torch.where(difference == 0, 0, difference / size))


def _obstacle(batch: Any) -> str:
    """Return why the batch has no single sequence of tokens to permute, or ""."""
    if isinstance(batch, Mapping):
        if any(name.startswith("decoder_") for name in batch):
            return "an encoder and a decoder read two sequences"
        return "" if _ids(batch) is not None else "the inputs are not tokens"
    return "" if isinstance(batch, Tensor) and batch.ndim == 3 else "the inputs are not one sequence of tokens"


def _ids(batch: Mapping[str, Any]) -> Tensor | None:
    for name in ("input_ids", "inputs_embeds"):
        if isinstance(batch.get(name), Tensor):
            ids: Tensor = batch[name]
            return ids
    return None


def _length(tokens: Any) -> int:
    if isinstance(tokens, Tensor):
        return tokens.shape[1]
    ids = _ids(tokens)
    assert ids is not None
    return ids.shape[1]


def _single_inputs(batch: Any, count: int) -> Iterator[Any]:
    """Yield inputs one by one, without padding."""
    if isinstance(batch, Tensor):
        yield from (batch[i : i + 1] for i in range(min(count, len(batch))) if batch.shape[1] >= FEWEST_TOKENS)
        return
    ids, mask = _ids(batch), batch.get("attention_mask")
    assert ids is not None
    for i in range(min(count, len(ids))):
        present = torch.ones(ids.shape[1], dtype=torch.bool) if mask is None else mask[i].bool()
        if int(present.sum()) >= FEWEST_TOKENS:
            yield {name: value[i : i + 1, present] if _by_token(value, ids) else value for name, value in batch.items()}


def _by_token(value: Any, ids: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape[:2] == ids.shape[:2]


def _permute(tokens: Any, element: Element) -> Any:
    order = torch.tensor(element.order)
    if isinstance(tokens, Tensor):
        return tokens[:, order]
    ids = _ids(tokens)
    assert ids is not None
    return {
        # Position ids belong to positions, not to tokens, so they are not permuted.
        name: value[:, order] if _by_token(value, ids) and name != "position_ids" else value
        for name, value in tokens.items()
    }
