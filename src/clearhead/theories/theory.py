"""A theory of attention as one object: its claims, how they are measured, what it needs and what publications say.

A theory defines what to compute on one example. The engine (`clearhead.audit.engine`) and the theory's accumulators do
the rest: batches, windows, masks, seeds, skipping, sums over examples, timing.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearhead.errors import InputError
from clearhead.numerics.moments import Array
from clearhead.theories.example import Example, ModelOutput, Random
from clearhead.theories.reason import Reason

__all__ = [
    "Claim",
    "Control",
    "Direction",
    "Dispute",
    "ModelValues",
    "Need",
    "Picture",
    "PlainWords",
    "Position",
    "Question",
    "Requirement",
    "Role",
    "Sample",
    "Samples",
    "Theory",
    "Unit",
    "Windows",
]  # fmt: skip


class Role(StrEnum):
    """The part a claim plays in its theory."""

    PRIMARY = "primary"
    """The claim that decides whether the theory holds."""
    SECONDARY = "secondary"
    """Another consequence of the theory, or a condition for it."""
    PUBLISHED = "as published"
    """A statistic that a publication is based on, computed as published; shown to let readers judge it."""
    DEPTH = "by depth"
    """A quantity by layer: it makes a curve over depth and is not judged."""


class Direction(StrEnum):
    """The side of the controls on which a theory predicts the value, where it predicts no more than that."""

    LOWER = "lower"
    HIGHER = "higher"


class Unit(StrEnum):
    """The unit of one finding of a claim."""

    HEAD = "head"
    LAYER = "layer"


class Need(StrEnum):
    """An input that a theory needs beyond q, k, v and the mask. An example has it only if a measured theory needs it.

    Gradients are no need: examples have them in an audit with a loss.
    """

    RESIDUAL_STREAM = "residual stream"
    WEIGHTS = "weights"
    """The linear maps that made queries, keys or values (`Example.queries_from` and others)."""
    BASELINE = "baseline"
    """The same model before training, as a control that decides."""


class Windows(StrEnum):
    """The way in which the windows of one input become examples. Most models have one window, the whole input."""

    EACH = "each"
    """Each window is an example, and the samples of an input's windows are averaged."""
    ONE = "one"
    """One window is drawn for each input."""
    WHOLE = "whole"
    """One example for each input, for claims on the residual stream; q, k, v are those of the first window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A condition for judging a claim: the mean of another statistic of the same head is at least `at_least`."""

    statistic: str
    at_least: float
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One measurable prediction of a theory.

    theory: the theory's title
    predicted: the statistic if the theory held exactly; None where it depends on the input, and samples
        have it, and where the theory predicts only a `direction`
    note: what to know before trusting the number
    percent: whether the statistic is a share of a whole, shown as a percentage
    size: least magnitude that rounding errors of the statistic are relative to: that of the numbers that it is a
        difference or a share of. They are relative to the statistic itself where it is larger
    undefined: why the statistic may have no value on an example that the theory applies to
    requires: a condition for judging the claim in a head
    uncovered: why the claim is measured and not judged in the heads whose samples are not `covered`
    """

    theory: str
    statistic: str
    statement: str
    formula: str
    citation: str
    predicted: float | None
    role: Role = Role.PRIMARY
    note: str = ""
    direction: Direction | None = None
    unit: Unit = Unit.HEAD
    percent: bool = False
    size: float = 0.0
    undefined: str = "the statistic is not defined on some inputs"
    requires: Requirement | None = None
    uncovered: str = "the theory makes no statement about such a head"

    def __post_init__(self) -> None:
        if self.direction is not None and self.predicted is not None:
            raise InputError(f"{self.statistic} has a predicted value and a direction; a claim has one of them")

    def closest(self, controls: Mapping[str, float], predicted: float) -> str:
        """Return the name of the control nearest to the prediction; the first if nothing is predicted; "" without."""
        known = {name: value for name, value in controls.items() if math.isfinite(value)}
        if self.direction is not None and known:
            return (min if self.direction is Direction.LOWER else max)(known, key=lambda name: known[name])
        if not known or not math.isfinite(predicted):
            return next(iter(known), "")
        return min(known, key=lambda name: abs(predicted - known[name]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A construction under which a claim should fail; its draws form the null distribution.

    fixed: whether each draw is used for all examples, as a random model would be, rather than drawn again for each.
        Draws made for each example average out, so a head is compared with their mean, example by example. Fixed draws
        differ from one another as the head may differ from them, so the head must lie outside their spread.
    """

    name: str
    fixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A claim's statistic on one example; NaN where it is undefined.

    value: by head, of size 1 for claims on layers; controls: by draw and head
    predicted: by head, the value if the theory held exactly, where the claim does not say
    shared: how many neighbouring heads share each number, as query heads that share keys and values do
    covered: by head, whether the theory makes a statement about it on this example; None if about all
    by_construction: whether the claim holds on this example whatever the head computes
    caveat: what to know of the example before trusting the number
    size: by head, as `Claim.size`, where it depends on the example
    """

    value: Array
    controls: Mapping[Control, Array]
    predicted: Array | None = None
    shared: int = 1
    covered: NDArray[np.bool_] | None = None
    by_construction: bool = False
    caveat: Reason | None = None
    size: Array | None = None


Samples = Mapping[Claim, Sample | Reason]
"""A sample for each claim of an example, or the reason why the claim was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelValues:
    """What a theory measures on runs of the whole model: a number of every layer and one of the model, with a control.

    question: what the numbers answer; quantity: what they are; note: what to know of them, in a sentence
    layers: by number; whole: of the model's output; NaN where there is no number
    control: the number of the model under the control called `control_name`
    inputs: how many were run, each `draws` times; reason: why something is missing
    """

    theory: str
    question: str
    quantity: str
    control_name: str
    layers: tuple[float, ...]
    whole: float
    control: float
    inputs: int
    draws: int
    note: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainWords:
    """A theory in one sentence for readers of another field, and what each verdict means for them; "" for no words."""

    says: str
    supported: str = ""
    no_evidence: str = ""
    contradicted: str = ""
    not_applicable: str = ""
    true_by_construction: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picture:
    """Bars for every head of one layer on one input, for the report.

    bars: by head and bar; NaN where a head has fewer
    part: the filled part of each bar; None if bars are filled as a whole
    line: a level to compare the bars with
    """

    theory: str
    title: str
    caption: str
    bars: Array
    part: Array | None = None
    line: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What one publication says on a theory, and the statistics that it is based on."""

    source: str
    says: str
    rests_on: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question on which the positions on a theory differ.

    evidence: what is known about the evidence of the positions, whatever the model
    """

    text: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispute:
    """A theory on which publications disagree. The theory's primary claim decides, on the audited model.

    evidence: what is known about the evidence of the positions, whatever the model
    """

    theory: str
    question: str
    positions: tuple[Position, ...]
    evidence: tuple[str, ...] = ()


