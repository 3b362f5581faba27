"""Training under autocast to bfloat16, on models with symmetric, RPC and adaptive layers."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.numerics.precision import tolerance
from clearhead.operators.named import RPC, Symmetric
from clearhead_lab.models.language import LanguageModel, LanguageModelConfig
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from clearhead_lab.training.batches import TensorBatches, TokenBatches
from clearhead_lab.training.loop import train
from clearhead_lab.training.recipe import Precision, Recipe
from clearhead_lab.training.tasks import Classification, Language

SIZES: dict[str, Any] = {"width": 12, "layers": 2, "heads": 3, "mlp_width": 10}
OPERATORS = (Symmetric(), RPC(iterations=3, strength=4.0))
STEPS = 10


def _train(kind: str, folder: Path, precision: Precision) -> tuple[nn.Module, list[float], dict[str, set[torch.dtype]]]:
    """Train for 10 steps of SGD. Return the model, the losses, and the dtypes of its hidden layers and its output."""
    generator = torch.Generator().manual_seed(1)
    recipe = Recipe(
        epochs=2,
        batch_size=8,
        optimizer="sgd",
        learning_rate=0.05,
        warmup=0.0,
        label_smoothing=0.1,
        precision=precision,
    )
    dtypes: dict[str, set[torch.dtype]] = {"training": set(), "evaluation": set()}
    losses: list[float] = []
    if kind == "vision":
        images = torch.randint(0, 256, (43, 3, 6, 6), generator=generator, dtype=torch.uint8)
        labels = torch.randint(0, 5, (43,), generator=generator)
        config = VisionTransformerConfig(
            image_size=6, patch_size=2, channels=3, classes=5, attention=OPERATORS, **SIZES
        )
        model: nn.Module = VisionTransformer(config, generator=generator)
        batches: Any = TensorBatches(images, labels, batch_size=8, seed=0)
    else:
        tokens = torch.randint(0, 23, (7 * 44,), generator=generator)
        model = LanguageModel(
            LanguageModelConfig(
                vocabulary=23,
                context=7,
                attention=OPERATORS,
                output="adaptive",
                cutoffs=(5, 11),
                tail_divisor=2.0,
                **SIZES,
            ),
            generator=generator,
        )
        batches = TokenBatches(tokens, context=7, batch_size=8, seed=0)

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        dtypes["training" if module.training else "evaluation"].add(output.dtype)

    for module in model.modules():
        if isinstance(module, nn.Linear) and module.weight.shape[0] == SIZES["mlp_width"]:
            module.register_forward_hook(note)

    def evaluate(trained: nn.Module) -> dict[str, Any]:
        inputs, _ = next(iter(batches.epoch(0)))
        trained.eval()
        with torch.no_grad():
            dtypes["evaluation"].add(trained(inputs).dtype)
        return {}

    task: Any = Classification(recipe, evaluate) if kind == "vision" else Language(evaluate)
    train(model, task, batches, recipe=recipe, folder=folder, progress=lambda step, steps, loss: losses.append(loss))
    return model, losses, dtypes


@pytest.mark.parametrize("kind", ["vision", "language"])
def test_bfloat16_follows_float32_and_keeps_the_weights_in_float32(tmp_path: Path, kind: str) -> None:
    _, exact, single = _train(kind, tmp_path / "float32", "float32")
    model, losses, mixed = _train(kind, tmp_path / "bfloat16", "bfloat16")
    assert len(losses) == len(exact) == STEPS
    assert single == {"training": {torch.float32}, "evaluation": {torch.float32}}
    assert mixed == {"training": {torch.bfloat16}, "evaluation": {torch.float32}}, "evaluation is in float32"
    assert all(math.isfinite(loss) for loss in losses)
    differences = [abs(ours - theirs) / theirs for ours, theirs in zip(losses, exact, strict=True)]
    # A loss is a mean over rows, whose rounding errors do not add up.
    assert max(differences) <= tolerance(torch.bfloat16, terms=1)
    assert max(differences) > tolerance(torch.float32, terms=SIZES["width"])  # control: products are less exact
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert all(torch.isfinite(weight).all() for weight in model.parameters())
