"""What one theory keeps of one layer of a model: numbers, and no inputs.

An accumulator gets the inputs of its layer in their order and measures them. `Accumulator` sums over single inputs.
A theory whose samples are made of several inputs brings its own kind (`Theory.accumulator`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

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
        if reason is not None:
            return dict.fromkeys(self.theory.claims_at(example), reason)
        return example.wanted(self.theory.measure(example, rng))

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


def new_accumulator(
    theory: Theory, layer: int, name: str, heads: int, *, controls: bool = True, start: int = 0
) -> Accumulator:
    """Return an empty accumulator of the theory's kind for one layer."""
    kind = Accumulator if theory.accumulator is None else theory.accumulator
    made: Accumulator = kind(theory, layer, name, heads, controls=controls, start=start)
    return made
