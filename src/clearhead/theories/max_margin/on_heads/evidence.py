"""Samples of one group of inputs: every claim's statistic for each head, for random heads and for random tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from clearhead.numerics.moments import Array
from clearhead.numerics.threads import one_thread_each
from clearhead.theories.max_margin import claims as c
from clearhead.theories.max_margin.on_heads.choices import MODEL, RANDOM, ROTATED, Choice
from clearhead.theories.max_margin.on_heads.held_out import (
    FixedPosition,
    Matrix,
    Trial,
    hebbian,
    majority,
    margin,
    ridge,
)
from clearhead.theories.max_margin.on_heads.other_norms import Matrices, other_cosines
from clearhead.theories.max_margin.on_heads.problems import Fit, Group, Problem, fit_problem
from clearhead.theories.max_margin.svm.constraints import Indices
from clearhead.theories.theory import Claim, Control, Sample

Statistics = Mapping[Claim, float]
HeadStatistics = Mapping[Control | None, Sequence[Statistics]]
"""A head's statistics, under None, and those of each control by draw."""
FIT_STATISTICS = {c.RATIO: Fit.margin_ratio, c.LOW_RATIO: Fit.low_margin_ratio, c.COSINE: Fit.cosine}
RANDOM_KINDS = {RANDOM: c.RANDOM_HEAD, ROTATED: c.ROTATED_HEAD}
RANDOM_CLAIMS = {
    RANDOM: (*FIT_STATISTICS, c.HELD_OUT, c.COSINE_SPAN, c.COSINE_NUCLEAR, c.COSINE_MAX_ENTRY),
    ROTATED: (*FIT_STATISTICS, c.HELD_OUT),
}
"""The claims that each kind of untrained head is measured on."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Random replacements of a head's selection: a token and another sequence for each sequence, and a seed.

    other_head: the distance to another head of the layer, in heads; 0 in a layer of one head
    """

    tokens: Indices
    sequences: Indices
    seed: int
    other_head: int


def draw_replacements(group: Sequence[Choice], count: int, generator: np.random.Generator) -> list[Replacement]:
    """Draw `count` replacements. The other sequence belongs to another input if there are several."""
    low, high = len(group) // 4 + 1, max(len(group) * 3 // 4, len(group) // 4 + 1)
    heads = group[0].selected[MODEL].shape[1]
    return [
        Replacement(
            np.array([generator.integers(choice.sample_size) for choice in group]),
            np.roll(np.arange(len(group)), int(generator.integers(low, high + 1))),
            int(generator.integers(2**31)),
            int(generator.integers(1, heads)) if heads > 1 else 0,
        )
        for _ in range(count)
    ]


def group_samples(
    choices: Sequence[Choice],
    before: Sequence[Choice],
    replacements: Sequence[Replacement] | None,
    matrices: Matrices,
    *,
    everywhere: bool = False,
    wants: Callable[..., bool],
) -> dict[Claim, Sample]:
    """Return every claim on every head of one layer. Rules fitted on the group are tested on `before`, if any.

    Without `replacements` (None) the only controls are the random heads of the choices.

    The theory covers heads with many saturated queries. So problems are solved for heads with at least
    `LEAST_SATURATION` of them in the group, and norms other than Frobenius, which take far longer, for heads with
    `REQUIRED_SATURATION`; or both for all heads if `everywhere`.

    wants: returns True if one of the given claims is wanted; other claims need not be measured
    """
    heads = choices[0].selected[MODEL].shape[1]
    sides = choices[0].x.shape[0]
    shares = np.mean([choice.saturated[MODEL][0] for choice in choices], axis=0)
    solved = [everywhere or share >= c.LEAST_SATURATION for share in shares]
    other_norms = wants(c.COSINE_NUCLEAR, c.COSINE_MAX_ENTRY)
    in_all_norms = [other_norms and (everywhere or share >= c.REQUIRED_SATURATION) for share in shares]
    if not any(solved):
        nothing = [_unsolved(share) for share in shares]
        saturations = {kind: {c.SATURATION: _saturation(choices, kind)} for kind in _random_kinds(choices)}
        return {claim: _sample(claim, nothing, saturations) for claim in c.CLAIMS}
    tested = before if wants(c.HELD_OUT) else ()
    measurements = one_thread_each(lambda side: _GroupMeasurement(choices, tested, side), range(sides))

    def model_head(h: int) -> HeadStatistics:
        if not solved[h]:
            return _unsolved(shares[h])
        matrix = matrices.model_head(h) if in_all_norms[h] else None
        statistics: HeadStatistics = measurements[h % sides].model_head(h, replacements, matrix)
        return statistics

    head_statistics = one_thread_each(model_head, range(heads))
    random_matrices = matrices.random_heads() if any(in_all_norms) and RANDOM in choices[0].selected else []

    def random_head(kind: str, draw: int, h: int) -> Statistics:
        in_other_norms = kind == RANDOM and bool(random_matrices) and (shared[kind] or in_all_norms[h])
        statistics: Statistics = measurements[h % sides].random_head(
            kind, draw, h, matrix=random_matrices[draw] if in_other_norms else None
        )
        return statistics

    shapes = {kind: choices[0].selected[kind].shape for kind in _random_kinds(choices)}
    shared = {kind: shape[1] < heads or heads == 1 for kind, shape in shapes.items()}
    untrained = {}
    for kind, shape in shapes.items():
        indices = [(kind, draw, h) for draw, h in np.ndindex(*shape) if shared[kind] or solved[h]]
        untrained[kind] = {claim: np.full(shape, np.nan) for claim in RANDOM_CLAIMS[kind]}
        for (_, draw, h), numbers in zip(indices, one_thread_each(lambda i: random_head(*i), indices), strict=True):
            for claim, number in numbers.items():
                untrained[kind][claim][draw, h] = number
        untrained[kind][c.SATURATION] = _saturation(choices, kind)
    return {claim: _sample(claim, head_statistics, untrained) for claim in c.CLAIMS}


