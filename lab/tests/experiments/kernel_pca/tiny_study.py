"""A study small enough for a test: random images, and a recipe for them."""

import dataclasses
from pathlib import Path

import numpy as np

from clearhead_lab.experiments.study import Study

__all__ = ["tiny_study", "write_images"]

RECIPE = """
task = "classification"

[data]
get = "make it in the test"

[model]
kind = "vision-transformer"
patch_size = 2
width = 6
layers = 2
heads = 2
mlp_width = 5

[training]
epochs = 2
batch_size = 8
learning_rate = 1e-2
warmup = 0.5
"""


def tiny_study(study: Study, folder: Path) -> Study:
    """Return the study with a recipe for the images of `write_images` at the small scale."""
    path = folder / "tiny.toml"
    path.write_text(RECIPE)
    return dataclasses.replace(study, small=str(path), seeds=2)


def write_images(folder: Path) -> Path:
    """Write images of three classes, 10 by 10, with 25 patches and so 26 tokens."""
    rng = np.random.default_rng(0)
    path = folder / "images.npz"
    np.savez(
        path,
        x_train=rng.integers(0, 256, (24, 10, 10, 3), dtype=np.uint8), y_train=np.arange(24) % 3,
        x_test=rng.integers(0, 256, (6, 10, 10, 3), dtype=np.uint8), y_test=np.arange(6) % 3,
    )  # fmt: skip
    return path
