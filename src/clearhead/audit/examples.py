"""Examples of a call: its batch split into inputs and windows, each with its random numbers."""

from collections.abc import Container, Hashable

from torch import Tensor

from clearhead.audit.options import CONTROL_INPUTS
from clearhead.heads import Heads, LinearMap, ResidualStream
from clearhead.theories.example import Cache, Example, Random
from clearhead.theories.theory import Windows

__all__ = ["CONTROL_INPUTS", "make_examples"]


def make_examples(
    heads: Heads,
    windows: Windows,
    *,
    first: int,
    seed: int,
    controls: bool,
    per_audit: Cache,
    claims: Container[Hashable] | None = None,
    control_inputs: int = CONTROL_INPUTS,
) -> list[list[tuple[Example, Random]]]:
    """Return the examples of every input of a call.

    first: how many inputs of the layer came before. Random numbers depend on the seed, the layer, the input's number
        and the window, not on how inputs are batched
    controls: whether controls are wanted, on the first `control_inputs` inputs
    """
    per_call = Cache()

    def example(index: int, window: int) -> Example:
        entry = index * heads.windows + window
        return Example(
            layer=heads.layer,
            name=heads.name,
            number=first + index + 1,
            seed=seed,
            q=heads.q[entry],
            k=heads.k[entry],
            v=heads.v[entry],
            out=heads.out[entry],
            scale=heads.scale,
            mask=_entry(heads.mask, entry, heads),
            bias=_entry(heads.bias, entry, heads),
            softcap=heads.softcap,
            sinks=heads.sinks,
            groups=heads.groups,
            windows=heads.windows,
            queries_from=_map(heads.queries_from, entry),
            keys_from=_map(heads.keys_from, entry),
            values_from=_map(heads.values_from, entry),
            out_gradient=None if heads.out_gradient is None else heads.out_gradient[entry],
            output_weight=heads.output_weight,
            stream=_stream(heads, index),
            controls=controls and first + index < control_inputs,
            claims=claims,
            per_call=per_call,
            per_audit=per_audit,
        )

    def of_input(index: int) -> list[tuple[Example, Random]]:
        entropy = (seed, heads.layer, first + index + 1)
        if windows is Windows.EACH:
            return [(example(index, window), Random(*entropy, window)) for window in range(heads.windows)]
        rng = Random(*entropy)
        return [(example(index, int(rng.numpy.integers(heads.windows)) if windows is Windows.ONE else 0), rng)]

    return [of_input(index) for index in range(heads.q.shape[0] // heads.windows)]


def _entry(added: Tensor | None, entry: int, heads: Heads) -> Tensor | None:
    """Return a mask or bias of one entry of the batch, (#h, n, m)."""
    if added is None:
        return None
    of_entry = added[entry if added.shape[0] > 1 else 0]
    return of_entry.expand(-1, heads.q.shape[-2], heads.k.shape[-2])


def _map(linear: LinearMap | None, entry: int) -> LinearMap | None:
    return None if linear is None else LinearMap(x=linear.x[entry : entry + 1], weight=linear.weight, bias=linear.bias)


def _stream(heads: Heads, index: int) -> ResidualStream | None:
    """Return the residual stream of one input; None if it was not found, or has other inputs than the attention."""
    stream = heads.residual_stream
    if stream is None or stream.before.shape[0] * heads.windows != heads.q.shape[0]:
        return None
    row = slice(index, index + 1)
    return ResidualStream(
        before=stream.before[row],
        total=stream.total[row],
        between=stream.between[row],
        after=None if stream.after is None else stream.after[row],
        norm=stream.norm,
    )
