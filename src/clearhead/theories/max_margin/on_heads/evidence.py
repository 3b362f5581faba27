"""Samples of one group of inputs: every claim's statistic for each head, for random heads and for random tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from clearhead.numerics.moments import Array
from clearhead.numerics.threads import one_thread_each
from clearhead.theories.max_margin import claims as c
from clearhead.theories.max_margin.on_heads.choices import OWN, RANDOM, TURNED, Choice
from clearhead.theories.max_margin.on_heads.held_out import Matrix, Place, Trial, hebbian, majority, margin, ridge
from clearhead.theories.max_margin.on_heads.other_norms import Matrices, other_cosines
from clearhead.theories.max_margin.on_heads.problems import Fit, Group, Problem, fitted
from clearhead.theories.max_margin.svm.constraints import Indices
from clearhead.theories.theory import Claim, Control, Sample

__all__ = ["Mistake", "drawn_mistakes", "group_samples"]

Numbers = Mapping[Claim, float]
OfHead = Mapping[Control | None, Sequence[Numbers]]
"""A head's statistics, under None, and those of each control by draw."""
OF_FIT = {c.RATIO: Fit.margin_ratio, c.LOW_RATIO: Fit.low_margin_ratio, c.COSINE: Fit.cosine}
RANDOM_KINDS = {RANDOM: c.RANDOM_HEAD, TURNED: c.TURNED_HEAD}
FEW, SLOW_CLAIMS = 3, (c.COSINE_SPAN, c.COSINE_NUCLEAR, c.COSINE_MAX_ENTRY)
"""Claims that take longer than all others together are compared with only `FEW` random heads."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """Random replacements of what a head selects: a token and another sequence for each sequence, and a seed."""

    tokens: Indices
    others: Indices
    seed: int


def drawn_mistakes(group: Sequence[Choice], count: int, generator: np.random.Generator) -> list[Mistake]:
    """Draw `count` mistakes. The other sequence is far enough away to belong to another input if there are several."""
    least, most = len(group) // 4 + 1, max(len(group) * 3 // 4, len(group) // 4 + 1)
    return [
        Mistake(
            np.array([generator.integers(choice.drawn) for choice in group]),
            np.roll(np.arange(len(group)), int(generator.integers(least, most + 1))),
            int(generator.integers(2**31)),
        )
        for _ in range(count)
    ]


def group_samples(
    choices: Sequence[Choice],
    before: Sequence[Choice],
    mistakes: Sequence[Mistake] | None,
    matrices: Matrices,
    *,
    everywhere: bool = False,
) -> dict[Claim, Sample]:
    """Return every claim on every head of one layer. Rules fitted on the group are tested on `before`, if any.

    Without `mistakes` (None) the only controls are the random heads of the choices. Norms other than Frobenius take far
    longer and are solved only for saturated heads, or for all heads if `everywhere`.
    """
    heads = choices[0].selected[OWN].shape[1]
    sides = choices[0].x.shape[0]
    shares = np.mean([choice.saturated[OWN][0] for choice in choices], axis=0)
    sought = [everywhere or share >= c.MOST for share in shares]
    benches = one_thread_each(lambda side: _Bench(choices, before, side), range(sides))
    own = one_thread_each(
        lambda h: benches[h % sides].own(h, mistakes, matrices.own(h) if sought[h] else None), range(heads)
    )
    drawn = matrices.random() if any(sought) and RANDOM in choices[0].selected else []
    untrained = {}
    for kind in (kind for kind in RANDOM_KINDS if kind in choices[0].selected):
        shape = choices[0].selected[kind].shape
        places = [(kind, int(draw), int(h)) for draw, h in np.ndindex(*shape)]
        found = one_thread_each(lambda place: benches[place[2] % sides].other(*place, drawn), places)
        untrained[kind] = {claim: np.array([n[claim] for n in found]).reshape(shape) for claim in found[0]}
        untrained[kind][c.SATURATION] = np.mean([choice.saturated[kind] for choice in choices], axis=0)
    return {claim: _sample(claim, own, untrained) for claim in c.CLAIMS}


def _sample(claim: Claim, own: Sequence[OfHead], untrained: Mapping[str, Mapping[Claim, Array]]) -> Sample:
    counts = {control: len(draws) for head in own for control, draws in head.items() if control is not None}
    controls = {
        control: np.array([_numbers(claim, head.get(control, ()), count) for head in own]).T
        for control, count in counts.items()
        if any(claim in numbers for head in own for numbers in head.get(control, ()))
    }
    for kind, numbers in untrained.items():
        if claim in numbers:
            drawn = numbers[claim][:FEW] if claim in SLOW_CLAIMS else numbers[claim]
            controls[RANDOM_KINDS[kind]] = np.broadcast_to(drawn, (len(drawn), len(own)))
    value = np.array([head[None][0].get(claim, np.nan) for head in own])
    return Sample(value=value, controls=controls, by_construction=claim is c.SEPARABLE)


def _numbers(claim: Claim, draws: Sequence[Numbers], count: int) -> list[float]:
    """Return the claim's number in each of `count` draws; NaN where a head has none."""
    return [numbers.get(claim, np.nan) for numbers in draws] or [np.nan] * count


