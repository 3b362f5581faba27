"""What one theory keeps of one layer of a model: numbers, and no inputs.

An accumulator gets the inputs of its layer in their order and measures them. `Accumulator` sums over single inputs.
A theory whose samples are made of several inputs brings its own kind (`Theory.accumulator`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clearhead.errors import InputError
from clearhead.numerics.threads import one_thread_each
from clearhead.theories.example import Example, Random
from clearhead.theories.reason import Reason
from clearhead.theories.samples import average
from clearhead.theories.sums import Sums
from clearhead.theories.theory import Claim, Sample, Samples, Theory, Unit

HISTORY = 12
"""Number of inputs before its own that every part of an audit gets, if there are as many. They do not count there."""


class Accumulator:
    """The sums of a theory's claims at one layer. Each input is one sample, the mean of its windows.

    layer, name, heads: number of the layer in forward-pass order, its module, and how many heads it has
    controls: whether controls are measured; models of the baseline are measured without
    inputs: number of the last input that was counted, among all inputs of the audit
    start: the same before the first input that counts here
    sums: by claim, so far
    """

    def __init__(
        self, theory: Theory, layer: int, name: str, heads: int, *, controls: bool = True, start: int = 0
    ) -> None:
        self.theory, self.layer, self.name, self.heads, self.controls = theory, layer, name, heads, controls
        self.inputs = self.start = start
        self.sums: dict[Claim, Sums] = {}

    def collect(self, by_input: Sequence[Sequence[tuple[Example, Random]]], *, counted: bool = True) -> None:
        """Measure the inputs that come next, each given as its windows with their random numbers.

        counted: whether the inputs count here; those before the first of a part count in another
        """
        if not counted:
            return
        flat = [pair for examples in by_input for pair in examples]
        samples = iter(one_thread_each(lambda pair: self._samples(*pair), flat))
        for examples in by_input:
            self._add(examples[0][0], [next(samples) for _ in examples])

    def finish(self, *, last: bool = False) -> Mapping[Claim, Sums]:
        """Return the sums by claim. It may be asked before the end.

        last: whether no input follows, so that what only further inputs need can be dropped
        """
        return self.sums

    def merge(self, other: "Accumulator") -> None:
        """Add the sums of the next inputs of the same layer."""
        if (self.name, self.heads) != (other.name, other.heads):
            raise InputError(
                f"layer {self.layer} is {self.name} with {self.heads} heads in one part and {other.name} with "
                f"{other.heads} in the other; merge parts of one audit"
            )
        for claim, sums in other.sums.items():
            if claim in self.sums:
                self.sums[claim].merge(sums)
            else:
                self.sums[claim] = sums
        self.inputs += other.inputs - other.start

    def state(self) -> dict[str, Any]:
        """Return everything that was counted as plain values and arrays, from which every bit is restored."""
        return {
            "layer": self.layer,
            "name": self.name,
            "heads": self.heads,
            "inputs": self.inputs,
            "start": self.start,
            "claims": [[self.theory.claims.index(claim), sums.state()] for claim, sums in self.sums.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over the state of another accumulator of the same layer."""
        self.inputs, self.start = state["inputs"], state["start"]
        self.sums = {self.theory.claims[number]: Sums.from_state(of_claim) for number, of_claim in state["claims"]}

    def sums_of(self, claim: Claim) -> Sums:
        """Return the sums of a claim, which begin at zero."""
        return self.sums.setdefault(claim, self.empty_sums(claim))

    def empty_sums(self, claim: Claim) -> Sums:
        """Return the sums of a claim of which nothing was counted."""
        return Sums(self.heads if claim.unit is Unit.HEAD else 1)

    def _samples(self, example: Example, rng: Random) -> Samples:
        reason = self.theory.applies(example)
        if reason is None:
            return example.wanted(self._checked(self.theory.measure(example, rng)))
        if not isinstance(reason, Reason):
            raise InputError(
                f"{self.theory.title}: applies returns a Reason why an input is not covered, or None; got {reason!r}"
            )
        return dict.fromkeys(self.theory.claims_at(example), reason)

    def _checked(self, samples: Samples) -> Samples:
        """Return what a theory measured. Raise InputError if it is not a sample or a reason for each of its claims."""
        if not isinstance(samples, Mapping):
            raise InputError(f"{self.theory.title}: measure returns a Sample for each claim; got {samples!r}")
        for claim, sample in samples.items():
            name = f"{self.theory.title}: {getattr(claim, 'statistic', claim)}"
            if claim not in self.theory.claims:
                raise InputError(f"{name} is measured and not among the claims of the Theory; list it there")
            if isinstance(sample, Reason):
                continue
            if not isinstance(sample, Sample):
                raise InputError(f"{name}: measure returns a Sample or a Reason; got {sample!r}")
            given = (("predicted", sample.predicted), ("covered", sample.covered), ("size", sample.size))
            heads = self.heads if claim.unit is Unit.HEAD else 1
            for entry, array in (("value", sample.value), *(pair for pair in given if pair[1] is not None)):
                _require(array, f"{name}: {entry}", "heads", heads)
            for control, draws in sample.controls.items():
                _require(draws, f"{name}: control {control.name!r}", "draws, heads", heads)
        return samples

    def _add(self, example: Example, windows: Sequence[Samples]) -> None:
        """Count one input: the mean of its windows, claim by claim. `example` is one of them."""
        for claim in dict.fromkeys(claim for window in windows for claim in window):
            sums = self.sums_of(claim)
            measured = [window[claim] for window in windows if claim in window]
            samples = [sample for sample in measured if isinstance(sample, Sample)]
            for reason in (sample for sample in measured if isinstance(sample, Reason)):
                sums.explain(reason)
            if samples:
                sums.add(samples[0] if len(windows) == 1 else average(samples), example.q.dtype, claim.size)
            else:
                sums.examples += 1


def _require(array: Any, name: str, axes: str, heads: int) -> None:
    """Raise InputError unless this is an array of numpy with these axes, the heads last."""
    if not isinstance(array, np.ndarray) or array.ndim != axes.count(",") + 1 or array.shape[-1] != heads:
        got = f"{type(array).__name__} of shape {tuple(getattr(array, 'shape', ()))}"
        raise InputError(f"{name} is a numpy.ndarray of shape ({axes}), here with {heads} heads; got {got}")


def new_accumulator(
    theory: Theory, layer: int, name: str, heads: int, *, controls: bool = True, start: int = 0
) -> Accumulator:
    """Return an empty accumulator of the theory's kind for one layer."""
    kind = Accumulator if theory.accumulator is None else theory.accumulator
    made: Accumulator = kind(theory, layer, name, heads, controls=controls, start=start)
    return made
