r"""Multi-head RPC-Attention (Teo and Nguyen 2024, definition 1).

As published there is no W_Q, keys are the queries, and mu is computed from the keys. A projection of queries and a
learned mu are additions of this package.
"""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.modules.inputs import split_heads
from clearhead.modules.token_attention import SymmetricAttention
from clearhead.operators.named import Queries
from clearhead.operators.pursuit_options import Pursuit, preset
from clearhead.operators.rpc import rpc_attention


class RPCAttention(SymmetricAttention):
    r"""Multi-head RPC-Attention.

    .. math:: O = W_o\, [L_1; \dots; L_M], \qquad L_i = \operatorname{RPC}(W_k^{(i)} X, W_v^{(i)} X)

    pursuit: the name of a preset, or a `Pursuit`
    iterations, strength: override the number of iterations, and lambda, of the pursuit
    queries: "keys" for no W_Q; "given" for a projection of queries, which stay the same in all iterations
    learned_mu: the initial value of a learned mu, one for each head; None to compute mu from the keys
    dropout: probability of dropping attention weights in training, in the iterations that the pursuit names

    Keys and values have the same width. The other arguments are those of `TokenAttention`. One iteration in the
    published order is attention on clamped keys.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        pursuit: str | Pursuit = "code-2024-10",
        iterations: int | None = None,
        strength: float | None = None,
        queries: Queries = "keys",
        learned_mu: float | None = None,
        head_dim: int | None = None,
        out_dim: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        out_bias: bool = True,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            embed_dim,
            num_heads,
            head_dim=head_dim,
            out_dim=out_dim,
            bias=bias,
            out_bias=out_bias,
            scale=scale,
            operator=rpc_attention,
            device=device,
            dtype=dtype,
        )
        if queries not in ("keys", "given"):
            raise InputError(f'expected queries "keys" or "given"; got {queries!r}')
        if not 0 <= dropout < 1:
            raise InputError(f"expected dropout from 0 to below 1; got {dropout}")
        if learned_mu is not None and not 0 < learned_mu < math.inf:
            raise InputError(f"expected learned_mu above zero, the initial value of mu; got {learned_mu}")
        self.pursuit = preset(pursuit, iterations=iterations, strength=strength)
        self.dropout = dropout
        self.query = None
        if queries == "given":
            self.query = nn.Linear(embed_dim, self.key.out_features, bias=bias, device=device, dtype=dtype)
        self.log_mu = None
        if learned_mu is not None:
            self.log_mu = nn.Parameter(torch.full((num_heads,), math.log(learned_mu), device=device, dtype=dtype))

    def attend(self, x: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Return RPC-Attention in every head."""
        pursuit = self.pursuit
        if self.log_mu is not None:
            pursuit = dataclasses.replace(pursuit, bound=dataclasses.replace(pursuit.bound, mu=self.log_mu.exp()))
        q = None if self.query is None else split_heads(self.query(x), self.num_heads)
        if self.training and self.dropout:
            options["dropout"] = self.dropout
        return self.operator(q, k, v, pursuit=pursuit, **options)

    def extra_repr(self) -> str:
        """Return the settings that the projections do not show."""
        bound = self.pursuit.bound
        return f"num_heads={self.num_heads}, iterations={self.pursuit.iterations}, strength={bound.strength}"
