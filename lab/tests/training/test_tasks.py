"""Losses by row, mixing of neighbours, and batches of tokens."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead_lab.data.masks import IGNORED
from clearhead_lab.training.batches import TensorBatches, TokenBatches
from clearhead_lab.training.recipe import Recipe
from clearhead_lab.training.tasks import Classification, Language, Segmentation, mix_neighbours


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Scores(nn.Module):
    """A model that returns its input's channels as scores."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(images)
        return images.mean(dim=(2, 3))


def test_mixup_is_the_weighted_mean_of_neighbours_and_so_is_its_loss() -> None:
    images, labels = torch.rand(6, 4, 5, 7, generator=_generator()), torch.tensor([0, 1, 2, 3, 1, 2])
    mixed, share = mix_neighbours(images, _generator(3), mixup=0.7, cutmix=0.0)
    neighbours = images[[1, 0, 3, 2, 5, 4]]
    assert torch.allclose(mixed, share * images + (1 - share) * neighbours)
    model, recipe = Scores(), Recipe(epochs=1, mixup=0.7, label_smoothing=0.2, warmup=0.0)
    task = Classification(recipe)
    losses = task.losses(model, *task.draw(images, labels, _generator(3)))
    assert torch.allclose(model.seen[0], mixed)
    logs = mixed.mean(dim=(2, 3)).log_softmax(dim=1)
    own, other = (-logs[range(6), chosen] for chosen in (labels, labels[[1, 0, 3, 2, 5, 4]]))
    expected = 0.8 * (share * own + (1 - share) * other) - 0.2 * logs.mean(dim=1)
    assert torch.allclose(losses, expected)


def test_cutmix_puts_one_rectangle_of_the_neighbour_into_every_image() -> None:
    images = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 1, 9, 11)
    shares = []
    for seed in range(50):
        mixed, share = mix_neighbours(images, _generator(seed), mixup=0.0, cutmix=1.0)
        replaced = mixed != images
        assert torch.equal(mixed[replaced], images[[1, 0, 3, 2]][replaced])
        assert all(torch.equal(replaced[0], rows) for rows in replaced)
        assert float(replaced[0].float().mean()) == pytest.approx(1 - share)
        rows, columns = replaced[0, 0].any(dim=1), replaced[0, 0].any(dim=0)
        assert int(replaced[0, 0].sum()) == int(rows.sum() * columns.sum()), "the replaced pixels are a rectangle"
        shares.append(share)
    assert max(shares) > 0.8 > 0.4 > min(shares)


def test_the_share_has_a_beta_distribution_and_both_mixtures_occur() -> None:
    images = torch.zeros(2, 1, 1, 1)
    shares = [mix_neighbours(images, _generator(seed), mixup=0.3, cutmix=0.0)[1] for seed in range(400)]
    assert stats.kstest(shares, stats.beta(0.3, 0.3).cdf).pvalue > 1e-3
    assert stats.kstest(shares, stats.beta(1.0, 1.0).cdf).pvalue < 1e-3  # control: another alpha
    pixels = torch.rand(2, 1, 4, 4, generator=_generator())
    kinds = Counter(
        bool(torch.isin(mix_neighbours(pixels, _generator(seed), mixup=1.0, cutmix=1.0)[0], pixels).all())
        for seed in range(60)
    )
    assert min(kinds[True], kinds[False]) > 10


def test_mixing_is_the_same_for_parts_of_a_batch() -> None:
    images, labels = torch.rand(8, 3, 4, 4, generator=_generator()), torch.arange(8) % 3
    task = Classification(Recipe(epochs=1, mixup=0.8, cutmix=1.0, warmup=0.0))
    whole, *parts = (
        task.losses(Scores(), *task.draw(images[rows], labels[rows], _generator(1)))
        for rows in (slice(None), *(slice(i, i + 2) for i in range(0, 8, 2)))
    )
    assert torch.allclose(torch.cat(parts), whole)
    with pytest.raises(InputError, match="even number of rows in every process; got 3"):
        mix_neighbours(images[:3], _generator(), mixup=1.0, cutmix=0.0)


