"""Preparation of images for training and evaluation."""

import pickle
import random

import numpy as np
import pytest
import torch

from clearhead.errors import InputError
from clearhead_lab.data.augmentation import Augmentation, image_transform

pytest.importorskip("torchvision", reason="torchvision crops and flips")
SIZE = 17
TRAINING = {
    "resized": Augmentation(crop="resized", flip=0.5),
    "padded": Augmentation(crop="padded", padding=3, flip=0.5),
    "scaled": Augmentation(crop="scaled", scale=(0.5, 2.0), flip=0.5),
    "colours": Augmentation(colour_jitter=0.4),
}


def _seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def _image(y: int = 23, x: int = 19) -> torch.Tensor:
    """Return an image whose red channel is its mask: 0 on the left half, 200 on the right."""
    image = torch.randint(0, 256, (3, y, x), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    image[0] = 0
    image[0, :, x // 2 :] = 200
    return image


@pytest.mark.parametrize("name", TRAINING)
def test_masks_move_with_their_images(name: str) -> None:
    image = _image()
    mask = torch.where(image[0] > 0, 1, 0).to(torch.uint8)
    transform = image_transform(TRAINING[name], SIZE, train=True)
    sides, values = set(), set()
    for seed in range(12):
        _seed(seed)
        pixels, moved = transform(image, mask)
        assert (pixels.shape, moved.shape, pixels.dtype, moved.dtype) == (
            (3, SIZE, SIZE), (SIZE, SIZE), torch.float32, torch.uint8,
        )  # fmt: skip
        values |= set(moved.unique().tolist())
        assert float(pixels.min()) >= 0
        assert float(pixels.max()) <= 1
        inside = moved != 255
        if name == "colours":
            continue
        # Red is bright where the mask is 1, except at the pixels next to the edge, which interpolation mixes.
        agree = (pixels[0] > 100 / 255) == (moved == 1)
        assert float(agree[inside].float().mean()) > 0.85
        assert bool((pixels[:, ~inside] == 0).all())
        sides.add(bool((moved == 1)[:, 0].any()))
    assert name == "colours" or sides == {True, False}
    assert values == ({0, 1, 255} if name in ("padded", "scaled") else {0, 1})


def test_an_image_of_the_right_size_is_evaluated_unchanged() -> None:
    image, mask = _image(SIZE, SIZE), torch.arange(SIZE * SIZE).remainder(5).to(torch.uint8).view(SIZE, SIZE)
    for spec in TRAINING.values():
        pixels, same = image_transform(spec, SIZE, train=False)(image, mask)
        assert torch.equal(pixels, image.float() / 255)
        assert torch.equal(same, mask)


def test_the_centre_of_a_test_image_is_kept() -> None:
    image = torch.zeros(3, 40, 60, dtype=torch.uint8)
    image[:, 10:30, 20:40] = 255
    pixels, label = image_transform(Augmentation(test_crop=0.5), 20, train=False)(image, 3)
    assert (pixels.shape, label, float(pixels.min())) == ((3, 20, 20), 3, 1.0)


def test_flips_and_crops_happen_as_often_as_given() -> None:
    image = torch.zeros(3, SIZE, SIZE, dtype=torch.uint8)
    image[:, :, 0] = 255
    for probability, expected in ((0.0, {False}), (1.0, {True}), (0.5, {False, True})):
        transform = image_transform(Augmentation(flip=probability), SIZE, train=True)
        assert {bool(transform(image, 0)[0][0, 0, -1] == 1) for _ in range(20)} == expected
    shifts = set()
    transform = image_transform(Augmentation(crop="padded", padding=2), SIZE, train=True)
    for _ in range(60):
        shifts.add(int(transform(image, 0)[0][0, SIZE // 2].argmax()))
    assert shifts == {0, 1, 2}


def test_erasing_replaces_a_rectangle_by_noise() -> None:
    image = torch.full((3, 31, 31), 255, dtype=torch.uint8)
    transform = image_transform(Augmentation(erasing=0.5), 31, train=True)
    erased = []
    for seed in range(40):
        _seed(seed)
        changed = (transform(image, 1)[0] != 1).any(dim=0)
        erased.append(bool(changed.any()))
        if erased[-1]:
            rows, columns = changed.any(dim=1).nonzero(), changed.any(dim=0).nonzero()
            inside = changed[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
            assert float(inside.float().mean()) > 0.9
            assert 0.005 < float(changed.float().mean()) < 0.45
    # Binomial with 40 draws of 1/2: outside 8 to 32 with probability 1e-4.
    assert 8 <= sum(erased) <= 32


def test_rand_augment_is_timms_and_depends_on_the_seeds_alone() -> None:
    pytest.importorskip("timm", reason="RandAugment is timm's")
    transform = image_transform(Augmentation(rand_augment="rand-m9-mstd0.5-inc1"), SIZE, train=True)
    image = _image(SIZE, SIZE)
    results = []
    for seed in [*range(30), *range(30)]:
        _seed(seed)
        results.append(transform(image, 2)[0])
    for first, second in zip(results[:30], results[30:], strict=True):
        assert torch.equal(first, second)
    assert len({result.numpy().tobytes() for result in results}) > 20


def test_the_strongest_posterization_keeps_a_bit() -> None:
    """A magnitude of 10 keeps 0 bits in timm, which Pillow 13 refuses."""
    pytest.importorskip("timm", reason="RandAugment is timm's")
    transform = image_transform(Augmentation(rand_augment="rand-m10-n3-inc1-tPosterizeIncreasing1"), SIZE, train=True)
    for seed in range(40):
        _seed(seed)
        transform(_image(SIZE, SIZE), 0)


@pytest.mark.parametrize("spec", [*TRAINING.values(), Augmentation(erasing=0.3, rand_augment="rand-m9-mstd0.5-inc1")])
def test_a_transform_can_be_sent_to_workers(spec: Augmentation) -> None:
    if spec.rand_augment:
        pytest.importorskip("timm", reason="RandAugment is timm's")
    transform = image_transform(spec, SIZE, train=True)
    copy = pickle.loads(pickle.dumps(transform))  # noqa: S301
    _seed(3)
    expected = transform(_image(), 1)[0]
    _seed(3)
    assert torch.equal(copy(_image(), 1)[0], expected)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"crop": "random"}, "unknown crop 'random'; choose resized, padded, scaled or none"),
        ({"scale": (0.0, 1.0)}, "expected 0 < low <= high"),
        ({"scale": (0.5, 2.0), "crop": "resized"}, "at most 1 for resized crops"),
        ({"flip": 1.5}, "flip is 1.5; expected a probability from 0 to 1"),
        ({"erasing": -0.1}, "erasing is -0.1; expected a probability"),
        ({"test_crop": 0.0}, "test_crop above 0 to 1"),
        ({"rand_augment": "auto-m9"}, "rand_augment 'auto-m9' is not timm's notation"),
    ],
)
def test_impossible_settings_give_one_line(settings: dict, reason: str, typechecked: bool) -> None:
    if typechecked and settings.get("crop") == "random":
        pytest.skip("the annotation refuses it first")
    with pytest.raises(InputError, match=reason):
        image_transform(Augmentation(**settings), SIZE, train=True)


def test_label_changes_are_refused_for_masks() -> None:
    transform = image_transform(Augmentation(erasing=0.5), SIZE, train=True)
    with pytest.raises(InputError, match="rand_augment and erasing are for labels"):
        transform(_image(), torch.zeros(23, 19, dtype=torch.uint8))
