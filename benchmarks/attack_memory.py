"""Peak memory of `clearhead_lab.attack` by number of images and batch size.

    python benchmarks/attack_memory.py [--images 200 800] [--batch-size 25 100] [--suite fast]

A vision transformer of 2 layers, width 96, 64 patches, on random images of 3 x 64 x 64 pixels, float32, one thread.
Each setting runs in its own process: the highest memory after the attack minus that before it, when the images are
there and two of them were attacked. The images themselves, 49 kB each, are not counted.
"""

import argparse
import itertools
import resource
import subprocess
import sys

import torch

from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from clearhead_lab.robustness.evaluation import attack


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(count: int, batch_size: int, suite: str) -> None:
    torch.set_num_threads(1)
    config = VisionTransformerConfig(
        image_size=64, patch_size=8, channels=3, classes=10, width=96, heads=3, layers=2, mlp_width=192
    )
    model = VisionTransformer(config, generator=torch.Generator().manual_seed(0))
    images = torch.rand(count, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        labels = torch.cat([model(part).argmax(dim=-1) for part in images.split(2)])
    attack(model, images[:2], labels[:2], eps=1 / 255, attacks=["fgsm", "pgd"], batch_size=2)
    before = peak()
    attack(model, images, labels, eps=1 / 255, suite=suite, batch_size=batch_size)
    print(f"{count:8d}{batch_size:12d}{before:14.0f}{peak() - before:14.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[200, 800])
    parser.add_argument("--batch-size", type=int, nargs="+", default=[25, 100])
    parser.add_argument("--suite", default="fast")
    options = parser.parse_args()
    settings = list(itertools.product(options.images, options.batch_size))
    if len(settings) == 1:
        measure(*settings[0], options.suite)
        return
    print(f"{'images':>8s}{'batch size':>12s}{'before, MB':>14s}{'more, MB':>14s}", flush=True)
    for count, batch_size in settings:
        own = ["--images", str(count), "--batch-size", str(batch_size), "--suite", options.suite]
        subprocess.run([sys.executable, __file__, *own], check=True)


if __name__ == "__main__":
    main()