def _unsolved(share: float) -> HeadStatistics:
    """Return the statistics of a head whose problem is not solved: the share of its queries that are saturated."""
    return {None: [{c.SATURATION: float(share)}]}


def _random_kinds(choices: Sequence[Choice]) -> list[str]:
    return [kind for kind in RANDOM_KINDS if kind in choices[0].selected]


def _saturation(choices: Sequence[Choice], kind: str) -> Array:
    share: Array = np.mean([choice.saturated[kind] for choice in choices], axis=0)
    return share


def _sample(claim: Claim, heads: Sequence[HeadStatistics], untrained: Mapping[str, Mapping[Claim, Array]]) -> Sample:
    counts: dict[Control, int] = {}
    for control, draws in ((control, draws) for head in heads for control, draws in head.items()):
        if control is not None:
            counts[control] = max(counts.get(control, 0), len(draws))
    controls = {
        control: np.array([_numbers(claim, head.get(control, ()), count) for head in heads]).T
        for control, count in counts.items()
        if any(claim in numbers for head in heads for numbers in head.get(control, ()))
    }
    for kind, numbers in untrained.items():
        if claim in numbers:
            controls[RANDOM_KINDS[kind]] = np.broadcast_to(numbers[claim], (len(numbers[claim]), len(heads)))
    value, largest = (np.array([head[None][0].get(of, np.nan) for head in heads]) for of in (claim, c.LARGEST_RATIO))
    size = largest if claim in (c.RATIO, c.LOW_RATIO) else None
    return Sample(value=value, controls=controls, by_construction=claim is c.SEPARABLE, size=size)


def _numbers(claim: Claim, draws: Sequence[Statistics], count: int) -> list[float]:
    """Return the claim's number in each of `count` draws; NaN where a head has none."""
    return [numbers.get(claim, np.nan) for numbers in draws] or [np.nan] * count


