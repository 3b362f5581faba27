"""Short trainings that torchrun starts in several processes: `processes_script.py FOLDER SHARDING [STEP]`."""

import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.operators.named import RPC, ClampedKeys, Symmetric
from clearhead_lab.models.language import LanguageModel, LanguageModelConfig
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from clearhead_lab.training.batches import TensorBatches, TokenBatches
from clearhead_lab.training.distributed import ALONE, Processes, join_processes, whole_tensor
from clearhead_lab.training.evaluation import measure_accuracy, measure_perplexity
from clearhead_lab.training.loop import train
from clearhead_lab.training.recipe import Recipe
from clearhead_lab.training.tasks import Classification, Language, Task

OPERATORS = (RPC(iterations=3, strength=4.0), ClampedKeys(), Symmetric())
VISION = VisionTransformerConfig(
    image_size=8, patch_size=2, channels=3, classes=5, width=12, layers=3, heads=3, mlp_width=10, attention=OPERATORS
)
LANGUAGE = LanguageModelConfig(
    vocabulary=23, context=6, width=12, layers=3, heads=3, mlp_width=10, attention=OPERATORS, output="adaptive",
    cutoffs=(5, 11), tail_divisor=2.0,
)  # fmt: skip
RECIPE = Recipe(
    epochs=4, batch_size=16, accumulate=2, learning_rate=3e-3, mixup=0.8, cutmix=1.0, ema=0.9, label_smoothing=0.1
)
STEPS = 5


def _vision(generator: torch.Generator) -> tuple[nn.Module, Task, Any]:
    images = torch.randint(0, 256, (STEPS * RECIPE.batch_size + 3, 3, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 5, (len(images),), generator=generator)

    def evaluate(model: nn.Module) -> Mapping[str, Any]:
        return {"right": measure_accuracy(model, images, labels).right}

    batches = TensorBatches(images, labels, batch_size=RECIPE.batch_size, seed=RECIPE.seed)
    return VisionTransformer(VISION, generator=generator), Classification(RECIPE, evaluate), batches


def _language(generator: torch.Generator) -> tuple[nn.Module, Task, Any]:
    tokens = torch.randint(0, 23, (6 * (STEPS * RECIPE.batch_size + 1),), generator=generator)

    def evaluate(model: nn.Module) -> Mapping[str, Any]:
        return {"perplexity": measure_perplexity(model, tokens[:50], context=6)}

    batches = TokenBatches(tokens, context=6, batch_size=RECIPE.batch_size, seed=RECIPE.seed)
    return LanguageModel(LANGUAGE, generator=generator), Language(evaluate), batches


def run(
    kind: str, folder: Path, processes: Processes = ALONE, *, stop_at: int = 0
) -> tuple[list[float], dict[str, Tensor], list[dict[str, Any]]]:
    """Train for 20 steps; return losses, final weights and log. stop_at: the step at which Ctrl-C arrives."""
    model, task, batches = (_vision if kind == "vision" else _language)(torch.Generator().manual_seed(0))
    losses: list[float] = []

    def progress(step: int, steps: int, loss: float) -> None:
        losses.append(loss)
        if step == stop_at and processes.rank == processes.count - 1:
            signal.raise_signal(signal.SIGINT)

    log = train(
        model, task, batches, recipe=RECIPE, folder=folder / kind, processes=processes, progress=progress,
        checkpoint_every=1000,
    )  # fmt: skip
    return losses, {name: whole_tensor(weight) for name, weight in model.state_dict().items()}, log


if __name__ == "__main__":
    folder, stop_at = Path(sys.argv[1]), int(sys.argv[3]) if len(sys.argv) > 3 else 0
    with join_processes(sys.argv[2]) as processes:  # type: ignore[arg-type]
        for kind in ("language", "vision"):
            try:
                losses, weights, log = run(kind, folder, processes, stop_at=stop_at if kind == "vision" else 0)
            except KeyboardInterrupt:
                sys.exit(130)
            if processes.first:
                torch.save(weights, folder / f"{kind}.pt")
                (folder / f"{kind}.json").write_text(json.dumps({"losses": losses, "log": log}))
