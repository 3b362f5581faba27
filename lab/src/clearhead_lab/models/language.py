"""A causal language model: a pre-norm transformer with learned positions and any named operator in each layer.

The output map is the transposed token embedding (Press and Wolf 2017, arXiv 1608.05859), or an adaptive softmax (Grave
et al. 2017, arXiv 1609.04309), which spends little time on rare tokens. The input is token ids; there is no tokenizer.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

from clearhead.errors import InputError
from clearhead.operators.symmetric_kernel import no_autocast
from clearhead.shapes import Float, Int, ShapeError
from clearhead_lab.models.image_sizes import check_divides, check_sizes
from clearhead_lab.models.transformer_block import (
    SOFTMAX,
    TransformerBlock,
    check_rate,
    initialise_maps,
    per_layer,
    resolve_attention,
)

INITIAL_DEVIATION = 0.02
"""Standard deviation of initial tokens and positions."""
MAX_CUTOFFS = 16
MAX_LOGITS = 2**28
"""The largest number of logits that the loss stores at once: 1 GiB in float32. More are computed twice, in chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModelConfig:
    """Settings of a language model.

    vocabulary: number of token ids
    context: maximum sequence length
    width: size of a token; must be a multiple of heads
    mlp_width: size of the MLP's hidden layer
    dropout: probability of dropping numbers of embeddings, of hidden layers and of the branches of blocks
    attention: an operator of `OPERATORS`, or a tuple with one per layer; all are causal
    output: "tied" for the transposed embedding, "adaptive" for an adaptive softmax; ids are then sorted by frequency
    cutoffs: of the adaptive softmax, increasing: ids below the first are frequent, each other range is a cluster
    tail_divisor: by which each cluster's tokens are narrower than those of the cluster before
    """

    vocabulary: int
    context: int
    width: int = 128
    layers: int = 6
    heads: int = 8
    mlp_width: int = 512
    dropout: float = 0.0
    attention: Any = SOFTMAX
    output: str = "tied"
    cutoffs: tuple[int, ...] = ()
    tail_divisor: float = 4.0

    def __post_init__(self) -> None:
        names = ("vocabulary", "context", "width", "layers", "heads", "mlp_width")
        check_sizes(**{name: getattr(self, name) for name in names})
        check_divides(whole="width", part="heads", sizes=(self.width, self.heads))
        check_rate("dropout", self.dropout)
        object.__setattr__(self, "cutoffs", tuple(self.cutoffs))
        self._check_output()
        object.__setattr__(self, "attention", resolve_attention(self.attention, self.layers))

    @property
    def layer_attention(self) -> tuple[Any, ...]:
        """Return the operator of every layer."""
        return per_layer(self.attention, self.layers)

    def _check_output(self) -> None:
        if self.output not in ("tied", "adaptive"):
            raise InputError(f'expected output "tied" or "adaptive"; got {self.output!r}')
        if self.output == "tied" and self.cutoffs:
            raise InputError(f"expected no cutoffs with the tied output; got {self.cutoffs}")
        if self.output == "tied":
            return
        check_sizes(cutoffs=len(self.cutoffs), **{f"cutoffs[{i}]": cutoff for i, cutoff in enumerate(self.cutoffs)})
        bounds = (*self.cutoffs, self.vocabulary)
        if len(self.cutoffs) > MAX_CUTOFFS or any(a >= b for a, b in pairwise(bounds)):
            raise InputError(
                f"expected at most {MAX_CUTOFFS} increasing cutoffs below the vocabulary of {self.vocabulary}; "
                f"got {self.cutoffs}"
            )
        if not 1 <= self.tail_divisor < math.inf or self.width < self.tail_divisor ** len(self.cutoffs):
            raise InputError(
                f"expected tail_divisor of at least 1 that leaves the last of {len(self.cutoffs)} clusters a width of "
                f"at least 1; got {self.tail_divisor!r} for width {self.width}"
            )