def _applies(example: Example) -> Reason | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Theory:
    """A theory of attention that can be measured on the heads of a model.

    key: name on the command line and in `record[key]`; title: name for display
    claims: all claims, in the order of the report
    measure: a sample for every claim of one example, or of what the theory's own accumulator makes of several. A claim
        that cannot be measured there has a reason instead
    applies: why nothing can be measured on the example, if so
    claims_of: the claims that the example's layer has; all by default. Claims left out get no finding
    accumulator: makes what the theory keeps of a layer, called as `clearhead.theories.accumulator.Accumulator` is; that
        class by default, which sums over single inputs. One whose samples are made of several inputs has its own
    needs: what the theory needs beyond q, k, v and the mask
    on_model: measures runs of the whole model, given a function that runs it on inputs of the theory's making, the
        first batch and the seed
    positions: what publications say on the theory; question: one on which they differ, which makes a dispute of them
    words: the theory and its verdicts for readers of another field
    picture: draws what the theory measures on one example, for the report; None if it cannot
    """

    key: str
    title: str
    claims: tuple[Claim, ...]
    measure: Callable[[Any, Random], Samples]
    applies: Callable[[Example], Reason | None] = _applies
    claims_of: Callable[[Example], tuple[Claim, ...]] | None = None
    windows: Windows = Windows.EACH
    accumulator: Callable[..., Any] | None = None
    needs: frozenset[Need] = frozenset()
    on_model: Callable[[Callable[[Any], ModelOutput], Any, int], ModelValues] | None = None
    positions: tuple[Position, ...] = ()
    question: Question | None = None
    words: PlainWords | None = None
    picture: Callable[[Example], Picture | None] | None = None

    def __post_init__(self) -> None:
        for claim in self.claims:
            if claim.theory != self.title:
                raise InputError(f"{claim.statistic}: Claim.theory is {claim.theory!r}, Theory.title is {self.title!r}")

    @property
    def dispute(self) -> Dispute | None:
        """The positions and the question on which they differ; None without such a question."""
        if self.question is None:
            return None
        question = self.question
        return Dispute(theory=self.title, question=question.text, positions=self.positions, evidence=question.evidence)

    def claims_at(self, example: Example) -> tuple[Claim, ...]:
        """Return the claims that the example's layer has and that are wanted."""
        claims = self.claims if self.claims_of is None else self.claims_of(example)
        return tuple(claim for claim in claims if example.wants(claim))

    @property
    def deciding_claims(self) -> tuple[Claim, ...]:
        """The primary claims, the statistics that they require of a head, and the curves over depth."""
        primary = [claim for claim in self.claims if claim.role is Role.PRIMARY]
        required = {claim.requires.statistic for claim in primary if claim.requires is not None}
        return tuple(
            claim for claim in self.claims if claim.role in (Role.PRIMARY, Role.DEPTH) or claim.statistic in required
        )
