"""Parts of an audit: some of its batches, measured in one process, saved while they run, and merged.

A part holds sums and no inputs. The same state is the checkpoint of an audit that may be interrupted and the shard of
an audit that runs on several machines: a checkpoint is the only shard, and it is not complete.
"""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clearhead.audit.examples import CONTROL_INPUTS
from clearhead.audit.manifest import Manifest
from clearhead.audit.record import Fidelity
from clearhead.audit.shown_inputs import ShownInput, ShownLayer
from clearhead.errors import InputError
from clearhead.heads import LayerRecord
from clearhead.theories.accumulator import HISTORY, Accumulator, new_accumulator
from clearhead.theories.example import Cache
from clearhead.theories.theory import Claim, ModelValues, Picture, Theory

__all__ = ["SAVED_TYPES", "Part", "Pass", "Shard", "history_start"]


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


def history_start(sizes: Sequence[int], start: int) -> int:
    """Return the first batch of the history of the batch `start`: `HISTORY` inputs before it, if there are as many.

    sizes: numbers of inputs of the batches before it
    """
    history = 0
    while start > 0 and history < HISTORY:
        start -= 1
        history += sizes[start]
    return start


@dataclass(slots=True, kw_only=True)
class Pass:
    """One model measured on the batches of a part.

    baseline: number of the baseline model, from 0; None for the audited model
    norms: whether the baseline model has the norms of the audited one
    seed: of random numbers; controls: whether controls are measured, on the first `control_inputs` inputs of the audit
    claims: those that are measured; None for all
    limit: how many inputs of the audit are measured; None for all
    first: how many inputs of the audit come before those of this part, or before those with which it goes on
    accumulators: by the key of the theory and the number of the layer
    caches: what the examples of a theory share; they are not saved
    inputs, tokens: the numbers of inputs and of their tokens that were measured
    next_batch: number of the batch that comes next, among all batches of the audit
    texts: the beginning of every input, for the report; of the audited model alone
    """

    theories: Sequence[Theory]
    seed: int = 0
    controls: bool = True
    claims: frozenset[Claim] | None = None
    limit: int | None = None
    control_inputs: int = CONTROL_INPUTS
    first: int = 0
    accumulators: defaultdict[str, dict[int, Accumulator]] = field(default_factory=lambda: defaultdict(dict))
    caches: defaultdict[str, Cache] = field(default_factory=lambda: defaultdict(Cache))
    baseline: int | None = None
    norms: bool = False
    inputs: int = 0
    tokens: int = 0
    next_batch: int = 0
    complete: bool = False
    texts: list[str] = field(default_factory=list)

    def layers_of(self, theory: Theory) -> list[Accumulator]:
        """Return the accumulators of a theory by layer."""
        layers = self.accumulators[theory.key]
        return [layers[number] for number in sorted(layers)]

    def merge(self, other: "Pass") -> None:
        """Add the sums of the same model on the next batches."""
        mine, theirs = (
            f"{', '.join(theory.key for theory in each.theories)} with seed {each.seed}"
            f"{'' if each.controls else ' without controls'}"
            for each in (self, other)
        )
        if mine != theirs:
            raise InputError(f"cannot merge {theirs} into {mine}; merge parts of one audit")
        for key, layers in other.accumulators.items():
            for number, layer in layers.items():
                if number in self.accumulators[key]:
                    self.accumulators[key][number].merge(layer)
                else:
                    self.accumulators[key][number] = layer
        self.inputs += other.inputs
        self.tokens += other.tokens
        self.texts += other.texts

    def state(self) -> dict[str, Any]:
        """Return the pass as plain values and arrays."""
        return {
            "theories": [theory.key for theory in self.theories],
            "seed": self.seed,
            "controls": self.controls,
            "claims": None if self.claims is None else {theory.key: self._numbers(theory) for theory in self.theories},
            "limit": self.limit,
            "control inputs": self.control_inputs,
            "first": self.first,
            "layers": {theory.key: [x.state() for x in self.layers_of(theory)] for theory in self.theories},
            "baseline": self.baseline,
            "norms": self.norms,
            "inputs": self.inputs,
            "tokens": self.tokens,
            "next batch": self.next_batch,
            "complete": self.complete,
            "texts": self.texts,
        }

    def _numbers(self, theory: Theory) -> list[int]:
        """Return the numbers of the theory's claims that are measured."""
        assert self.claims is not None
        return [number for number, claim in enumerate(theory.claims) if claim in self.claims]

    @classmethod
    def from_state(cls, state: Mapping[str, Any], theories: Sequence[Theory]) -> "Pass":
        """Return the pass that `state` was taken of; it can go on."""
        by_key = {theory.key: theory for theory in theories if theory.key in state["theories"]}
        claims = state["claims"]
        restored = cls(
            theories=list(by_key.values()),
            seed=state["seed"],
            controls=state["controls"],
            claims=None
            if claims is None
            else frozenset(by_key[key].claims[number] for key, numbers in claims.items() for number in numbers),
            limit=state["limit"],
            control_inputs=state["control inputs"],
            first=state["first"],
            baseline=state["baseline"],
            norms=state["norms"],
            inputs=state["inputs"],
            tokens=state["tokens"],
            next_batch=state["next batch"],
            complete=state["complete"],
            texts=list(state["texts"]),
        )
        restored.restore(state["layers"])
        return restored

    def restore(self, layers: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Take over the states of layers by theory, in place of the accumulators so far."""
        for theory in self.theories:
            made = self.accumulators[theory.key] = {}
            for entry in layers[theory.key]:
                number = entry["layer"]
                made[number] = new_accumulator(theory, number, entry["name"], entry["heads"], controls=self.controls)
                made[number].restore(entry)


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
    whole_model: tuple[ModelValues, ...]
    notes: tuple[str, ...]
    passes: list[Pass] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    checksum: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    check: float = 0.0
    measuring: float = 0.0
    elapsed: float = 0.0
    peak_memory: int | None = None
    complete: bool = False
    shown: tuple[ShownInput, ...] = ()

    @property
    def audited(self) -> Pass:
        """The pass of the audited model."""
        return next(each for each in self.passes if each.baseline is None)

    def state(self) -> dict[str, Any]:
        """Return the part as plain values and arrays."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        return {
            **values,
            "shard": [self.shard.number, self.shard.count],
            "manifest": self.manifest.to_dict(),
            "passes": [each.state() for each in self.passes],
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
                "passes": [Pass.from_state(each, theories) for each in state["passes"]],
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


SAVED_TYPES = (Fidelity, LayerRecord, ModelValues, ShownInput, ShownLayer, Picture)
"""The dataclasses that the file of a part may hold."""
