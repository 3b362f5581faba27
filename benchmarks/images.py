"""Time of augmentation libraries per image, and the rate at which images are loaded.

    python benchmarks/images.py augmentation
    python benchmarks/images.py loading PATH --split train --size 128 [--workers 0 1]
    python benchmarks/images.py memory

`augmentation` compares torchvision's transforms v2, timm and kornia (if installed) on one thread: images of 32 pixels
as CIFAR-10's, and photographs of 500 x 375 pixels for 224. Times are milliseconds of the processor, the median of 7
rounds. `loading` prints images per second of `SampleBatches`: on the clock, and per second of the processor in all
processes together, which other programs disturb less. `memory` prints the time of a batch of 128 images of CIFAR-10's
size that are held as bytes, taken in a random order and converted to floats.
"""

import argparse
import importlib.util
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch

from clearhead.interfaces.torchvision_shim import ensure_torchvision
from clearhead_lab.data.augmentation import Augmentation, image_transform
from clearhead_lab.data.batches import SampleBatches
from clearhead_lab.data.samples import open_samples

ROUNDS, RAND_AUGMENT = 7, "rand-m9-mstd0.5-inc1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("augmentation")
    commands.add_parser("memory")
    loading = commands.add_parser("loading")
    loading.add_argument("path", type=Path)
    loading.add_argument("--split")
    loading.add_argument("--size", type=int, default=128)
    loading.add_argument("--workers", type=int, nargs="*", default=[0, 1])
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.command == "augmentation":
        augmentation()
    elif options.command == "memory":
        memory()
    else:
        load(options)


def augmentation() -> None:
    library = ensure_torchvision()  # noqa: F841  # its declarations live as long as it does
    for shape, size, repeats in (((32, 32), 32, 60), ((375, 500), 224, 20)):
        generator = torch.Generator().manual_seed(0)
        image = torch.randint(0, 256, (3, *shape), generator=generator, dtype=torch.uint8)
        mask = torch.randint(0, 3, shape, generator=generator, dtype=torch.uint8)
        print(f"{size} pixels, from {shape[1]} x {shape[0]}")
        functions = {**_torchvision(image, mask, size), **_timm(image, size), **_kornia(image, mask, size)}
        for name, function in functions.items():
            print(f"  {name:52s} {_milliseconds(function, repeats):6.2f} ms", flush=True)


def _torchvision(image: torch.Tensor, mask: torch.Tensor, size: int) -> dict[str, Callable[[], object]]:
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    crop = v2.RandomResizedCrop(size, interpolation=v2.InterpolationMode.BICUBIC, antialias=True)
    both = v2.Compose([crop, v2.RandomHorizontalFlip()])
    small = v2.functional.resize(image, [size, size])
    shift = v2.Compose([v2.RandomCrop(size, padding=4), v2.RandomHorizontalFlip()])
    pair = tv_tensors.Image(image), tv_tensors.Mask(mask)
    rand_augment, jitter, erase = v2.RandAugment(2, 9), v2.ColorJitter(0.4, 0.4, 0.4), v2.RandomErasing(0.25)
    return {
        "torchvision v2: resized crop, flip": lambda: both(image),
        "torchvision v2: resized crop, flip, with mask": lambda: both(*pair),
        "torchvision v2: padded crop, flip": lambda: shift(small),
        "torchvision v2: RandAugment (2 changes, m9)": lambda: rand_augment(small),
        "torchvision v2: colour jitter 0.4": lambda: jitter(small),
        "torchvision v2: erasing 0.25": lambda: erase(small.float()),
    }


