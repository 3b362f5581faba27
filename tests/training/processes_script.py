"""A short training that torchrun starts in several processes: `processes_script.py FOLDER SHARDING [STEPS]`."""

import json
import signal
import sys
from pathlib import Path

import torch

from clearhead.models.vit import VisionTransformer, VisionTransformerConfig
from clearhead.operators.named import RPC, ClampedKeys, Symmetric
from clearhead.training.batches import TensorBatches
from clearhead.training.distributed import ALONE, Processes, join_processes, whole_tensor
from clearhead.training.loop import train
from clearhead.training.recipe import Recipe
from clearhead.training.tasks import Classification

CONFIG = VisionTransformerConfig(
    image_size=8, patch_size=2, channels=3, classes=5, width=12, layers=3, heads=3, mlp_width=10,
    attention=(RPC(iterations=3, strength=4.0), ClampedKeys(), Symmetric()),
)  # fmt: skip
RECIPE = Recipe(
    epochs=4, batch_size=16, accumulate=2, learning_rate=3e-3, mixup=0.8, cutmix=1.0, ema=0.9, label_smoothing=0.1
)
STEPS = 5


def run(folder: Path, processes: Processes = ALONE, *, stop_at: int = 0) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train for 20 steps; return the losses and the final weights. stop_at: the step at which Ctrl-C arrives."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (STEPS * RECIPE.batch_size + 3, 3, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 5, (len(images),), generator=generator)
    model = VisionTransformer(CONFIG, generator=generator)
    losses: list[float] = []

    def progress(step: int, steps: int, loss: float) -> None:
        losses.append(loss)
        if step == stop_at and processes.rank == processes.count - 1:
            signal.raise_signal(signal.SIGINT)

    train(
        model,
        Classification(RECIPE),
        TensorBatches(images, labels, batch_size=RECIPE.batch_size, seed=RECIPE.seed),
        recipe=RECIPE,
        folder=folder,
        processes=processes,
        progress=progress,
        checkpoint_every=1000,
    )
    return losses, {name: whole_tensor(weight) for name, weight in model.state_dict().items()}


if __name__ == "__main__":
    folder, stop_at = Path(sys.argv[1]), int(sys.argv[3]) if len(sys.argv) > 3 else 0
    with join_processes(sys.argv[2]) as processes:  # type: ignore[arg-type]
        try:
            losses, weights = run(folder, processes, stop_at=stop_at)
        except KeyboardInterrupt:
            sys.exit(130)
        if processes.first:
            torch.save(weights, folder / "weights.pt")
            (folder / "losses.json").write_text(json.dumps(losses))
