"""How far a whole model is from treating its tokens as a set.

Attention alone does (Ji and Xie, theorem 1). Position codes, causal masks and position biases break it, and what they
broke in one layer reaches all later ones: so the model is run on permuted tokens and watched, layer by layer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clearhead._capture import capture
from clearhead.audit.fidelity import tensors
from clearhead.audit.record import ModelSymmetry
from clearhead.interfaces import AttentionSpec
from clearhead.theories.symmetry.groups import Element, drawn_permutations
from clearhead.theories.symmetry.measure import relative_error

__all__ = ["model_symmetry"]

FEWEST_TOKENS = 3


def model_symmetry(
    model: nn.Module,
    batch: Any,
    run: Callable[[Any], Any],
    *,
    describe: Sequence[AttentionSpec] = (),
    allow_unseen: bool = False,
    seed: int = 0,
    inputs: int = 4,
    draws: int = 2,
) -> ModelSymmetry:
    """Permute the tokens of single inputs, run the model, and compare with the permuted outputs of the unpermuted run.

    The first `inputs` inputs of the batch, without their padding, under `draws` permutations each. `unrelated` is the
    error against outputs in another drawn order: what a model shows that does not care for its tokens at all.
    """
    reason = _obstacle(batch)
    if reason:
        return ModelSymmetry(layers=(), whole=np.nan, unrelated=np.nan, inputs=0, draws=draws, reason=reason)

    def outputs(tokens: Any) -> list[Tensor | None]:
        """The output of every layer and last the model's, tokens on the axis before the last; None if not by token."""
        n = _length(tokens)
        with capture(model, describe=describe, allow_unseen=allow_unseen) as tape:
            last = next(tensors(run(tokens)))
        layers = [heads.out if heads.out.shape[-2] == n == heads.k.shape[-2] else None for heads in tape.heads]
        return [*layers, last if last.ndim == 3 and last.shape[1] == n else None]

    errors: list[list[float]] = []
    unrelated: list[float] = []
    for tokens in _single_inputs(batch, inputs):
        elements = drawn_permutations(_length(tokens), draws=draws + 1, seed=seed)
        plain = outputs(tokens)
        for element, other in pairwise(elements):
            moved = outputs(_permuted(tokens, element))
            errors.append([_error(found, right, element) for found, right in zip(moved, plain, strict=True)])
            unrelated.append(_error(moved[-1], plain[-1], other))
    if not errors:
        reason = f"inputs of fewer than {FEWEST_TOKENS} tokens"
        return ModelSymmetry(layers=(), whole=np.nan, unrelated=np.nan, inputs=0, draws=draws, reason=reason)
    *layers, whole = np.mean(errors, axis=0).tolist()
    return ModelSymmetry(
        layers=tuple(layers),
        whole=whole,
        unrelated=float(np.mean(unrelated)),
        inputs=len(errors) // draws,
        draws=draws,
        reason="" if np.isfinite(whole) else "the model's output is not one vector per token",
    )


def _error(found: Tensor | None, right: Tensor | None, element: Element) -> float:
    if found is None or right is None:
        return float("nan")
    return float(relative_error(found, element(right)))


def _obstacle(batch: Any) -> str:
    """Why there is no one sequence of tokens to permute, if so."""
    if isinstance(batch, Mapping):
        if any(name.startswith("decoder_") for name in batch):
            return "an encoder and a decoder read two sequences"
        return "" if _ids(batch) is not None else "the inputs are no tokens"
    return "" if isinstance(batch, Tensor) and batch.ndim == 3 else "the inputs are no one sequence of tokens"


def _ids(batch: Mapping[str, Any]) -> Tensor | None:
    for name in ("input_ids", "inputs_embeds"):
        if isinstance(batch.get(name), Tensor):
            found: Tensor = batch[name]
            return found
    return None


def _length(tokens: Any) -> int:
    if isinstance(tokens, Tensor):
        return tokens.shape[1]
    ids = _ids(tokens)
    assert ids is not None
    return ids.shape[1]


def _single_inputs(batch: Any, count: int) -> Iterator[Any]:
    """Inputs one by one, without padding."""
    if isinstance(batch, Tensor):
        yield from (batch[i : i + 1] for i in range(min(count, len(batch))) if batch.shape[1] >= FEWEST_TOKENS)
        return
    ids, mask = _ids(batch), batch.get("attention_mask")
    assert ids is not None
    for i in range(min(count, len(ids))):
        seen = torch.ones(ids.shape[1], dtype=torch.bool) if mask is None else mask[i].bool()
        if int(seen.sum()) >= FEWEST_TOKENS:
            yield {name: value[i : i + 1, seen] if _by_token(value, ids) else value for name, value in batch.items()}


def _by_token(value: Any, ids: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape[:2] == ids.shape[:2]


def _permuted(tokens: Any, element: Element) -> Any:
    order = torch.tensor(element.order)
    if isinstance(tokens, Tensor):
        return tokens[:, order]
    ids = _ids(tokens)
    assert ids is not None
    return {
        # Positions that a caller gives are places, not tokens: they stay where they are.
        name: value[:, order] if _by_token(value, ids) and name != "position_ids" else value
        for name, value in tokens.items()
    }
