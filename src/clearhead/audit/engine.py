"""The engine: the theories of a pass, measured on a stream of attention calls.

It splits a call into examples with their random numbers (`examples`) and gives them to the accumulator that each theory
has for the layer. Random numbers and the numbers of inputs do not depend on how an audit is divided into parts.
"""

import time
from collections.abc import MutableMapping

from clearhead.audit.examples import make_examples
from clearhead.audit.part import Pass
from clearhead.heads import Heads
from clearhead.numerics.memory import run_within_memory
from clearhead.numerics.threads import one_thread
from clearhead.theories.accumulator import new_accumulator
from clearhead.theories.theory import Theory

__all__ = ["feed"]


def feed(
    pass_: Pass,
    heads: Heads,
    *,
    inputs: int | None = None,
    ahead: int = 0,
    seconds: MutableMapping[str, float] | None = None,
) -> None:
    """Give one call of one layer to all theories of a pass.

    inputs: how many inputs the batch has, if the layer may have others, as the two towers of a model may
    ahead: how many inputs of the audit the batch begins before those of the pass; 0 if the batch counts in the pass
    seconds: gains the time of each theory by its title
    """
    for theory in pass_.theories:
        start = time.perf_counter()
        _feed(pass_, theory, heads, inputs, ahead)
        if seconds is not None:
            seconds[theory.title] += time.perf_counter() - start


def _feed(pass_: Pass, theory: Theory, heads: Heads, inputs: int | None, ahead: int) -> None:
    layers = pass_.accumulators[theory.key]
    accumulator = layers.get(heads.layer) or new_accumulator(
        theory,
        heads.layer,
        heads.name,
        heads.q.shape[1],
        controls=pass_.controls,
        start=_of_layer(pass_.first, heads, inputs),
    )
    number = max(accumulator.inputs - _of_layer(ahead, heads, inputs), 0)
    by_input = make_examples(
        heads,
        theory.windows,
        first=number,
        seed=pass_.seed,
        controls=pass_.controls,
        per_audit=pass_.caches[theory.key],
        claims=pass_.claims,
        control_inputs=pass_.control_inputs,
    )
    if pass_.limit is not None:
        by_input = by_input[: max(pass_.limit - number, 0)]
    if not by_input:
        return
    layers[heads.layer] = accumulator

    def collect() -> None:
        with one_thread(workers=True):
            accumulator.collect(by_input, counted=not ahead)

    run_within_memory(
        collect,
        task=f"{theory.title} on an input of {heads.q.shape[-2]} tokens",
        remedy="audit shorter inputs (--max-tokens) or this theory alone",
        device=heads.q.device,
    )
    if not ahead:
        accumulator.inputs = number + len(by_input)


def _of_layer(count: int, heads: Heads, inputs: int | None) -> int:
    """Return how many inputs the layer has where the audit has `count`, in the ratio of this batch."""
    return count if inputs is None else count * (heads.q.shape[0] // heads.windows) // inputs