class _GroupMeasurement:
    """The group and the previous group in the space of one head, or of all heads."""

    def __init__(self, choices: Sequence[Choice], before: Sequence[Choice], side: int) -> None:
        self._choices = choices
        self._group = Group(choices, side)
        self._trial = Trial(self._group, Group(before, side)) if before else None
        # Compute these before threads share them.
        self._group.tokens, self._group.queries  # noqa: B018

    def random_head(self, kind: str, draw: int, h: int, *, matrix: Array | None) -> Statistics:
        """Return the statistics of an untrained head on its own selection; in other norms if its matrix is given."""
        group, norm = self._group, float(self._choices[0].norms[kind][draw, h])
        fit = fit_problem(Problem.of(group, group.selected(kind, draw, h), group.scores(kind, draw, h), norm))
        numbers = {**fit_statistics(fit), **self._held_out(None if fit is None else margin(fit), kind, draw, h)}
        if fit is not None and kind == RANDOM:
            numbers[c.COSINE_SPAN] = fit.cosine_in_span()
        return numbers if matrix is None else {**numbers, **other_cosines(fit, matrix)}

    def model_head(self, h: int, replacements: Sequence[Replacement] | None, matrix: Array | None) -> HeadStatistics:
        """Return the statistics of one head of the layer and of its controls; in other norms if its matrix is given."""
        group, norm = self._group, float(self._choices[0].norms[MODEL][0, h])
        selected, scores = group.selected(MODEL, 0, h), group.scores(MODEL, 0, h)
        saturated = {c.SATURATION: float(np.mean([choice.saturated[MODEL][0, h] for choice in self._choices]))}
        fit = fit_problem(Problem.of(group, selected, scores, norm))
        if fit is None:
            # The head's matrix separates the tokens that it selects, but by less than rounding error.
            return {None: [saturated]}
        statistics = {
            **saturated,
            **fit_statistics(fit),
            **self._held_out(margin(fit), MODEL, 0, h),
            c.LARGEST_RATIO: fit.largest_ratio(),
            c.SEPARABLE: float(fit.separates),
            c.COSINE_SPAN: fit.cosine_in_span(),
            **({} if matrix is None else other_cosines(fit, matrix)),
        }
        better = self._better(fit, h)
        if better is not None:
            statistics[c.LOCAL] = float(better[fit.supports()].mean())
        if replacements is None:
            return {None: [statistics]}
        by_control: dict[Control | None, list[Statistics]] = {
            None: [statistics],
            c.HEBBIAN: [{c.COSINE: fit.hebbian_cosine(), **self._held_out(hebbian(fit.problem), MODEL, 0, h)}],
        }
        if self._trial is not None:
            by_control[c.RIDGE] = [self._held_out(ridge(fit.problem), MODEL, 0, h)]
            by_control[c.MAJORITY] = [self._held_out(majority(fit.problem), MODEL, 0, h)]
        if better is not None:
            count = len(fit.supports())
            by_control[c.EVERY_TOKEN] = [{c.LOCAL: float(better.mean())}]
            samples = [np.random.default_rng(m.seed).choice(better, size=count, replace=False) for m in replacements]
            by_control[c.ANY_TOKENS] = [{c.LOCAL: float(sample.mean())} for sample in samples]
        for replacement in replacements:
            for control, problem in self._replaced_problems(fit.problem, replacement, h).items():
                replaced_fit = fit_problem(problem)
                rule = None if replaced_fit is None else margin(replaced_fit)
                numbers = {
                    c.SEPARABLE: float(replaced_fit is not None),
                    **fit_statistics(replaced_fit),
                    **self._held_out(rule, MODEL, 0, h),
                }
                by_control.setdefault(control, []).append(numbers)
            other = self._other_head(fit, h, replacement)
            if other is not None:
                numbers = {**fit_statistics(other), c.COSINE_SPAN: other.cosine_in_span()}
                by_control.setdefault(c.OTHER_HEAD, []).append(numbers)
        return by_control

    def _other_head(self, fit: Fit, h: int, replacement: Replacement) -> Fit | None:
        """Return the head's own problem with the matrix of another head; None if heads read other tokens."""
        heads = self._choices[0].selected[MODEL].shape[1]
        if self._choices[0].x.shape[0] > 1 or replacement.other_head == 0:
            return None
        other = (h + replacement.other_head) % heads
        norm = float(self._choices[0].norms[MODEL][0, other])
        return fit.with_matrix(self._group.scores(MODEL, 0, other), norm)

    def _replaced_problems(self, problem: Problem, replacement: Replacement, h: int) -> dict[Control, Problem]:
        """Return problems in which the selected tokens, their positions or the queries are replaced."""
        group, norm, tokens = self._group, problem.norm, problem.selected - self._group.start
        scores = group.scores(MODEL, 0, h)
        positions = np.array([choice.positions[token] for choice, token in zip(self._choices, tokens, strict=True)])
        nearest = [
            np.abs(choice.positions[: choice.sample_size] - position).argmin()
            for choice, position in zip(self._choices, positions[replacement.sequences], strict=True)
        ]
        pulls = np.stack([choice.pull[h] for choice in self._choices])[replacement.sequences]
        other_scores = np.einsum("jc,jc->j", group.x, pulls[group.sequence])
        return {
            c.OTHER_TOKENS: Problem.of(group, group.start + replacement.tokens, scores, norm),
            c.OTHER_POSITIONS: Problem.of(group, group.start + np.array(nearest), scores, norm),
            c.OTHER_QUERIES: Problem.of(group, problem.selected, other_scores, norm, order=replacement.sequences),
        }

    def _held_out(self, rule: Matrix | FixedPosition | None, kind: str, draw: int, h: int) -> Statistics:
        return {} if self._trial is None else {c.HELD_OUT: self._trial.accuracy(rule, kind, draw, h)}

    def _better(self, fit: Fit, h: int) -> Array | None:
        """Return for every constraint whether the loss falls more towards the selected token than towards the other."""
        gains = [choice.gains[h] for choice in self._choices if choice.gains is not None]
        if not gains:
            return None
        token_gains, problem = np.concatenate(gains), fit.problem
        return np.asarray(token_gains[problem.selected[problem.sequence]] > token_gains[problem.rows], dtype=np.float64)


def fit_statistics(fit: Fit | None) -> dict[Claim, float]:
    """Return the statistics of W that are functions of the fit; NaN without one."""
    return {claim: float("nan") if fit is None else number(fit) for claim, number in FIT_STATISTICS.items()}