class LanguageModel(nn.Module):
    r"""A causal language model: predicts the next token at each position.

    .. math::
        x \leftarrow x + A(\mathrm{LN}(x)), \qquad x \leftarrow x + W_2\, \mathrm{GELU}(W_1 \mathrm{LN}(x))

    over tokens x = embeddings + positions, `layers` times, with causal A. The logits are E LN(x), with E the
    embeddings, or those of an adaptive softmax. Equal generator states give equal initial weights whatever the
    attention: all parameters that two models have in common are equal.
    """

    def __init__(self, config: LanguageModelConfig, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Parameter(torch.empty(config.context, config.width))
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(config.width, config.heads, config.mlp_width, operator=operator, dropout=config.dropout)
            for operator in config.layer_attention
        )
        self.norm = nn.LayerNorm(config.width)
        self.adaptive = None
        if config.output == "adaptive":
            self.adaptive = nn.AdaptiveLogSoftmaxWithLoss(
                config.width, config.vocabulary, cutoffs=config.cutoffs, div_value=config.tail_divisor
            )
        self._initialise(generator)

    def forward(self, tokens: Int[Tensor, "b n"]) -> Float[Tensor, "b n vocabulary"]:
        """Return logits of the next token, (b, n, vocabulary); log-probabilities if the output is adaptive.

        tokens: ids (b, n)
        """
        x = self.encode(tokens)
        if self.adaptive is None:
            return linear(x, self.embedding.weight)
        with no_autocast(x):  # it writes float32 into tensors of the dtype of x
            outputs: Tensor = self.adaptive.log_prob(x.flatten(0, 1).to(self.adaptive.head.weight.dtype))
        return outputs.reshape(*tokens.shape, -1)

    def loss(self, tokens: Int[Tensor, "b n"], targets: Int[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """Return the negative log-likelihood of each target, (b, n), in nats. targets: the next tokens, ids (b, n)."""
        if targets.shape != tokens.shape:
            raise ShapeError(f"expected targets {tuple(tokens.shape)}, as tokens; got {tuple(targets.shape)}")
        x, expected = self.encode(tokens).flatten(0, 1), targets.flatten()
        if self.adaptive is None:
            losses = _tied_loss(x, self.embedding.weight, expected)
        else:
            losses = _adaptive_loss(self.adaptive, x, expected)
        return losses.reshape(tokens.shape)

    def encode(self, tokens: Tensor) -> Tensor:
        """Return the normalised tokens after the last block, (b, n, width)."""
        if tokens.ndim != 2 or tokens.shape[1] > self.config.context:
            raise ShapeError(f"expected tokens (b, n), n at most {self.config.context}; got {tuple(tokens.shape)}")
        if tokens.is_floating_point():
            raise InputError(f"expected tokens of an integer dtype; got {tokens.dtype}")
        x = self.dropout(self.embedding(tokens) + self.positions[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x, causal=True)
        normalised: Tensor = self.norm(x)
        return normalised

    def _initialise(self, generator: torch.Generator | None) -> None:
        """Initialise maps as `initialise_maps`; tokens and positions are small.

        The maps that end a branch are divided by sqrt(2 layers), as in GPT-2, so that the residual stream does not grow
        with depth.
        """
        for parameter in (self.embedding.weight, self.positions):
            nn.init.normal_(parameter, std=INITIAL_DEVIATION, generator=generator)
        initialise_maps(self, generator)
        with torch.no_grad():
            for name, weight in self.blocks.named_parameters():
                if name.endswith(("attention.out.weight", "mlp.2.weight")):
                    weight.div_(math.sqrt(2 * self.config.layers))


def _tied_loss(x: Tensor, embeddings: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each row of x. Chunks of rows bound the memory; their logits are computed twice."""
    rows = max(MAX_LOGITS // len(embeddings), 1)
    if len(x) <= rows:
        return _cross_entropy(x, embeddings, targets)
    chunks = zip(torch.split(x, rows), torch.split(targets, rows), strict=True)
    return torch.cat([checkpoint(_cross_entropy, part, embeddings, of, use_reentrant=False) for part, of in chunks])


def _adaptive_loss(adaptive: nn.AdaptiveLogSoftmaxWithLoss, x: Tensor, targets: Tensor) -> Tensor:
    """Return the negative log-likelihood of each row of x.

    Clusters without targets have a gradient of zero, not None: processes of a distributed training see other clusters.
    """
    with no_autocast(x):  # it writes float32 into tensors of the dtype of x
        x = x.to(adaptive.head.weight.dtype)
        likelihoods: Tensor = adaptive(x, targets).output
        nothing = torch.stack([cluster(x[:0]).sum() for cluster in adaptive.tail]).sum()
    return nothing - likelihoods


def _cross_entropy(x: Tensor, embeddings: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(linear(x, embeddings), targets, reduction="none")
