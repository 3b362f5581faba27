"""Trainings that are killed, interrupted or run out of disk at random moments, and two that share a folder.

`python tests/faults/interruptions.py` does 60 and prints counts. After every interruption the run is continued until it
ends; it must end with the same weights and the same log as a run that was never interrupted.
"""

import argparse
import errno
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from clearhead.errors import ClearheadError
from clearhead.storage import lock_folder, read_tensors
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from clearhead_lab.training.batches import TensorBatches
from clearhead_lab.training.loop import read_log, train
from clearhead_lab.training.recipe import Recipe
from clearhead_lab.training.tasks import Classification

CONFIG = VisionTransformerConfig(
    image_size=4, patch_size=2, channels=1, classes=2, width=6, layers=1, heads=2, mlp_width=5
)
RECIPE = Recipe(epochs=6, batch_size=5, warmup=0.0)
KINDS = ("SIGKILL", "SIGTERM", "SIGINT", "full disk")
REFUSED = 2


def run_training(folder: Path) -> None:
    """Train for a fraction of a second, with a checkpoint at every second step."""
    images = torch.randint(0, 255, (20, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    model = VisionTransformer(CONFIG, generator=torch.Generator().manual_seed(0))
    batches = TensorBatches(images, torch.arange(20) % 2, batch_size=RECIPE.batch_size, seed=RECIPE.seed)
    task = Classification(RECIPE, lambda _: {"accuracy": 0.5})
    train(model, task, batches, recipe=RECIPE, folder=folder, checkpoint_every=2)


def _fill_disk(rng: random.Random) -> None:
    """Let every write fail from a random one on, as on a full disk."""
    remaining, real = rng.randrange(1, 40), os.fsync

    def fsync(descriptor: int) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    os.fsync = fsync


def start_training(folder: Path, *, disk: random.Random | None = None) -> int:
    """Train in a child process. Return its id; it exits with 2 if the training raises a ClearheadError."""
    child = os.fork()
    if child:
        return child
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    code = 1
    try:
        if disk is not None:
            _fill_disk(disk)
        run_training(folder)
        code = 0
    except ClearheadError:
        code = REFUSED
    finally:
        os._exit(code)


def exit_code(child: int) -> int:
    """Wait for a child process. Return its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def final_state(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the last checkpoint's tensors and the log without its times."""
    tensors, _ = read_tensors(folder / "checkpoint.safetensors")
    log = [{name: value for name, value in entry.items() if name != "seconds"} for entry in read_log(folder)]
    return {name: tensor.tolist() for name, tensor in tensors.items()}, log


def interrupt_until_done(folder: Path, kind: str, seed: int, *, seconds: float) -> int:
    """Interrupt a training three times and let it end. Return how often it was interrupted before its end."""
    rng, interrupted = random.Random(f"{kind} {seed}"), 0
    for _ in range(3):
        child = start_training(folder, disk=rng if kind == "full disk" else None)
        if kind != "full disk":
            time.sleep(rng.uniform(0, seconds))
            os.kill(child, getattr(signal, kind))
        code = exit_code(child)
        assert code in (0, REFUSED if kind == "full disk" else -getattr(signal, kind)), code
        interrupted += code != 0
    assert exit_code(start_training(folder)) == 0
    return interrupted


def main() -> int:
    """Try everything; return 1 if a run ended in another state."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    options = parser.parse_args()
    count, seeds = options.count, range(options.first, options.first + options.count)
    torch.set_num_threads(1)
    results = Counter[str]()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        run_training(root / "whole")
        expected = final_state(root / "whole")
        before = time.perf_counter()
        exit_code(start_training(root / "timed"))
        seconds = time.perf_counter() - before
        for seed in seeds:
            kind, folder = KINDS[seed % len(KINDS)], root / str(seed)
            results[f"interrupted by {kind}"] += interrupt_until_done(folder, kind, seed, seconds=seconds)
            same = final_state(folder) == expected
            if not same:
                print(f"fault: --first {seed} --count 1: {kind}: the run ended in another state")
            results["same" if same else "different"] += 1
        for seed in range(count // 4):
            folder = root / f"shared {seed}"
            codes = sorted(map(exit_code, [start_training(folder), start_training(folder)]))
            # The second is refused, unless it started after the first had ended.
            assert codes in ([0, REFUSED], [0, 0]), codes
            results["second writer refused"] += codes == [0, REFUSED]
            results["same" if final_state(folder) == expected else "different"] += 1
        with lock_folder(root / "held"):
            assert exit_code(start_training(root / "held")) == REFUSED
    counts = ", ".join(f"{number} {name}" for name, number in sorted(results.items()))
    print(f"{count} trainings, each interrupted three times, and {count // 4} pairs in one folder, "
          f"seeds from {options.first}: {counts}")  # fmt: skip
    return int(results["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
