r"""Multi-head attention with heads of any widths.

Ji and Xie, *A Mathematical View of Attention Models in Deep Learning*, write tokens as columns, O = W_o [H_1; ...; H_M]
with heads of value widths q_i that may differ and W_o of any number of rows; here tokens are rows. Vaswani et al. 2017
(section 3.2.2) and torch.nn.MultiheadAttention fix those widths. Heads that share keys and values are those of Shazeer
2019 (arXiv 1911.02150; one key head) and Ainslie et al. 2023 (arXiv 2305.13245; groups). The slides have no
1/sqrt(d_i): pass `scale=1.0` for theirs.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.modules.inputs import (
    check_sizes,
    check_tokens,
    combine_masks,
    join_heads,
    present,
    resolve_head_dim,
    split_heads,
)
from clearhead.operators.softmax import softmax_attention
from clearhead.shapes import Bool, Float, ShapeError, format_shapes

SEPARATE = {"q_proj_weight": "query.weight", "k_proj_weight": "key.weight", "v_proj_weight": "value.weight"}
OUT = {"out_proj.weight": "out.weight", "out_proj.bias": "out.bias"}
APPENDED = ("bias_k", "bias_v")


class MultiHeadAttention(nn.Module):
    r"""Multi-head attention in which each head may have its own widths.

    .. math:: O = W_o\, [H_1; \dots; H_M] = \sum_i W_o^{(i)} H_i, \qquad H_i = A(W_q^{(i)} Q, W_k^{(i)} K, W_v^{(i)} V)

    embed_dim: width of the query tokens
    num_heads: M, the number of heads
    kdim, vdim: width of the key tokens and of the value tokens; embed_dim if None
    head_dim: d_i, width of queries and keys in each head, one number or one per head; embed_dim / M if None
    value_dim: e_i, width of values in each head, one number or one per head; head_dim if None
    out_dim: width of the output; embed_dim if None
    num_kv_heads: the number of heads of keys and values; each serves M / num_kv_heads consecutive heads of the same
        widths. 1 is multi-query attention; None is one for each head
    bias, out_bias: True for a bias in the input projections, and in the output projection
    scale: factor of the scores; if None the operator chooses, 1/sqrt(d_i) for softmax attention; 1.0 as in the slides
    operator: A, a function (q, k, v, *, mask, bias, scale); None options are not passed

    Heads of the same (d_i, e_i) run in one call of the operator. There is no dropout.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        head_dim: int | Sequence[int] | None = None,
        value_dim: int | Sequence[int] | None = None,
        out_dim: int | None = None,
        num_kv_heads: int | None = None,
        bias: bool = True,
        out_bias: bool = True,
        scale: float | None = None,
        operator: Callable[..., Tensor] = softmax_attention,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        kdim = embed_dim if kdim is None else kdim
        vdim = embed_dim if vdim is None else vdim
        out_dim = embed_dim if out_dim is None else out_dim
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_sizes(
            embed_dim=embed_dim, num_heads=num_heads, kdim=kdim, vdim=vdim, out_dim=out_dim, num_kv_heads=num_kv_heads
        )
        head_dim = resolve_head_dim(embed_dim, num_heads, None) if head_dim is None else head_dim
        self.head_dims = _per_head("head_dim", head_dim, num_heads)
        self.value_dims = _per_head("value_dim", self.head_dims if value_dim is None else value_dim, num_heads)
        self.num_heads, self.num_kv_heads, self.scale, self.operator = num_heads, num_kv_heads, scale, operator
        self._share = _heads_per_key(self.head_dims, self.value_dims, num_kv_heads)
        dims = list(zip(self.head_dims, self.value_dims, strict=True))
        self._groups = [[i for i in range(num_heads) if dims[i] == pair] for pair in dict.fromkeys(dims)]
        key_dim, value_width = sum(self.head_dims[:: self._share]), sum(self.value_dims[:: self._share])
        self.query = nn.Linear(embed_dim, sum(self.head_dims), bias=bias, device=device, dtype=dtype)
        self.key = nn.Linear(kdim, key_dim, bias=bias, device=device, dtype=dtype)
        self.value = nn.Linear(vdim, value_width, bias=bias, device=device, dtype=dtype)
        self.out = nn.Linear(sum(self.value_dims), out_dim, bias=out_bias, device=device, dtype=dtype)

    def forward(
        self,
        query: Float[Tensor, "*b n p"],
        key: Float[Tensor, "*b m c"] | None = None,
        value: Float[Tensor, "*b m r"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*b m"] | None = None,
        causal: bool = False,
        attn_bias: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*b n o"]:
        """Return the output for every query, (..., n, out_dim).

        query, key, value: (..., tokens, width); the key is the query if None, the value is the key if None
        mask: True where a query may attend (the opposite of torch.nn.MultiheadAttention), broadcasts to (..., h, n, m):
            pass a mask (b, n, m) for all heads as mask[:, None]
        key_mask: (..., m), True at keys and False at padding, as `pad_sets` returns it
        causal: True if the last query sees all keys and each query before it one fewer
        attn_bias: added to the scores, broadcasts to (..., h, n, m)

        A query without visible keys gets the bias of W_o, or zeros without one.
        """
        key = query if key is None else key
        value = key if value is None else value
        tokens = {"query": query, "key": key, "value": value}
        check_tokens(tokens, {"query": self.query, "key": self.key, "value": self.value})
        if key.shape[-2] != value.shape[-2]:
            raise ShapeError(f"expected key and value with the same number of tokens; got {format_shapes(**tokens)}")
        combined = combine_masks(
            query, key, self.num_heads, mask=mask, key_mask=key_mask, causal=causal, attn_bias=attn_bias
        )
        heads = self._attend(self.query(query), self.key(key), self.value(value), combined, attn_bias)
        out: Tensor = self.out(heads)
        return out

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
        """Return [H_1; ...; H_M], (..., n, sum of e_i)."""
        outputs: dict[int, Tensor] = {}
        for group in self._groups:
            shared = [i // self._share for i in group]
            out = self.operator(
                _take_heads(q, self.head_dims, group),
                _take_heads(k, self.head_dims[:: self._share], shared),
                _take_heads(v, self.value_dims[:: self._share], shared),
                **present(mask=_added_to(group, mask), bias=_added_to(group, bias), scale=self.scale),
            )
            if len(self._groups) == 1:
                return join_heads(out)
            outputs |= {head: out[..., i, :, :] for i, head in enumerate(group)}
        return torch.cat([outputs[i] for i in range(len(outputs))], dim=-1)

    def extra_repr(self) -> str:
        """Return the settings that the projections do not show."""
        return f"head_dims={self.head_dims}, value_dims={self.value_dims}, num_kv_heads={self.num_kv_heads}"

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """Return the attention of a torch.nn.MultiheadAttention, with a copy of its parameters.

        Tokens are (b, n, width) whatever the module's `batch_first`, masks are True where a query may attend, and the
        output comes without weights. Raises ValueError for add_bias_kv, add_zero_attn, and dropout in training mode.
        """
        _check_supported(module)
        weight = module.out_proj.weight
        attention = cls(
            module.embed_dim,
            module.num_heads,
            kdim=module.kdim,
            vdim=module.vdim,
            bias=module.in_proj_bias is not None,
            out_bias=module.out_proj.bias is not None,
            device=weight.device,
            dtype=weight.dtype,
        )
        attention.load_torch_state_dict(module.state_dict())
        return attention.train(module.training)

    def load_torch_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Copy the parameters of a torch.nn.MultiheadAttention with this module's widths and biases.

        A state dict stores neither the number of heads nor add_zero_attn: the number of heads must be the same, and
        add_zero_attn must be off.
        """
        if len({*self.head_dims, *self.value_dims}) > 1 or self._share > 1:
            raise InputError(
                f"expected heads of one width, each with its own keys, as in torch.nn.MultiheadAttention; "
                f"got {self.extra_repr()}"
            )
        converted = convert_state_dict(state_dict)
        wanted = {name: tuple(x.shape) for name, x in self.state_dict().items()}
        got = {name: tuple(x.shape) for name, x in converted.items()}
        if wanted != got:
            raise InputError(f"expected parameters {wanted}; got {got}")
        self.load_state_dict(converted)


def _per_head(name: str, dims: int | Sequence[int], num_heads: int) -> tuple[int, ...]:
    per_head = (dims,) * num_heads if isinstance(dims, int) else tuple(dims)
    if len(per_head) != num_heads or min(per_head) < 1:
        raise InputError(f"expected {name} of one or more for each of {num_heads} heads; got {dims}")
    return per_head


def _heads_per_key(head_dims: tuple[int, ...], value_dims: tuple[int, ...], num_kv_heads: int) -> int:
    num_heads = len(head_dims)
    if num_heads % num_kv_heads:
        raise InputError(f"expected num_kv_heads that divides num_heads; got {num_kv_heads} and {num_heads}")
    share = num_heads // num_kv_heads
    pairs = list(zip(head_dims, value_dims, strict=True))
    if any(pairs[i] != pairs[i - i % share] for i in range(num_heads)):
        raise InputError(
            f"expected equal widths in the {share} heads that share keys and values; "
            f"got head_dim {head_dims}, value_dim {value_dims}"
        )
    return share


def _take_heads(x: Tensor, dims: tuple[int, ...], indices: list[int]) -> Tensor:
    """Return heads of x (..., tokens, sum of dims) as (..., heads, tokens, dim); a view if these are all heads."""
    if len(set(dims)) == 1:
        heads = split_heads(x, len(dims))
        return heads if indices == list(range(len(dims))) else heads[..., indices, :, :]
    starts = [sum(dims[:i]) for i in indices]
    return torch.stack([x[..., s : s + dims[i]] for s, i in zip(starts, indices, strict=True)], dim=-3)


def _added_to(indices: list[int], added: Tensor | None) -> Tensor | None:
    """Return the entries of a mask or a bias that belong to these heads."""
    if added is None or added.ndim < 3 or added.shape[-3] == 1:
        return added
    return added[..., indices, :, :]


def _check_supported(module: nn.MultiheadAttention) -> None:
    """Raise ValueError for options of torch.nn.MultiheadAttention that `MultiHeadAttention` does not have."""
    if module.bias_k is not None or module.bias_v is not None:
        raise InputError("add_bias_kv, which appends a learned key and value, is not supported; pass a module without")
    if module.add_zero_attn:
        raise InputError("add_zero_attn, which appends a key of zeros, is not supported; pass a module without it")
    if module.dropout and module.training:
        raise InputError(
            f"dropout in training mode is not supported (got dropout {module.dropout}); call module.eval() first"
        )


def convert_state_dict(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters as `query`, `key`, `value` and `out`, each with weight and, if there is one, bias.

    torch stores the three input projections in one matrix, unless kdim or vdim differs from embed_dim, and their biases
    in one vector.
    """
    if any(name in state_dict for name in APPENDED):
        raise InputError(
            "add_bias_kv, which appends a learned key and value, is not supported; "
            f"got a state dict with {', '.join(state_dict)}"
        )
    stacked = "in_proj_weight" in state_dict
    weights = {"in_proj_weight"} if stacked else set(SEPARATE)
    required, allowed = weights | {"out_proj.weight"}, weights | {"in_proj_bias", *OUT}
    if not required <= state_dict.keys() <= allowed:
        raise InputError(
            f"expected the state dict of a torch.nn.MultiheadAttention, with {', '.join(sorted(required))}, and "
            f"perhaps in_proj_bias and out_proj.bias; got {', '.join(state_dict) or 'nothing'}"
        )
    converted = {ours: state_dict[theirs] for theirs, ours in (SEPARATE | OUT).items() if theirs in state_dict}
    for theirs, kind in (("in_proj_weight", "weight"), ("in_proj_bias", "bias")):
        if theirs in state_dict:
            chunks = zip(("query", "key", "value"), state_dict[theirs].chunk(3), strict=True)
            converted |= {f"{ours}.{kind}": chunk for ours, chunk in chunks}
    return converted