def _timm(image: torch.Tensor, size: int) -> dict[str, Callable[[], object]]:
    from timm.data.auto_augment import rand_augment_transform
    from timm.data.random_erasing import RandomErasing
    from timm.data.transforms import RandomResizedCropAndInterpolation
    from torchvision.transforms import v2

    picture = v2.functional.to_pil_image(image)
    small = v2.functional.resize(image, [size, size])
    crop = v2.Compose([RandomResizedCropAndInterpolation(size, interpolation="bicubic"), v2.RandomHorizontalFlip()])
    settings = {"translate_const": int(0.45 * size), "img_mean": (124, 116, 104), "magnitude_max": 9.99}
    rand_augment = rand_augment_transform(RAND_AUGMENT, settings)
    erase = RandomErasing(0.25, mode="pixel", device="cpu")
    back_and_forth = lambda: v2.functional.pil_to_tensor(rand_augment(v2.functional.to_pil_image(small)))  # noqa: E731
    return {
        "timm: resized crop, flip": lambda: crop(picture),
        f"timm: RandAugment {RAND_AUGMENT[5:]}, tensor to tensor": back_and_forth,
        "timm: erasing 0.25": lambda: erase(small.float()),
    }


def _kornia(image: torch.Tensor, mask: torch.Tensor, size: int) -> dict[str, Callable[[], object]]:
    if importlib.util.find_spec("kornia") is None:
        return {}
    import kornia.augmentation as kornia

    floats, masks = (image.float() / 255)[None], mask.float()[None, None]
    small = torch.nn.functional.interpolate(floats, (size, size))
    crop = kornia.RandomResizedCrop((size, size), p=1.0)
    both = kornia.AugmentationSequential(crop, kornia.RandomHorizontalFlip(), data_keys=["input", "mask"])
    alone = torch.nn.Sequential(crop, kornia.RandomHorizontalFlip())
    rand_augment, jitter = kornia.auto.RandAugment(n=2, m=9), kornia.ColorJitter(0.4, 0.4, 0.4, p=1.0)
    erase = kornia.RandomErasing(p=0.25)
    return {
        "kornia: resized crop, flip": lambda: alone(floats),
        "kornia: resized crop, flip, with mask": lambda: both(floats, masks),
        "kornia: RandAugment (2 changes, m9)": lambda: rand_augment(small),
        "kornia: colour jitter 0.4": lambda: jitter(small),
        "kornia: erasing 0.25": lambda: erase(small),
    }


def _milliseconds(function: Callable[[], object], repeats: int) -> float:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    function()
    rounds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(repeats):
            function()
        rounds.append((time.process_time() - start) / repeats * 1000)
    return median(rounds)


def load(options: argparse.Namespace) -> None:
    samples = open_samples(options.path, split=options.split)
    masks = isinstance(samples[0][1], torch.Tensor)
    recipes = {
        "none": Augmentation(),
        "scaled crop, flip, colours": Augmentation(crop="scaled", scale=(0.75, 1.5), flip=0.5, colour_jitter=0.2),
    }
    if not masks:
        recipes["DeiT's"] = Augmentation(crop="resized", flip=0.5, rand_augment=RAND_AUGMENT, erasing=0.25)
    print(f"{samples.name}: {len(samples):,} images with {'masks' if masks else 'labels'}")
    for name, recipe in recipes.items():
        transform = image_transform(recipe, options.size, train=True)
        for workers in options.workers:
            data = SampleBatches(samples, batch_size=32, seed=0, transform=transform, workers=workers)
            start, used = time.perf_counter(), _processor_seconds()
            batches = data.epoch(0)
            images = len(next(batches)[0])
            first = time.perf_counter()
            images += sum(len(pixels) for pixels, _ in batches)
            rate = (images - data.batch_size) / (time.perf_counter() - first)
            del batches
            processor = images / (_processor_seconds() - used)
            print(
                f"  {name:28s} workers {workers}: first batch {first - start:.2f} s, then {rate:5.0f} images a second, "
                f"{processor:5.0f} per second of processor",
                flush=True,
            )


def _processor_seconds() -> float:
    """Return the seconds of this process and of its workers that ended."""
    return sum(os.times()[:4])


def memory() -> None:
    images = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8)
    order = torch.randperm(len(images))
    steps = iter(range(10**9))

    def batch() -> torch.Tensor:
        first = 128 * (next(steps) % 390)
        return images[order[first : first + 128]].float() / 255

    print(f"a batch of 128 images of 3 x 32 x 32 bytes: {_milliseconds(batch, 200):.2f} ms")


if __name__ == "__main__":
    main()
