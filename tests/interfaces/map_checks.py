"""Checks of captured linear maps: that x W + b gives queries, keys and values, in double precision."""

import torch
from torch import Tensor
from torch.nn import functional

from clearhead.heads import Heads, LinearMap
from clearhead.numerics.precision import tolerance

ROLES = ("q", "k", "v")


def map_of(heads: Heads, role: str) -> LinearMap | None:
    return {"q": heads.queries_from, "k": heads.keys_from, "v": heads.values_from}[role]


def identity_error(heads: Heads, role: str = "v") -> float:
    """Return the largest difference of x W + b from the operand, relative to its largest entry."""
    made, y = map_of(heads, role), getattr(heads, role)
    assert made is not None
    again = torch.einsum("btc,hcf->bhtf", made.x.double(), made.weight.double())
    if made.bias is not None:
        again = again + made.bias.double().unsqueeze(1)
    return float((again - y).abs().max() / y.abs().max())


def assert_found(heads: Heads, role: str = "v", roundings: float = 0.0) -> None:
    made = map_of(heads, role)
    assert made is not None, (heads.name, role)
    allowed = max(roundings, tolerance(torch.float32, terms=made.x.shape[-1]))
    assert identity_error(heads, role) <= allowed, (heads.name, role)
    assert not any(x is not None and x.requires_grad for x in (made.x, made.weight, made.bias))


def score_error(heads: Heads, queries: LinearMap | None, keys: LinearMap | None) -> float:
    """Return the largest difference of the scores by W = [W_q; b_q] [W_k; b_k]^T from q k^T, on the layer's tokens."""
    assert heads.queries_from is not None
    assert heads.keys_from is not None
    x, y = (functional.pad(made.x.double(), (0, 1), value=1.0) for made in (heads.queries_from, heads.keys_from))
    scores = torch.einsum("bnc,hcd,hzd,bmz->bhnm", x, _with_bias(queries), _with_bias(keys), y)
    own = heads.q.double() @ heads.k.double().mT
    return float((scores - own).abs().max() / (heads.q.norm(dim=-1).max() * heads.k.norm(dim=-1).max()))


def _with_bias(made: LinearMap | None) -> Tensor:
    assert made is not None
    bias = made.weight.new_zeros(made.weight.shape[::2]) if made.bias is None else made.bias
    return torch.cat([made.weight, bias.unsqueeze(1)], dim=1).double()


def assert_scores(heads: Heads) -> None:
    """Assert that queries and keys have maps, and that these give the layer's scores."""
    assert_found(heads, "q")
    assert_found(heads, "k")
    terms = heads.queries_from.x.shape[-1] + heads.keys_from.x.shape[-1]
    assert score_error(heads, heads.queries_from, heads.keys_from) <= tolerance(torch.float32, terms=terms), heads.name
