"""The keys of one example in feature space, and every claim's statistic for the head's values and for controls."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.numerics.moments import Array
from clearhead.shapes import Float
from clearhead.theories.kernel_pca import claims as c
from clearhead.theories.kernel_pca.cka import Gram, biased_cka, gaussian_gram, linear_gram, unbiased_cka
from clearhead.theories.kernel_pca.controls import (
    OTHER_HEADS,
    OTHER_KEYS,
    PERMUTED,
    RANDOM_VALUES,
    with_other_keys,
)
from clearhead.theories.kernel_pca.loss import Queries, explained_fraction, log_output_square, log_true_loss
from clearhead.theories.kernel_pca.published import (
    axes_not_orthogonal,
    eigenvector_residual,
    gammas,
    matched_cosine,
    mean_of_weighted_values,
    participation,
    published_values,
    standardised,
    token_cosine,
    top_eigenvalues,
)
from clearhead.theories.kernel_pca.space import KeySpace, Principal
from clearhead.theories.kernel_pca.spans import span_of, subspace_overlap
from clearhead.theories.theory import Claim, Control, Role, Sample

Statistics = Mapping[Claim, Tensor]
"""A statistic's numbers by draw and key head, or by draw, key head and query head among those that share keys."""
LOG_10 = math.log(10)
BY_QUERY = {c.EXPLAINED, c.TRUE_LOSS, c.LOSS, c.LOSS_QUERY, c.LOSS_OUTPUT}
"""Claims that depend on queries, so that they differ between query heads that share keys."""

INVARIANT = {(c.LOCALISATION, PERMUTED)}
"""Statistics that a control cannot change: the order of the tokens does not enter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The parts of an example that do not depend on the values: keys, principal axes, queries."""

    space: KeySpace
    principal: Principal
    queries: Queries

    def samples(
        self,
        claims: Collection[Claim],
        values: Mapping[Control | None, Float[Tensor, "_ h m e"]],
        *,
        fewest_keys: int,
    ) -> dict[Claim, Sample]:
        """Return every claim's sample: of the head's own values, of the controls, and of the theorem's values.

        Statistics as published are not judged, and have one draw of random values to be read with.

        values: of the heads, under None, and of every control by draw
        fewest_keys: other heads that the control by their keys needs
        """
        samples: dict[Claim, Sample] = {}
        predicted = self._predictions()
        for measure, together in _MEASURES.items():
            selected = [claim for claim in together if claim in claims]
            if not selected:
                continue
            wanted = dict(values)
            if selected[0].role is Role.PUBLISHED:
                wanted = {key: draws[:1] for key, draws in values.items() if key in (None, RANDOM_VALUES)}
            numbers = measure(self, torch.cat(list(wanted.values())))
            counts = {control: len(draws) for control, draws in wanted.items() if control is not None}
            for claim in selected:
                samples[claim] = make_sample(
                    claim,
                    self._by_head(claim, numbers[claim]),
                    counts,
                    fewest_keys=fewest_keys,
                    shared=1 if claim in BY_QUERY else self._group_size,
                    predicted=self._by_head(claim, predicted[claim]()) if claim in predicted else None,
                )
        return samples

    def _by_head(self, claim: Claim, numbers: Tensor) -> Tensor:
        """Return numbers by query head; heads that share keys share numbers that do not depend on queries."""
        return numbers.flatten(-2) if claim in BY_QUERY else numbers.repeat_interleave(self._group_size, dim=-1)

    @property
    def _group_size(self) -> int:
        return self.queries.log_square.shape[-2]

    def _predictions(self) -> dict[Claim, Callable[[], Tensor]]:
        queries, principal = self.queries, self.principal
        no_axes = ~principal.known.any(dim=-1, keepdim=True)

        def explained() -> Tensor:
            return explained_fraction(queries, principal.directions).masked_fill(no_axes, torch.nan)

        def log_output() -> Tensor:
            return log_output_square(queries, principal.values) + 2 * principal.log_values.unsqueeze(-1)

        return {
            c.LOCALISATION: lambda: participation(principal.values),
            c.EXPLAINED: explained,
            c.TRUE_LOSS: lambda: log_true_loss(queries, explained()) / LOG_10,
            c.LOSS: lambda: queries.log_mean_square.exp() - log_output().exp(),
            c.LOSS_QUERY: lambda: queries.log_mean_square / LOG_10,
            c.LOSS_OUTPUT: lambda: log_output() / LOG_10,
        }


def make_sample(
    claim: Claim,
    numbers: Float[Tensor, "t h"],
    counts: Mapping[Control, int],
    *,
    fewest_keys: int,
    shared: int,
    predicted: Float[Tensor, "h"] | None = None,
) -> Sample:
    """Return the sample of a claim, given the heads' numbers and after them those of every control by draw."""
    first, *rest = torch.split(numbers, [1, *counts.values()])
    by_control = dict(zip(counts, rest, strict=True))
    # Numbers with other keys can be compared if the prediction is the same for all keys.
    if claim.predicted is not None and counts.get(OTHER_HEADS, 0) >= fewest_keys:
        by_key_head = with_other_keys(by_control[OTHER_HEADS][:, ::shared], claim.predicted)
        by_control[OTHER_KEYS] = by_key_head.repeat_interleave(shared, dim=-1)
    return Sample(
        value=_array(first[0]),
        controls={control: _array(x) for control, x in by_control.items() if (claim, control) not in INVARIANT},
        predicted=None if predicted is None else _array(predicted),
        shared=shared,
    )


