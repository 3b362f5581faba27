"""What a recipe promises: which weights decay, what is drawn when, and what one step does."""

import math
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead_lab.training.batches import TensorBatches
from clearhead_lab.training.loop import Stepper, read_log, train
from clearhead_lab.training.recipe import Recipe, learning_rate
from clearhead_lab.training.tasks import Classification

IMAGES, BATCH, CLASSES, EPOCHS = 23, 5, 3, 4
RECIPE = Recipe(epochs=EPOCHS, batch_size=BATCH, learning_rate=3e-3, warmup=1.0, seed=11)


class Recorder(nn.Module):
    """A classifier of images with one pixel, which records what it is given and in which mode."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(1, CLASSES)
        self.pixels: list[Tensor] = []
        self.modes: list[bool] = []

    def forward(self, pixels: Tensor) -> Tensor:
        self.pixels.append(pixels.detach().flatten())
        self.modes.append(self.training)
        return self.map(pixels.flatten(1))


def _train(folder: Path, **options: Any) -> Recorder:
    """Train on images whose only pixel is their number."""
    torch.manual_seed(0)
    model = Recorder()
    images = torch.arange(IMAGES, dtype=torch.uint8).reshape(-1, 1, 1, 1)
    labels = torch.arange(IMAGES) % CLASSES

    def evaluate(trained: nn.Module) -> dict[str, Any]:
        trained.eval()
        return {}

    augment = options.pop("augment", None)
    batches = TensorBatches(images, labels, batch_size=BATCH, seed=RECIPE.seed, augment=augment)
    train(model, Classification(RECIPE, evaluate), batches, recipe=RECIPE, folder=folder, **options)
    return model


def _orders(model: Recorder) -> list[list[int]]:
    """Return the numbers of the images in the order of every epoch."""
    steps = IMAGES // BATCH
    numbers = [(255 * pixels).round().int().tolist() for pixels in model.pixels]
    return [list(chain(*numbers[first : first + steps])) for first in range(0, len(numbers), steps)]


def test_every_epoch_has_its_own_order_of_different_images(tmp_path: Path) -> None:
    model = _train(tmp_path)
    orders = _orders(model)
    assert len(orders) == EPOCHS
    assert all(len(set(order)) == len(order) == IMAGES // BATCH * BATCH for order in orders)
    assert len({tuple(order) for order in orders}) == EPOCHS
    assert all(len(pixels) == BATCH for pixels in model.pixels), "the batch that is not full is left out"
    assert max(float(pixels.max()) for pixels in model.pixels) <= 1, "pixels are from 0 to 1"


def test_the_model_trains_in_training_mode_after_every_evaluation(tmp_path: Path) -> None:
    modes = _train(tmp_path).modes
    assert len(modes) == EPOCHS * (IMAGES // BATCH)
    assert all(modes)


def test_augmentation_has_random_numbers_of_its_own_at_every_step(tmp_path: Path) -> None:
    states: list[Tensor] = []

    def augment(batch: Tensor, generator: torch.Generator) -> Tensor:
        states.append(generator.get_state())
        return batch

    orders = _orders(_train(tmp_path, augment=augment))
    permutations = []
    for state in states:
        generator = torch.Generator()
        generator.set_state(state)
        permutations.append(torch.randperm(IMAGES, generator=generator).tolist())
    assert len({tuple(permutation) for permutation in permutations}) == len(states) == EPOCHS * (IMAGES // BATCH)
    used = {tuple(order) for order in orders}
    assert not used & {tuple(permutation[: IMAGES // BATCH * BATCH]) for permutation in permutations}


def test_the_learning_rate_follows_the_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    step = Stepper.__call__

    def recorded(self: Stepper, *args: Tensor, **options: Any) -> float:
        loss = step(self, *args, **options)
        rates.extend({group["lr"] for group in self.optimizer.param_groups})
        return loss

    monkeypatch.setattr(Stepper, "__call__", recorded)
    _train(tmp_path)
    per_epoch = IMAGES // BATCH
    steps = EPOCHS * per_epoch
    assert rates == pytest.approx([learning_rate(RECIPE, i, steps=steps, warmup=per_epoch) for i in range(steps)])


def test_the_logged_loss_is_the_mean_of_the_epoch(tmp_path: Path) -> None:
    losses: list[float] = []
    _train(tmp_path, progress=lambda step, steps, loss: losses.append(loss))
    per_epoch = IMAGES // BATCH
    means = [sum(losses[i : i + per_epoch]) / per_epoch for i in range(0, len(losses), per_epoch)]
    assert [entry["loss"] for entry in read_log(tmp_path)] == pytest.approx(means)


class Weights(nn.Module):
    """Weights of every kind, scores that are `size` times a part of them, and one frozen matrix."""

    def __init__(self, size: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.matrix = nn.Parameter(torch.randn(4, CLASSES, generator=generator))
        self.bias = nn.Parameter(torch.randn(CLASSES, generator=generator))
        self.tokens = nn.Parameter(torch.randn(1, 2, 4, generator=generator))
        self.frozen = nn.Parameter(torch.randn(2, 2, generator=generator), requires_grad=False)
        self.size = size

    def forward(self, pixels: Tensor) -> Tensor:
        own = pixels @ self.matrix + self.bias + self.tokens.sum() + self.frozen.sum()
        return self.size * own


def _batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(BATCH, 4, generator=generator), torch.arange(BATCH) % CLASSES


def _stepper(model: nn.Module, recipe: Recipe) -> Stepper:
    return Stepper(model, recipe, Classification(recipe))


def _norm(model: nn.Module) -> float:
    return math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None))


def test_weight_decay_is_on_matrices_alone() -> None:
    """Without a gradient AdamW only multiplies by 1 - rate x decay."""
    model = Weights(size=0.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    _stepper(model, Recipe(epochs=1, warmup=0.0, weight_decay=0.2))(*_batch(), learning_rate=0.1)
    assert torch.allclose(model.matrix, 0.98 * before["matrix"])
    for name in ("bias", "tokens", "frozen"):
        assert torch.equal(dict(model.named_parameters())[name], before[name])


@pytest.mark.parametrize("size", [100.0, 0.01])
def test_gradients_are_clipped_to_a_norm_and_small_ones_are_kept(size: float) -> None:
    free, clipped = Weights(size), Weights(size)
    nn.functional.cross_entropy(free(_batch()[0]), _batch()[1]).backward()
    _stepper(clipped, Recipe(epochs=1, warmup=0.0, clip=0.5))(*_batch(), learning_rate=0.0)
    assert (_norm(free) > 0.5) == (size == 100.0)
    assert _norm(clipped) == pytest.approx(min(_norm(free), 0.5), rel=1e-4)


def test_the_loss_has_label_smoothing() -> None:
    model, (pixels, labels) = Weights(1.0), _batch()
    logs = model(pixels).detach().log_softmax(dim=-1)
    expected = -(0.7 * logs[torch.arange(BATCH), labels] + 0.3 * logs.mean(dim=-1)).mean()
    loss = _stepper(model, Recipe(epochs=1, warmup=0.0, label_smoothing=0.3))(pixels, labels, learning_rate=0.1)
    assert loss == pytest.approx(float(expected))


def test_gradients_of_one_step_do_not_reach_the_next() -> None:
    model = Weights(0.1)
    take_step = _stepper(model, Recipe(epochs=1, warmup=0.0, clip=1e9))
    norms = []
    for _ in range(3):
        take_step(*_batch(), learning_rate=0.0)
        norms.append(_norm(model))
    assert norms == pytest.approx([norms[0]] * 3)


def test_a_step_lowers_the_loss() -> None:
    model = Weights(1.0)
    take_step = _stepper(model, Recipe(epochs=1, warmup=0.0))
    losses = [take_step(*_batch(), learning_rate=1e-2) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 5
