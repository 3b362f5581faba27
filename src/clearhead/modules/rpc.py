r"""Multi-head RPC-Attention (Teo and Nguyen 2024, definition 1).

As published there is no W_Q, every token asks by its key, and mu is computed from the keys; maps of queries and a
learned mu are ours.
"""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.modules.symmetric import SymmetricAttention
from clearhead.operators.drop_in import Queries
from clearhead.operators.pursuit_options import Pursuit, preset
from clearhead.operators.rpc import rpc_attention

__all__ = ["RPCAttention"]


class RPCAttention(SymmetricAttention):
    r"""Several RPC-Attentions side by side, and a map of all their outputs.

    .. math:: O = W_o\, [L_1; \dots; L_M], \qquad L_i = \operatorname{RPC}(W_k^{(i)} X, W_v^{(i)} X)

    pursuit: the name of a preset, or options of your own
    iterations, strength: other iterations, another lambda than the pursuit has
    queries: "keys" has no W_Q; with "given" every token asks by a query of its own, the same in all iterations
    dropout: probability with which attention weights are dropped in training, where the pursuit says
    learned_mu: where mu starts if it is learned, one for each head; None computes it from the keys

    Keys and values are of one width. The other arguments are those of `TokenAttention`. One iteration in the
    published order is attention on clamped keys.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        pursuit: str | Pursuit = "code-2024-10",
        iterations: int | None = None,
        strength: float | None = None,
        queries: Queries = "keys",
        dropout: float = 0.0,
        learned_mu: float | None = None,
        head_width: int | None = None,
        out_width: int | None = None,
        bias: bool = True,
        out_bias: bool = True,
        scale: float | None = None,
    ) -> None:
        super().__init__(
            width,
            heads=heads,
            head_width=head_width,
            out_width=out_width,
            bias=bias,
            out_bias=out_bias,
            scale=scale,
            operator=rpc_attention,
        )
        if queries not in ("keys", "given"):
            raise InputError(f'expected queries "keys" or "given"; got {queries!r}')
        if not 0 <= dropout < 1:
            raise InputError(f"expected a dropout from 0 to below 1; got {dropout}")
        if learned_mu is not None and not 0 < learned_mu < math.inf:
            raise InputError(f"expected a mu above zero to learn from; got {learned_mu}")
        self.pursuit = preset(pursuit, iterations=iterations, strength=strength)
        self.dropout = dropout
        self.query = nn.Linear(width, self.key.out_features, bias=bias) if queries == "given" else None
        start = None if learned_mu is None else torch.full((heads,), math.log(learned_mu))
        self.log_mu = None if start is None else nn.Parameter(start)

    def attend(self, x: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """RPC-Attention of every head."""
        pursuit = self.pursuit
        if self.log_mu is not None:
            pursuit = dataclasses.replace(pursuit, bound=dataclasses.replace(pursuit.bound, mu=self.log_mu.exp()))
        if self.query is not None:
            options["queries"] = self.split(self.query(x))
        if self.training and self.dropout:
            options["dropout"] = self.dropout
        return self.operator(k, v, pursuit=pursuit, **options)

    def extra_repr(self) -> str:
        """What the maps do not show."""
        bound = self.pursuit.bound
        return f"heads={self.heads}, iterations={self.pursuit.iterations}, strength={bound.strength}"