def _array(numbers: Tensor) -> Array:
    array: Array = numbers.cpu().numpy()
    return array


def _of_spans(entry: Entry, v: Tensor) -> Statistics:
    span = span_of(entry.space, v)
    explained = explained_fraction(entry.queries, span)
    return {
        c.OVERLAP: subspace_overlap(entry.principal, span),
        c.EXPLAINED: explained,
        c.TRUE_LOSS: log_true_loss(entry.queries, explained) / LOG_10,
    }


def _of_axes(entry: Entry, v: Tensor) -> Statistics:
    return {
        c.MEAN: mean_of_weighted_values(entry.space, v),
        c.ORTHOGONAL: axes_not_orthogonal(entry.space, v),
        c.RESIDUAL: eigenvector_residual(entry.space, entry.principal, v),
        c.LOCALISATION: participation(v),
    }


def _of_alignment(entry: Entry, v: Tensor) -> Statistics:
    linear, gaussian = _alignments(unbiased_cka, entry.principal.values, v)
    return {c.LINEAR_CKA: linear, c.KERNEL_CKA: gaussian, c.MATCHED: matched_cosine(entry.principal, v)}


def _of_published_alignment(entry: Entry, v: Tensor) -> Statistics:
    theorem = published_values(entry.space, entry.principal)
    linear, gaussian = _alignments(biased_cka, theorem, v)
    return {
        c.TOKEN_COSINE: token_cosine(theorem, v),
        c.PUBLISHED_LINEAR_CKA: linear,
        c.PUBLISHED_KERNEL_CKA: gaussian,
    }


def _alignments(cka: Callable[[Gram, Gram], Tensor], theorem: Tensor, v: Tensor) -> Iterator[Tensor]:
    """Yield linear and Gaussian CKA with the theorem's values, draw by draw, to hold few matrices at a time."""
    for gram in (linear_gram, gaussian_gram):
        expected = gram(theorem)
        yield torch.stack([cka(gram(of_draw), expected) for of_draw in v])


def _of_gammas(entry: Entry, v: Tensor) -> Statistics:
    spread = gammas(entry.space, v)
    return {
        c.GAMMA: spread.difference.mean(dim=-1),
        c.GAMMA_DEVIATION: spread.deviation.mean(dim=-1),
        c.GAMMA_RELATIVE: spread.relative.mean(dim=-1),
        c.GAMMA_RELATIVE_DEVIATION: spread.relative_deviation.mean(dim=-1),
    }


def _of_losses(entry: Entry, v: Tensor) -> Statistics:
    of_query, of_output = entry.queries.log_mean_square, log_output_square(entry.queries, v)
    return {
        c.LOSS: of_query.exp() - of_output.exp(),
        c.LOSS_QUERY: (of_query / LOG_10).expand_as(of_output),
        c.LOSS_OUTPUT: of_output / LOG_10,
    }


def _of_spectra(entry: Entry, v: Tensor) -> Statistics:
    space, count = entry.space, v.shape[-1]
    of_keys = top_eigenvalues(entry.principal.energy, space.log_unit)
    of_standardised = standardised(space.k, scale=space.scale, sinks=space.sinks, count=count)
    spectra = {c.EIGENVALUES[name]: of_keys[name] for name in of_keys}
    spectra |= {c.STANDARDISED_EIGENVALUES[name]: of_standardised[name] for name in of_standardised}
    return {claim: number.expand(len(v), *number.shape) for claim, number in spectra.items()}


_MEASURES: Mapping[Callable[[Entry, Tensor], Statistics], tuple[Claim, ...]] = {
    _of_spans: (c.OVERLAP, c.EXPLAINED, c.TRUE_LOSS),
    _of_axes: (c.MEAN, c.ORTHOGONAL, c.RESIDUAL, c.LOCALISATION),
    _of_alignment: (c.LINEAR_CKA, c.KERNEL_CKA, c.MATCHED),
    _of_losses: (c.LOSS, c.LOSS_QUERY, c.LOSS_OUTPUT),
    _of_gammas: (c.GAMMA, c.GAMMA_DEVIATION, c.GAMMA_RELATIVE, c.GAMMA_RELATIVE_DEVIATION),
    _of_published_alignment: (c.TOKEN_COSINE, c.PUBLISHED_LINEAR_CKA, c.PUBLISHED_KERNEL_CKA),
    _of_spectra: (*c.EIGENVALUES.values(), *c.STANDARDISED_EIGENVALUES.values()),
}
"""The claims whose statistics are computed together."""
