"""The pre-norm transformer block of Clearhead's own models, its operator in each layer, and its initial weights.

And the settings of all models as plain values. An operator that uses queries has a projection of them, others none.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.modules import SymmetricAttention
from clearhead.modules.multi_head import MultiHeadAttention
from clearhead.operators.named import OPERATORS, Softmax, is_named, operator_from_dict, operator_to_dict
from clearhead.records import check_fields
from clearhead.shapes import Bool, Float


class KeysAsQueries:
    """An operator (q, k, v, *, mask, scale) with keys as queries, (k, v, *, mask, scale)."""

    def __init__(self, operator: Callable[..., Tensor]) -> None:
        self.operator = operator

    def __call__(
        self,
        k: Float[Tensor, "*b n d"],
        v: Float[Tensor, "*b n e"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        scale: float | None = None,
    ) -> Float[Tensor, "*b n e"]:
        """Return the output, (..., n, e)."""
        return self.operator(k, k, v, mask=mask, scale=scale)


def attention_module(operator: Any, *, embed_dim: int, num_heads: int) -> nn.Module:
    """Return self-attention by an operator of `clearhead.operators.OPERATORS`.

    If the operator ignores queries there is no W_Q, as symmetric attention was published. All other projections have
    the names, shapes and biases of `MultiHeadAttention`. Parameters of an operator become parameters of the module.
    """
    if not operator.uses_queries:
        return SymmetricAttention(embed_dim, num_heads, operator=KeysAsQueries(operator))
    operator = operator.build() if hasattr(operator, "build") else operator
    return MultiHeadAttention(embed_dim, num_heads, operator=operator)


SOFTMAX = Softmax()
ATTENTION = ("attention", "decoder_attention")
"""The settings that are operators."""

Config = TypeVar("Config")


def per_layer(attention: Any, layers: int) -> tuple[Any, ...]:
    """Return the operator of every layer, from one operator for all layers or a sequence with one for each."""
    return tuple(attention) if isinstance(attention, Sequence) else (attention,) * layers


def resolve_attention(attention: Any, layers: int, *, name: str = "attention") -> Any:
    """Return one named operator if all layers have the same, else a tuple with one per layer; raise InputError."""
    operators = per_layer(attention, layers)
    if len(operators) != layers or not all(map(is_named, operators)):
        raise InputError(
            f"expected named operators as {name} ({', '.join(OPERATORS.names())}), one for all layers or one for "
            f"each of {layers}; got {attention!r}"
        )
    return operators[0] if all(operator == operators[0] for operator in operators) else operators


def attention_as_json(attention: Any) -> Any:
    """Return a resolved attention as plain values: one operator, or a list with one per layer."""
    if isinstance(attention, tuple):
        return [operator_to_dict(operator) for operator in attention]
    return operator_to_dict(attention)


def attention_from_json(stored: Any) -> Any:
    """Return the attention that `attention_as_json` wrote. Raise ValueError for anything else."""
    return tuple(map(operator_from_dict, stored)) if isinstance(stored, list) else operator_from_dict(stored)


def config_as_json(config: Any) -> dict[str, Any]:
    """Return the settings of a model as plain values, operators by name.

    Left out are those that the config's class lists as `LEFT_OUT` and that have their defaults.
    """
    plain = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in getattr(config, "LEFT_OUT", ()) or value != field.default:
            plain[field.name] = attention_as_json(value) if field.name in ATTENTION else value
    return plain


def config_from_json(kind: type[Config], stored: Mapping[str, Any]) -> Config:
    """Return the settings that `config_as_json` wrote. Raise ValueError or TypeError for anything else.

    Settings that the class lists as `OLDER` have these values where they are absent: the file is older than they are.
    """
    settings = {**getattr(kind, "OLDER", {}), **stored}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if isinstance(settings.get(field.name), list) and field.name not in ATTENTION:  # JSON has no tuples
            settings[field.name] = tuple(settings[field.name])
        elif field.name in ATTENTION and field.name in settings:
            settings[field.name] = attention_from_json(settings[field.name])
    return check_fields(kind(**settings), "the config", remedy="correct it")


def check_rate(name: str, rate: float) -> None:
    """Raise InputError unless the probability is from 0 to below 1."""
    if not 0 <= rate < 1:
        raise InputError(f"expected {name} from 0 to below 1; got {rate!r}")


def drop_path_rates(last: float, layers: int) -> list[float]:
    """Return the drop-path probability of each layer: linear from 0 in the first layer to `last` in the last."""
    return [last * layer / max(layers - 1, 1) for layer in range(layers)]


class DropPath(nn.Module):
    """Stochastic depth (Huang et al. 2016, arXiv 1603.09382): drops a branch for whole samples, in training only.

    Each sample is multiplied by 0 with probability `rate`, else by 1 / (1 - rate). torch's default generator draws.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "b *n"]) -> Float[Tensor, "b *n"]:
        """Return the branch x with samples dropped."""
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        return x * x.new_empty(len(x), *[1] * (x.ndim - 1)).bernoulli_(keep).div_(keep)

    def extra_repr(self) -> str:
        """Return the rate."""
        return f"rate={self.rate}"


class TransformerBlock(nn.Module):
    r"""Attention and an MLP, each on normalised tokens and with a residual connection.

    .. math:: x \leftarrow x + A(\mathrm{LN}(x)), \qquad x \leftarrow x + W_2\, \mathrm{GELU}(W_1 \mathrm{LN}(x))

    operator: A, an operator of `OPERATORS`
    drop_path: probability of dropping a branch for a sample
    dropout: probability of dropping numbers of the hidden layer and of both branches
    norm_eps: added to the variance in norms
    """

    def __init__(
        self,
        width: int,
        heads: int,
        mlp_width: int,
        *,
        operator: Any,
        drop_path: float = 0.0,
        dropout: float = 0.0,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, eps=norm_eps)
        self.attention = attention_module(operator, embed_dim=width, num_heads=heads)
        self.mlp_norm = nn.LayerNorm(width, eps=norm_eps)
        activation = nn.Sequential(nn.GELU(), nn.Dropout(dropout))
        self.mlp = nn.Sequential(nn.Linear(width, mlp_width), activation, nn.Linear(mlp_width, width))
        self.drop = nn.Sequential(nn.Dropout(dropout), DropPath(drop_path))

    def forward(self, x: Float[Tensor, "b n d"], *, causal: bool = False) -> Float[Tensor, "b n d"]:
        """Return the tokens after the block. causal: True if a token sees only itself and the tokens before it."""
        x = x + self.drop(self.attention(self.attention_norm(x), causal=causal))
        output: Tensor = x + self.drop(self.mlp(self.mlp_norm(x)))
        return output


def initialise_maps(model: nn.Module, generator: torch.Generator | None) -> None:
    """Initialise linear maps as Glorot and Bengio (2010), biases with zero.

    Attention without W_Q draws in its place, so that the maps that two models have in common are equal.
    """
    for module in model.modules():
        if isinstance(module, SymmetricAttention):
            nn.init.xavier_uniform_(torch.empty_like(module.key.weight), generator=generator)
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