class _Bench:
    """The group and the previous group in the space of one head, or of all heads."""

    def __init__(self, choices: Sequence[Choice], before: Sequence[Choice], side: int) -> None:
        self._choices = choices
        self._group = Group(choices, side)
        self._trial = Trial(self._group, Group(before, side)) if before else None
        # Compute these before threads share them.
        self._group.tokens, self._group.queries  # noqa: B018

    def other(self, kind: str, draw: int, h: int, matrices: Sequence[Array]) -> Numbers:
        """Return the statistics of an untrained head on its own selection; in other norms if matrices are given."""
        group, norm = self._group, float(self._choices[0].norms[kind][draw, h])
        fit = fitted(Problem.of(group, group.selected(kind, draw, h), group.scores(kind, draw, h), norm))
        numbers = {**_of_fit(fit), **self._held_out(None if fit is None else margin(fit), kind, draw, h)}
        if kind == RANDOM:
            few = fit is not None and draw < FEW
            numbers[c.COSINE_SPAN] = fit.cosine_in_span() if fit is not None and few else float("nan")
            numbers |= other_cosines(fit if few else None, matrices[draw]) if matrices else {}
        return numbers

    def own(self, h: int, mistakes: Sequence[Mistake] | None, matrix: Array | None) -> OfHead:
        """Return the statistics of one head of the layer and of its controls; in other norms if its matrix is given."""
        group, norm = self._group, float(self._choices[0].norms[OWN][0, h])
        selected, scores = group.selected(OWN, 0, h), group.scores(OWN, 0, h)
        saturated = {c.SATURATION: float(np.mean([choice.saturated[OWN][0, h] for choice in self._choices]))}
        fit = fitted(Problem.of(group, selected, scores, norm))
        if fit is None:
            # The head's matrix separates the tokens that it selects, but by less than rounding error.
            return {None: [saturated]}
        own = {
            **saturated,
            **_of_fit(fit),
            **self._held_out(margin(fit), OWN, 0, h),
            c.SEPARABLE: float(fit.separates),
            c.COSINE_SPAN: fit.cosine_in_span(),
            **({} if matrix is None else other_cosines(fit, matrix)),
        }
        better = self._better(fit, h)
        if better is not None:
            own[c.LOCAL] = float(better[fit.supports()].mean())
        if mistakes is None:
            return {None: [own]}
        found: dict[Control | None, list[Numbers]] = {
            None: [own],
            c.HEBBIAN: [{c.COSINE: fit.hebbian_cosine(), **self._held_out(hebbian(fit.problem), OWN, 0, h)}],
            c.RIDGE: [self._held_out(ridge(fit.problem), OWN, 0, h)],
            c.MAJORITY: [self._held_out(majority(fit.problem), OWN, 0, h)],
        }
        if better is not None:
            count = len(fit.supports())
            found[c.EVERY_TOKEN] = [{c.LOCAL: float(better.mean())}]
            drawn = [np.random.default_rng(m.seed).choice(better, size=count, replace=False) for m in mistakes]
            found[c.ANY_TOKENS] = [{c.LOCAL: float(sample.mean())} for sample in drawn]
        for mistake in mistakes:
            for control, problem in self._mistaken(fit.problem, mistake, h).items():
                wrong = fitted(problem)
                rule = None if wrong is None else margin(wrong)
                numbers = {c.SEPARABLE: float(wrong is not None), **_of_fit(wrong), **self._held_out(rule, OWN, 0, h)}
                found.setdefault(control, []).append(numbers)
        return found

    def _mistaken(self, right: Problem, mistake: Mistake, h: int) -> dict[Control, Problem]:
        """Return problems in which tokens, positions or queries are not the head's."""
        group, norm, at = self._group, right.norm, right.selected - self._group.start
        scores = group.scores(OWN, 0, h)
        places = np.array([choice.places[token] for choice, token in zip(self._choices, at, strict=True)])
        nearest = [
            np.abs(choice.places[: choice.drawn] - place).argmin()
            for choice, place in zip(self._choices, places[mistake.others], strict=True)
        ]
        pulls = np.stack([choice.pull[h] for choice in self._choices])[mistake.others]
        other_scores = np.einsum("jc,jc->j", group.x, pulls[group.sequence])
        return {
            c.OTHER_TOKENS: Problem.of(group, group.start + mistake.tokens, scores, norm),
            c.OTHER_PLACES: Problem.of(group, group.start + np.array(nearest), scores, norm),
            c.OTHER_QUERIES: Problem.of(group, right.selected, other_scores, norm, order=mistake.others),
        }

    def _held_out(self, rule: Matrix | Place | None, kind: str, draw: int, h: int) -> Numbers:
        return {} if self._trial is None else {c.HELD_OUT: self._trial.share_right(rule, kind, draw, h)}

    def _better(self, fit: Fit, h: int) -> Array | None:
        """Return for every constraint whether the loss falls more towards the selected token than towards the other."""
        gains = [choice.gains[h] for choice in self._choices if choice.gains is not None]
        if not gains:
            return None
        of_tokens, problem = np.concatenate(gains), fit.problem
        return np.asarray(of_tokens[problem.selected[problem.sequence]] > of_tokens[problem.rows], dtype=np.float64)


def _of_fit(fit: Fit | None) -> dict[Claim, float]:
    return {claim: float("nan") if fit is None else number(fit) for claim, number in OF_FIT.items()}
