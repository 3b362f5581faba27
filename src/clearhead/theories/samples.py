"""Samples of several heads or windows put together."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.numerics.moments import Array
from clearhead.shapes import Bool
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.theory import Claim, Sample

LONGEST, SAMPLE_SIZE = 512, 256
"""Inputs of more tokens than the first are measured on as many tokens as the second, drawn at random."""
SAMPLED = Reason(ReasonKind.SAMPLED, f"{SAMPLE_SIZE} tokens were drawn from inputs of more than {LONGEST}")


def sample_tokens(tokens: Bool[Tensor, "m"], generator: torch.Generator) -> Bool[Tensor, "m"]:
    """Return the tokens; if there are more than `LONGEST`, `SAMPLE_SIZE` of them drawn at random."""
    count = int(tokens.sum())
    if count <= LONGEST:
        return tokens
    drawn = torch.randperm(count, generator=generator)[:SAMPLE_SIZE].to(tokens.device)
    sample = torch.zeros_like(tokens)
    sample[tokens.nonzero().flatten()[drawn]] = True
    return sample


def measure_by_head(
    tokens: Bool[Tensor, "h m"], measure: Callable[[slice, Tensor], Mapping[Claim, Sample]]
) -> dict[Claim, Sample]:
    """Measure all heads at once if they share one row of tokens; otherwise each head on its own tokens."""
    if tokens.shape[0] == 1:
        return dict(measure(slice(None), tokens[0]))
    samples = [measure(slice(head, head + 1), row) for head, row in enumerate(tokens)]
    return {claim: _concatenate([sample[claim] for sample in samples]) for claim in samples[0]}


def repeat(samples: Mapping[Claim, Sample], groups: int) -> dict[Claim, Sample]:
    """Repeat per-value-head samples for the `groups` query heads that share each value head."""

    def join(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return np.repeat(parts[0], groups, axis=-1)

    return {
        claim: dataclasses.replace(_combined([sample], join, join), shared=groups) for claim, sample in samples.items()
    }


def average(samples: Sequence[Sample]) -> Sample:
    """Return the mean over the windows of one input, each number over the windows in which it is defined."""
    return _combined(samples, _mean, np.logical_and.reduce)


def _concatenate(samples: Sequence[Sample]) -> Sample:
    def join(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate(parts, axis=-1)

    return _combined(samples, join, join)


def _combined(
    samples: Sequence[Sample],
    join: Callable[[Sequence[Array]], Array],
    join_covered: Callable[[Sequence[NDArray[np.bool_]]], NDArray[np.bool_]],
) -> Sample:
    """Return one sample whose numbers are those of all samples, joined."""
    predicted = [sample.predicted for sample in samples if sample.predicted is not None]
    sizes = [np.zeros(s.value.shape) if s.size is None else s.size for s in samples]
    covered = [np.ones(s.value.shape, dtype=bool) if s.covered is None else s.covered for s in samples]
    return Sample(
        value=join([sample.value for sample in samples]),
        controls={control: join([s.controls[control] for s in samples]) for control in samples[0].controls},
        predicted=join(predicted) if predicted else None,
        shared=max(sample.shared for sample in samples),
        covered=None if all(s.covered is None for s in samples) else join_covered(covered),
        size=None if all(s.size is None for s in samples) else join(sizes),
        by_construction=all(sample.by_construction for sample in samples),
        caveat=next((sample.caveat for sample in samples if sample.caveat is not None), None),
    )


def _mean(windows: Sequence[Array]) -> Array:
    stacked = np.stack(windows)
    finite = np.isfinite(stacked)
    count = finite.sum(axis=0)
    total = np.where(finite, stacked, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
