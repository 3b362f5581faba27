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
from clearhead.modules.inputs import check_positive, check_tokens, visible_keys
from clearhead.modules.torch_state import check_supported, renamed_state
from clearhead.operators.softmax import softmax_attention
from clearhead.shapes import Bool, Float, ShapeError

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(nn.Module):
    r"""Several attentions side by side, each with its own maps and widths, and a map of all their outputs.

    .. math:: O = W_o\, [H_1; \dots; H_M] = \sum_i W_o^{(i)} H_i, \qquad H_i = A(W_q^{(i)} Q, W_k^{(i)} K, W_v^{(i)} V)

    query_width, key_input_width, value_input_width: of the tokens that come in; the last two are the first by default
    heads: M, how many
    head_widths: d_i, of queries and keys inside each head, one number for all or one per head; query_width / M if None
    value_widths: e_i, of values inside each head, in the same way; head_widths if None
    out_width: of the output, free; query_width if None
    key_heads: how many heads of keys and values there are; each serves M / key_heads consecutive heads, which must be
        of equal widths. 1 is multi-query attention; None is one for each head
    bias, out_bias: whether the maps of inputs, and that of outputs, add one
    scale: 1/sqrt(d_i) in each head if None, or what the operator makes of None; 1.0 is the slides'
    operator: a function (q, k, v, *, mask, bias, scale), called with those that are given

    Heads of equal (d_i, e_i) run as one call of the operator, so with equal widths there is one. There is no dropout.
    """

    def __init__(
        self,
        query_width: int,
        *,
        heads: int,
        key_input_width: int | None = None,
        value_input_width: int | None = None,
        head_widths: int | Sequence[int] | None = None,
        value_widths: int | Sequence[int] | None = None,
        out_width: int | None = None,
        key_heads: int | None = None,
        bias: bool = True,
        out_bias: bool = True,
        scale: float | None = None,
        operator: Callable[..., Tensor] = softmax_attention,
    ) -> None:
        super().__init__()
        key_input_width = query_width if key_input_width is None else key_input_width
        value_input_width = query_width if value_input_width is None else value_input_width
        out_width = query_width if out_width is None else out_width
        key_heads = heads if key_heads is None else key_heads
        check_positive(
            query_width=query_width,
            heads=heads,
            key_input_width=key_input_width,
            value_input_width=value_input_width,
            out_width=out_width,
            key_heads=key_heads,
        )
        if head_widths is None and query_width % heads:
            raise InputError(f"expected head_widths, or heads that divide query_width; got {heads} and {query_width}")
        self.head_widths = _per_head("head_widths", query_width // heads if head_widths is None else head_widths, heads)
        self.value_widths = _per_head("value_widths", self.head_widths if value_widths is None else value_widths, heads)
        self.key_heads, self.scale, self.operator = key_heads, scale, operator
        self._share = _heads_per_key(self.head_widths, self.value_widths, key_heads)
        widths = list(zip(self.head_widths, self.value_widths, strict=True))
        self._groups = [[i for i in range(heads) if widths[i] == pair] for pair in dict.fromkeys(widths)]
        self.query = nn.Linear(query_width, sum(self.head_widths), bias=bias)
        self.key = nn.Linear(key_input_width, sum(self.head_widths[:: self._share]), bias=bias)
        self.value = nn.Linear(value_input_width, sum(self.value_widths[:: self._share]), bias=bias)
        self.out = nn.Linear(sum(self.value_widths), out_width, bias=out_bias)

    def forward(
        self,
        query: Float[Tensor, "*b n p"],
        key: Float[Tensor, "*b m c"] | None = None,
        value: Float[Tensor, "*b m r"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*b m"] | None = None,
        causal: bool = False,
        bias: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*b n o"]:
        """The output for every query, (..., n, out_width).

        query, key, value: (..., tokens, width); without a key the query is the key, without a value the key is
        mask: True where a query may look (torch.nn.MultiheadAttention has it the other way round), broadcasts to
            (..., h, n, m): a mask (b, n, m) for all heads is passed as mask[:, None]
        key_mask: (..., m), True where there is a key, as `pad_sets` makes it
        causal: whether the last query sees all keys and each query before it one less
        bias: added to the scores, broadcasts to (..., h, n, m)

        A query that may look nowhere gets the bias of W_o, or zeros without one.
        """
        key = query if key is None else key
        value = key if value is None else value
        tokens = {"query": query, "key": key, "value": value}
        check_tokens(tokens, {"query": self.query, "key": self.key, "value": self.value})
        if key.shape[-2] != value.shape[-2]:
            got = ", ".join(f"{name} {tuple(x.shape)}" for name, x in tokens.items())
            raise ShapeError(f"expected key and value of one number of tokens; got {got}")
        seen = visible_keys(
            (*query.shape[:-2], len(self.head_widths), query.shape[-2], key.shape[-2]),
            mask=mask,
            key_mask=key_mask,
            causal=causal,
            bias=bias,
            leading=query.ndim - 2,
            device=query.device,
        )
        joined: Tensor = self.out(self._heads(self.query(query), self.key(key), self.value(value), seen, bias))
        return joined

    def _heads(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, bias: Tensor | None) -> Tensor:
        """[H_1; ...; H_M], (..., n, sum of e_i)."""
        outputs: dict[int, Tensor] = {}
        for group in self._groups:
            shared = [i // self._share for i in group]
            options = {"mask": _of_heads(seen, group), "bias": _of_heads(bias, group), "scale": self.scale}
            out = self.operator(
                _split(q, self.head_widths, group),
                _split(k, self.head_widths[:: self._share], shared),
                _split(v, self.value_widths[:: self._share], shared),
                **{name: option for name, option in options.items() if option is not None},
            )
            if len(self._groups) == 1:
                return out.movedim(-3, -2).flatten(-2)
            outputs |= {i: out[..., place, :, :] for place, i in enumerate(group)}
        return torch.cat([outputs[i] for i in range(len(outputs))], dim=-1)

    def extra_repr(self) -> str:
        """The widths, which the maps do not show."""
        return f"head_widths={self.head_widths}, value_widths={self.value_widths}, key_heads={self.key_heads}"

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """The same attention as a torch.nn.MultiheadAttention, with a copy of its parameters.

        Tokens are (b, n, width) here, whatever the module's `batch_first`, masks are True where a query may look, and
        the output comes without weights. Refused are add_bias_kv, add_zero_attn, and dropout unless the module is in
        evaluation, where it has none.
        """
        check_supported(module)
        made = cls(
            module.embed_dim,
            heads=module.num_heads,
            key_input_width=module.kdim,
            value_input_width=module.vdim,
            bias=module.in_proj_bias is not None,
            out_bias=module.out_proj.bias is not None,
        ).to(module.out_proj.weight)
        made.load_torch_state_dict(module.state_dict())
        return made.train(module.training)

    def load_torch_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Copy the parameters of a torch.nn.MultiheadAttention, which must have this module's widths and biases.

        A state dict says neither how many heads its module had nor whether it had add_zero_attn; this one has no such
        key, and its number of heads should be the same.
        """
        if len({*self.head_widths, *self.value_widths}) > 1 or self._share > 1:
            raise InputError(
                f"expected heads of one width with keys of their own, as torch.nn.MultiheadAttention has; "
                f"got {self.extra_repr()}"
            )
        renamed = renamed_state(state_dict)
        wanted = {name: tuple(x.shape) for name, x in self.state_dict().items()}
        got = {name: tuple(x.shape) for name, x in renamed.items()}
        if wanted != got:
            raise InputError(f"expected parameters {wanted}; got {got}")
        self.load_state_dict(renamed)


def _per_head(name: str, widths: int | Sequence[int], heads: int) -> tuple[int, ...]:
    each = (widths,) * heads if isinstance(widths, int) else tuple(widths)
    if len(each) != heads or min(each) < 1:
        raise InputError(f"expected {name} of one or more for each of {heads} heads; got {widths}")
    return each


def _heads_per_key(head_widths: tuple[int, ...], value_widths: tuple[int, ...], key_heads: int) -> int:
    heads = len(head_widths)
    if heads % key_heads:
        raise InputError(f"expected key_heads that divide heads; got {key_heads} and {heads}")
    share = heads // key_heads
    pairs = list(zip(head_widths, value_widths, strict=True))
    if any(pairs[i] != pairs[i - i % share] for i in range(heads)):
        raise InputError(
            f"expected equal widths in the {share} heads that share keys and values; "
            f"got head_widths {head_widths}, value_widths {value_widths}"
        )
    return share


def _split(x: Tensor, widths: tuple[int, ...], chosen: list[int]) -> Tensor:
    """The chosen heads of x (..., tokens, sum of widths) as (..., heads, tokens, width); a view if all are."""
    if len(set(widths)) == 1:
        heads = x.reshape(*x.shape[:-1], len(widths), widths[0]).movedim(-2, -3)
        return heads if chosen == list(range(len(widths))) else heads[..., chosen, :, :]
    starts = [sum(widths[:i]) for i in chosen]
    return torch.stack([x[..., s : s + widths[i]] for s, i in zip(starts, chosen, strict=True)], dim=-3)


def _of_heads(added: Tensor | None, chosen: list[int]) -> Tensor | None:
    """The part of a mask or a bias that belongs to the chosen heads."""
    if added is None or added.ndim < 3 or added.shape[-3] == 1:
        return added
    return added[..., chosen, :, :]
