"""The time of a training step with batches from the loader, relative to the same step on a batch that is kept.

    python benchmarks/training.py RECIPE DATA [--workers 1] [--steps 40]

Both kinds of step alternate in one process, on one thread, so that other programs disturb both. The loader's worker may
use another core. Prints the ratio of the total times, and the quartiles of the ratios of neighbouring steps.
"""

import argparse
import time
from pathlib import Path
from statistics import quantiles

import torch

from clearhead_lab.training.loop import Stepper
from clearhead_lab.training.recipe_file import read_recipe_file
from clearhead_lab.training.run import Loading, prepare_run

WARM_UP = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("data", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = read_recipe_file(options.recipe)
    run = prepare_run(file, options.data, loading=Loading(workers=options.workers))
    step = Stepper(run.model, file.recipe, run.task)
    stream = run.batches.epoch(0)
    inputs, targets = next(stream)
    loaded, kept = [], []
    for number in range(min(options.steps, run.batches.steps - 1)):
        start = time.perf_counter()
        fresh, expected = next(stream)
        step(fresh, expected, learning_rate=1e-4, step=number)
        middle = time.perf_counter()
        step(inputs, targets, learning_rate=1e-4, step=number)
        if number >= WARM_UP:
            loaded.append(middle - start)
            kept.append(time.perf_counter() - middle)
    ratios = quantiles([a / b for a, b in zip(loaded, kept, strict=True)], n=4)
    print(
        f"{file.name}: {1000 * sum(kept) / len(kept):.0f} ms a step; with the loader {sum(loaded) / sum(kept):.3f} "
        f"times that (quartiles {ratios[0]:.3f} to {ratios[2]:.3f}), {options.workers} worker(s)"
    )


if __name__ == "__main__":
    main()