def test_segmentation_counts_the_pixels_of_each_image_that_are_not_ignored() -> None:
    scores = torch.randn(3, 4, 2, 5, generator=_generator())
    masks = torch.randint(0, 4, (3, 2, 5), generator=_generator())
    masks[0, :, 2:], masks[2] = IGNORED, IGNORED
    losses = Segmentation().losses(nn.Identity(), scores, masks)
    logs = scores.log_softmax(dim=1)
    for image in (0, 1):
        pixels = [(y, x) for y in range(2) for x in range(5) if masks[image, y, x] != IGNORED]
        expected = -sum(float(logs[image, masks[image, y, x], y, x]) for y, x in pixels) / len(pixels)
        assert float(losses[image]) == pytest.approx(expected, rel=1e-5)
    assert float(losses[2]) == 0


class Bigrams(nn.Module):
    """A language model whose scores of the next token depend on the token alone."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.randn(vocabulary, vocabulary, generator=_generator()))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.scores[tokens]


class WithLoss(Bigrams):
    """A model with a loss of its own."""

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return -self(tokens).log_softmax(dim=-1).gather(-1, targets[..., None])[..., 0]


def test_the_loss_of_a_sequence_is_the_mean_over_its_tokens() -> None:
    pieces = torch.randint(0, 7, (3, 6), generator=_generator())
    logs = Bigrams(7).scores.detach().log_softmax(dim=1)
    expected = [-sum(float(logs[a, b]) for a, b in pairwise(row)) / 5 for row in pieces.tolist()]
    for model in (Bigrams(7), WithLoss(7)):
        losses = Language().losses(model, pieces[:, :-1], pieces[:, 1:])
        assert losses.tolist() == pytest.approx(expected, rel=1e-5)


def test_an_epoch_of_tokens_has_every_piece_once_and_the_next_token_as_target() -> None:
    tokens = torch.arange(100)
    batches = TokenBatches(tokens, context=7, batch_size=4, seed=1)
    epochs = []
    for number in range(3):
        inputs, targets = (torch.cat(rows) for rows in zip(*batches.epoch(number), strict=True))
        assert len(inputs) == batches.steps * 4 == 12
        assert torch.equal(targets, inputs + 1)
        assert torch.equal(inputs, inputs[:, :1] + torch.arange(7))
        starts = inputs[:, 0].tolist()
        assert len({start % 7 for start in starts}) == 1
        assert len(set(starts)) == len(starts)
        epochs.append(tuple(starts))
    assert len(set(epochs)) == 3
    assert len({epoch[0] % 7 for epoch in epochs}) > 1, "epochs cut at different offsets"
    with pytest.raises(InputError, match="expected at least 15 tokens for a context of 7; got 14"):
        TokenBatches(tokens[:14], context=7, batch_size=1, seed=0)


def test_repeated_images_are_in_one_batch_with_different_augmentations() -> None:
    def noise(images: Tensor, generator: torch.Generator) -> Tensor:
        return images + torch.rand(images.shape, generator=generator) / 1000

    images, targets = torch.arange(50, dtype=torch.uint8).view(-1, 1, 1, 1), torch.arange(50)
    batches = TensorBatches(images, targets, batch_size=12, seed=2, augment=noise, repeats=3)
    seen = []
    for pixels, labels in batches.epoch(1):
        assert set(Counter(labels.tolist()).values()) == {3}
        assert torch.equal((255 * pixels.flatten()).floor().long(), labels)
        assert len(set(pixels.flatten().tolist())) == 12
        assert all(a != b for a, b in labels.view(6, 2).tolist()), "mixup mixes different images"
        seen += sorted(set(labels.tolist()))
    assert len(seen) == len(set(seen)) == 4 * 4
    assert batches.steps == 4
    with pytest.raises(InputError, match="expected repeats from 1 to the batch size of 12; got 13"):
        TensorBatches(images, targets, batch_size=12, seed=2, repeats=13)


@pytest.mark.parametrize("kind", ["images", "repeated images", "tokens"])
def test_processes_and_later_starts_get_rows_of_the_same_batches(kind: str) -> None:
    def noise(images: Tensor, generator: torch.Generator) -> Tensor:
        return images + torch.rand(images.shape, generator=generator)

    batches = (
        TensorBatches(torch.arange(50, dtype=torch.uint8).view(-1, 1, 1, 1), torch.arange(50), batch_size=8, seed=2,
                      augment=noise, repeats=3 if kind == "repeated images" else 1)
        if kind != "tokens" else TokenBatches(torch.arange(300), context=5, batch_size=8, seed=2)
    )  # fmt: skip
    whole = list(batches.epoch(1))
    assert len(whole) == batches.steps > 3
    parts = [list(batches.epoch(1, start=2, rows=rows)) for rows in (slice(0, 4), slice(4, 8))]
    for index in range(2, batches.steps):
        for column in (0, 1):
            joined = torch.cat([part[index - 2][column] for part in parts])
            assert torch.equal(joined, whole[index][column])


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_optimizers_take_the_step_of_their_definition(optimizer: str) -> None:
    """At the first step Adam moves by the rate, SGD by the gradient; decay is decoupled only in AdamW."""
    from clearhead_lab.training.loop import Stepper

    model = nn.Linear(3, 2, bias=False)
    before = model.weight.detach().clone()
    recipe = Recipe(epochs=1, optimizer=optimizer, weight_decay=0.5, clip=0.0, warmup=0.0)  # type: ignore[arg-type]
    pixels, labels = torch.randn(4, 3, generator=_generator()), torch.tensor([0, 1, 1, 0])
    gradient = torch.autograd.grad(nn.functional.cross_entropy(model(pixels), labels), model.weight)[0]
    Stepper(model, recipe, Classification(recipe))(pixels, labels, learning_rate=0.01)
    expected = {
        "adamw": before * (1 - 0.01 * 0.5) - 0.01 * gradient.sign(),
        "adam": before - 0.01 * (gradient + 0.5 * before).sign(),
        "sgd": before - 0.01 * (gradient + 0.5 * before),
    }
    assert torch.allclose(model.weight, expected[optimizer], atol=1e-5)


def test_accumulated_parts_give_the_gradient_of_the_whole_batch() -> None:
    from clearhead_lab.training.loop import Stepper

    weights = []
    for accumulate in (1, 2, 4):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        recipe = Recipe(epochs=1, batch_size=8, accumulate=accumulate, optimizer="sgd", warmup=0.0)
        pixels, labels = torch.randn(8, 3, generator=_generator()), torch.arange(8) % 2
        loss = Stepper(model, recipe, Classification(recipe))(pixels, labels, learning_rate=0.1)
        weights.append(torch.cat([model.weight.detach().flatten(), model.bias.detach(), torch.tensor([loss])]))
    assert all(torch.allclose(weights[0], other, atol=1e-6) for other in weights[1:])


def test_the_average_of_weights_is_exponential() -> None:
    from clearhead_lab.training.checkpoint import WeightAverage

    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
    average, expected = WeightAverage(model, 0.75), 0.0
    for value in (1.0, 5.0, -2.0):
        with torch.no_grad():
            model.weight.fill_(value)
        average.update()
        expected = 0.75 * expected + 0.25 * value
    with average.applied():
        assert model.weight.item() == pytest.approx(expected)
    assert model.weight.item() == -2.0
    average.apply()
    assert model.weight.item() == pytest.approx(expected)


def test_bfloat16_computes_products_in_bfloat16() -> None:
    from clearhead_lab.training.loop import Stepper

    seen: list[torch.dtype] = []
    model = nn.Linear(3, 2)
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    for precision in ("float32", "bfloat16"):
        recipe = Recipe(epochs=1, precision=precision, warmup=0.0)  # type: ignore[arg-type]
        loss = Stepper(model, recipe, Classification(recipe))(
            torch.randn(4, 3), torch.tensor([0, 1, 0, 1]), learning_rate=0.0
        )
        assert math.isfinite(loss)
    assert seen == [torch.float32, torch.bfloat16]
    assert model.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("accumulate", 3, "accumulate to divide batch_size; got 3 and 128"),
        ("optimizer", "lion", "optimizer among adamw, adam, sgd; got 'lion'"),
        ("ema", 1.0, "ema and label_smoothing of at least 0 and below 1"),
        ("mixup", -0.1, "mixup of at least 0; got -0.1"),
        ("learning_rate", math.nan, "learning_rate of at least 0; got nan"),
    ],
)
def test_impossible_settings_are_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Recipe(epochs=1, warmup=0.0, **{field: value})  # type: ignore[arg-type]
