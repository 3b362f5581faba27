"""Samples of several heads or windows put together."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.numerics.moments import Array
from clearhead.shapes import Bool
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.theory import Claim, Control, Sample

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
    return {
        claim: _combined(
            [sample],
            value=np.repeat(sample.value, groups),
            controls={control: np.repeat(draws, groups, axis=-1) for control, draws in sample.controls.items()},
            predicted=None if sample.predicted is None else np.repeat(sample.predicted, groups),
            shared=groups,
            covered=None if sample.covered is None else np.repeat(sample.covered, groups),
        )
        for claim, sample in samples.items()
    }


def average(samples: Sequence[Sample]) -> Sample:
    """Return the mean over the windows of one input, each number over the windows in which it is defined."""
    predicted = [sample.predicted for sample in samples if sample.predicted is not None]
    return _combined(
        samples,
        value=_mean([sample.value for sample in samples]),
        controls={control: _mean([s.controls[control] for s in samples]) for control in samples[0].controls},
        predicted=_mean(predicted) if predicted else None,
        covered=None
        if all(s.covered is None for s in samples)
        else np.logical_and.reduce([_covered(s) for s in samples]),
    )


def _concatenate(samples: Sequence[Sample]) -> Sample:
    predicted = [sample.predicted for sample in samples if sample.predicted is not None]
    return _combined(
        samples,
        value=np.concatenate([sample.value for sample in samples]),
        controls={
            control: np.concatenate([sample.controls[control] for sample in samples], axis=-1)
            for control in samples[0].controls
        },
        predicted=np.concatenate(predicted) if predicted else None,
        covered=None if all(s.covered is None for s in samples) else np.concatenate([_covered(s) for s in samples]),
    )


def _covered(sample: Sample) -> NDArray[np.bool_]:
    return np.ones(sample.value.shape, dtype=bool) if sample.covered is None else sample.covered


def _combined(
    samples: Sequence[Sample],
    *,
    value: Array,
    controls: Mapping[Control, Array],
    predicted: Array | None,
    covered: NDArray[np.bool_] | None,
    shared: int | None = None,
) -> Sample:
    return Sample(
        value=value,
        controls=controls,
        predicted=predicted,
        shared=max(sample.shared for sample in samples) if shared is None else shared,
        covered=covered,
        by_construction=all(sample.by_construction for sample in samples),
        caveat=next((sample.caveat for sample in samples if sample.caveat is not None), None),
    )


def _mean(windows: Sequence[Array]) -> Array:
    stacked = np.stack(windows)
    finite = np.isfinite(stacked)
    count = finite.sum(axis=0)
    total = np.where(finite, stacked, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
