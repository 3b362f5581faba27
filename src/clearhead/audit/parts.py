"""Parts of an audit: some of its batches, measured in one process, saved while they run, and merged.

A part holds sums and no inputs. The same state is the checkpoint of an audit that may be interrupted and the shard of
an audit that runs on several machines: a checkpoint is the only shard, and it is not complete.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clearhead.audit.engine import Measurement, first_of_groups
from clearhead.audit.layers import LayerPredictions
from clearhead.audit.manifest import Manifest
from clearhead.audit.record import Fidelity
from clearhead.audit.shown_inputs import ShownInput, ShownLayer
from clearhead.errors import InputError
from clearhead.heads import LayerRecord
from clearhead.theories.theory import Picture, Theory, WholeModelErrors

__all__ = ["Coverage", "Part", "Run", "Shard", "Span", "saved_types", "span_of"]


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` parts of the batches of an audit; `number` is from 1."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Return the shard of a text such as 2/4. Raise InputError if it is none."""
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(f"a shard is i/n with i from 1 to n, such as 2/4, not {text!r}")
        return cls(int(match[1]), int(match[2]))

    def batches(self, total: int) -> range:
        """Return the batches of this shard: consecutive ones, as many as in the others or one more."""
        return range(total * (self.number - 1) // self.count, total * self.number // self.count)

    @property
    def file_name(self) -> str:
        """The name of the shard's file."""
        return f"shard-{self.number}-of-{self.count}.safetensors"

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """The numbers of inputs and tokens that a model was measured on."""

    inputs: int
    tokens: int

    def __add__(self, other: "Coverage") -> "Coverage":
        return Coverage(self.inputs + other.inputs, self.tokens + other.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The batches that a run goes over: those of `lead` complete groups of inputs, those from `start` are measured.

    end: number of the first batch after them; None for all
    first: number of inputs before `start`; lead_inputs: number of inputs from `lead` to `start`
    """

    lead: int = 0
    start: int = 0
    end: int | None = None
    first: int = 0
    lead_inputs: int = 0


def span_of(sizes: Sequence[int], start: int, end: int | None, theories: Sequence[Theory]) -> Span:
    """Return the span from the batch `start` on, given the numbers of inputs of all batches before it."""
    first = sum(sizes[:start])
    groups = [theory.grouping.size for theory in theories if theory.grouping is not None]
    needed = min((first_of_groups(first, size) for size in groups), default=first)
    lead, before = start, first
    while before > needed:
        lead -= 1
        before -= sizes[lead]
    return Span(lead=lead, start=start, end=end, first=first, lead_inputs=first - before)


@dataclass(slots=True, kw_only=True)
class Run:
    """One model measured on the batches of a part.

    baseline: number of the baseline model, from 0; None for the audited model
    norms: whether the baseline model has the norms of the audited one
    batches: number of the batch that comes next, among all batches of the audit
    texts: the beginning of every input, for the report; of the audited model alone
    """

    theories: Sequence[Theory]
    measurements: list[Measurement]
    baseline: int | None = None
    norms: bool = False
    covered: Coverage = Coverage(0, 0)
    batches: int = 0
    complete: bool = False
    texts: list[str] = field(default_factory=list)

    def merge(self, other: "Run") -> None:
        """Add the sums of the same model on the next batches."""
        for mine, theirs in zip(self.measurements, other.measurements, strict=True):
            mine.merge(theirs)
        self.covered += other.covered
        self.texts += other.texts

    def state(self) -> dict[str, Any]:
        """Return the run as plain values and arrays."""
        return {
            "theories": [theory.key for theory in self.theories],
            "measurements": [measurement.state() for measurement in self.measurements],
            "baseline": self.baseline,
            "norms": self.norms,
            "covered": [self.covered.inputs, self.covered.tokens],
            "batches": self.batches,
            "complete": self.complete,
            "texts": self.texts,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], theories: Sequence[Theory], sizes: Sequence[int]) -> "Run":
        """Return the run that `state` was taken of; it can go on. `sizes` are the batches' numbers of inputs."""
        chosen = [theory for theory in theories if theory.key in state["theories"]]
        span = Span() if state["complete"] else span_of(sizes, state["batches"], None, chosen)
        return cls(
            theories=chosen,
            measurements=[
                Measurement.from_state(measured, theory, first=span.first, lead=span.lead_inputs)
                for measured, theory in zip(state["measurements"], chosen, strict=True)
            ],
            baseline=state["baseline"],
            norms=state["norms"],
            covered=Coverage(*state["covered"]),
            batches=state["batches"],
            complete=state["complete"],
            texts=list(state["texts"]),
        )


@dataclass(slots=True, kw_only=True)
class Part:
    """Everything that one process has measured of an audit.

    manifest, options: what the numbers depend on; parts of one audit have the same, but for the number of workers.
        `options` are plain values, with the descriptions that a file holds in place of its path
    sizes: numbers of inputs of the batches of the whole audit, as far as they are known
    checksum: of the batches before the next one of the audited model
    seconds: by theory; check, elapsed: of the fidelity check, and of everything
    measuring: seconds of `elapsed` that theories took, or that were spent on sending calls to workers and waiting
    shown: inputs whose attention the report shows; the shard of the first batch has them
    """

    shard: Shard
    manifest: Manifest
    options: Mapping[str, Any]
    name: str
    data: str
    fidelity: Fidelity
    whole_model: tuple[WholeModelErrors, ...]
    notes: tuple[str, ...]
    runs: list[Run] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    checksum: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    check: float = 0.0
    measuring: float = 0.0
    elapsed: float = 0.0
    peak_memory: int | None = None
    complete: bool = False
    shown: tuple[ShownInput, ...] = ()

    def state(self) -> dict[str, Any]:
        """Return the part as plain values and arrays."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        return {
            **values,
            "shard": [self.shard.number, self.shard.count],
            "manifest": self.manifest.to_dict(),
            "runs": [run.state() for run in self.runs],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], load: Callable[[Sequence[str]], Sequence[Theory]]) -> "Part":
        """Return the part that `state` was taken of. `load` returns theories by key."""
        theories = load(state["options"]["theories"])
        return cls(
            **{
                **state,
                "shard": Shard(*state["shard"]),
                "manifest": Manifest.from_dict(state["manifest"]),
                "runs": [Run.from_state(run, theories, state["sizes"]) for run in state["runs"]],
            }
        )

    def differences(self, other: "Part") -> list[str]:
        """Return one line for everything in which the audit of another part differs from this one's.

        Machines may differ, and data are compared where both checksums are known.
        """
        theirs = dataclasses.replace(other.manifest, machine=self.manifest.machine)
        if not self.manifest.data or not other.manifest.data:
            theirs = dataclasses.replace(theirs, data=self.manifest.data)
        return [
            *self.manifest.differences(theirs),
            *(
                f"{name.replace('_', ' ')}: {self.options.get(name)}, now {other.options.get(name)}"
                for name in dict.fromkeys((*self.options, *other.options))
                if name != "workers" and self.options.get(name) != other.options.get(name)
            ),
        ]


def saved_types(theories: Sequence[Theory]) -> tuple[type, ...]:
    """Return the dataclasses that the file of a part may hold."""
    kept = (t.grouping.predictions.kept_types for t in theories if t.grouping and t.grouping.predictions)
    own = (Fidelity, LayerPredictions, LayerRecord, WholeModelErrors, ShownInput, ShownLayer, Picture)
    return (*own, *(kind for kinds in kept for kind in kinds))
