"""Small transformers that record their residual stream, each with a different block."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

BATCH, TOKENS, WIDTH, HEADS, HIDDEN, BLOCKS = 3, 11, 14, 2, 23, 3

Carried = tuple[Tensor, Tensor, Tensor | None]


class Attention(nn.Module):
    """Attention by torch's function, with tokens on the second axis from the end."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *, add_values: bool = False, overwrite: bool = False) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.project(x).chunk(3, dim=-1))
        attended = functional.scaled_dot_product_attention(q, k, v)
        mapped: Tensor = self.out((attended + v if add_values else attended).transpose(1, 2).flatten(2))
        if overwrite:
            attended.zero_()
        return mapped


class Parts(nn.Module):
    """The modules of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.other = Attention(), Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
        self.inner, self.dictionary = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.torchs = nn.MultiheadAttention(WIDTH, HEADS)
        self.norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)


Step = Callable[[Parts, Tensor], tuple[Tensor, Carried | None]]


class Toy(nn.Module):
    """Blocks that also return their residual stream. `carried` has copies from the last pass, or None."""

    def __init__(self, step: Step, blocks: int = BLOCKS) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Parts() for _ in range(blocks))
        self.embed, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
        self.step = step
        self.carried: list[Carried | None] = []

    def forward(self, x: Tensor) -> Tensor:
        self.carried = []
        x = self.embed(x)
        for block in self.blocks:
            x, carried = self.step(block, x)
            self.carried.append(carried)
        scores: Tensor = self.head(functional.layer_norm(x, (WIDTH,)))
        return scores


def toy_model(step: Step, blocks: int = BLOCKS) -> Toy:
    torch.manual_seed(0)
    return Toy(step, blocks).eval()


def tokens(*shape: int) -> Tensor:
    return torch.randn(*(shape or (BATCH, TOKENS)), WIDTH, generator=torch.Generator().manual_seed(1))


def pre_norm(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    between = x + block.attention(block.norm(x))
    after = between + block.mlp(block.mlp_norm(between))
    return after, (x, between, after)


def post_norm(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    between = block.norm(x + block.attention(x))
    after = block.mlp_norm(between + block.mlp(between))
    return after, (x, between, after)


def post_norm_twice(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    """Two MLPs after attention."""
    between = block.norm(x + block.attention(x))
    first = block.mlp_norm(between + block.mlp(between))
    after = block.mlp_norm(first + block.inner(first))
    return after, (x, between, after)


def scaled(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    between = torch.add(x, block.attention(block.norm(x)), alpha=0.5)
    after = between + 0.5 * block.mlp(block.mlp_norm(between))
    return after, (x, between, after)


def scaled_stream(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    """As in DeepNet (Wang et al. 2022)."""
    between = block.norm(1.7 * x + block.attention(x))
    after = block.mlp_norm(block.mlp(between) + between * 1.7)
    return after, (x, between, after)


def copied(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    kept = x.clone()
    between = kept + block.attention(block.norm(x))
    after = block.mlp(block.mlp_norm(between)) + between.clone()
    return after, (x, between, after)


def in_place(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    before = x.clone()
    x += block.attention(block.norm(x)).mul_(0.9)
    between = x.clone()
    x += block.mlp(block.mlp_norm(x))
    return x, (before, between, x.clone())


def overwritten(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    """Used tensors are overwritten: the output of attention, and the tokens after each sum."""
    before = x.clone()
    total = x - block.attention(block.norm(x), overwrite=True)
    x.zero_()
    between = total.clone()
    after = total + block.mlp(block.mlp_norm(total))
    total.zero_()
    return after, (before, between, after.clone())


def values_added(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    """A sum within the attention, of its output and the values."""
    between = x + block.attention(block.norm(x), add_values=True)
    after = between + block.mlp(block.mlp_norm(between))
    return after, (x, between, after)


def flattened(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    """The MLP has the tokens of all inputs on one axis."""
    between = x + block.attention(block.norm(x))
    rows = between.reshape(-1, WIDTH)
    after = (rows + block.mlp(block.mlp_norm(rows))).view(x.shape)
    return after, (x, between, after)


def tokens_first(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    between = x + block.attention(block.norm(x).transpose(0, 1)).transpose(0, 1)
    after = between + block.mlp(block.mlp_norm(between))
    return after, (x.transpose(0, 1), between.transpose(0, 1), after.transpose(0, 1))


def turned_for_attention(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    """Attention has tokens first, the model has the batch first."""
    normed = block.norm(x).transpose(0, 1)
    between = x + block.torchs(normed, normed, normed, need_weights=False)[0].transpose(0, 1)
    after = between + block.mlp(block.mlp_norm(between))
    return after, (x, between, after)


def inner_residual(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    between = x + block.attention(block.norm(x))
    hidden = block.inner(block.mlp_norm(between))
    after = between + block.inner(hidden + block.mlp(hidden))
    return after, (x, between, after)


def macaron(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    """Half a step before attention and two modules after it, with a norm at the end, as in a conformer."""
    x = x + 0.5 * block.inner(block.norm(x))
    between = x + block.attention(block.norm(x))
    following = between + block.mlp(block.mlp_norm(between))
    end = block.norm(following + 0.5 * block.dictionary(following))
    return end, (x, between, None)


def two_in_one_sum(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    normed = block.norm(x)
    between = x + (block.attention(normed) + block.other(normed))
    after = between + block.mlp(block.mlp_norm(between))
    return after, (x, between, after)


def crate(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    between = block.attention(block.norm(x)) + x
    z = block.mlp_norm(between)
    after = functional.relu(z + 0.1 * functional.linear(z - block.dictionary(z), block.dictionary.weight.mT) - 0.01)
    return after, (x, between, after)


def crate_by_subtraction(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    between = x - block.attention(block.norm(x))
    z = block.mlp_norm(between)
    after = functional.relu(z - 0.1 * (block.dictionary(z) - z) - 0.01)
    return after, (x, between, after)


def attention_alone(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    between = x + block.attention(block.norm(x))
    return between, (x, between, None)


def attention_alone_with_sums(block: Parts, x: Tensor) -> tuple[Tensor, Carried]:
    """Sums before and within the attention do not belong to the previous block."""
    normed = block.norm(x)
    hidden = block.inner(normed)
    between = x + block.attention(hidden + block.dictionary(hidden), add_values=True)
    return between, (x, between, None)


def no_residual(block: Parts, x: Tensor) -> tuple[Tensor, None]:
    return block.mlp(block.attention(x)), None


def residual_elsewhere(block: Parts, x: Tensor) -> tuple[Tensor, None]:
    """The MLP has a residual connection, attention has none."""
    x = block.attention(x)
    return x + block.mlp(x), None


def stream_taken_away(block: Parts, x: Tensor) -> tuple[Tensor, None]:
    """The tokens are subtracted, so they are not a residual stream."""
    x = block.attention(block.norm(x)) - x
    return x + block.mlp(block.mlp_norm(x)), None


def stream_halved(block: Parts, x: Tensor) -> tuple[Tensor, None]:
    x = torch.add(block.attention(block.norm(x)), x, alpha=0.5)
    return x + block.mlp(block.mlp_norm(x)), None


def parallel(block: Parts, x: Tensor) -> tuple[Tensor, None]:
    normed = block.norm(x)
    return (block.attention(normed) + block.mlp(normed)) + x, None


def parallel_in_turn(block: Parts, x: Tensor) -> tuple[Tensor, None]:
    normed = block.norm(x)
    return x + block.attention(normed) + block.mlp(normed), None


def parallel_in_place(block: Parts, x: Tensor) -> tuple[Tensor, None]:
    normed = block.norm(x)
    attended = block.attention(normed)
    after = block.mlp(normed)
    after += attended
    after += x
    return after, None


def beside_in_one_map(block: Parts, x: Tensor) -> tuple[Tensor, None]:
    normed = block.norm(x)
    both = torch.cat([block.attention(normed), block.mlp(normed)], dim=-1)
    return x + both @ block.attention.project.weight[: 2 * WIDTH], None
