"""ImageNet-C's corruptions are the package's, and a function of images, severity and seed alone."""

import importlib
import random
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead_lab.robustness.corruptions import SEVERITIES, corrupt, corrupt_batches, sweep
from clearhead_lab.robustness.imagenet_c import IMAGENET_C, IMAGENET_C_EXTRA

imagecorruptions = pytest.importorskip("imagecorruptions", reason="imagecorruptions-imaug has the corruptions")
Image = pytest.importorskip("PIL.Image")

BY_NAME = {corruption.name: corruption for corruption in (*IMAGENET_C, *IMAGENET_C_EXTRA)}
WITHOUT_RANDOMNESS = {
    "defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression", "gaussian_blur", "saturate",
}  # fmt: skip
# The others have several constants, which do not all ascend.
ASCENDING = (
    "gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "defocus_blur", "motion_blur", "zoom_blur",
    "gaussian_blur", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
TAKES_SEED = {"impulse_noise", "glass_blur"}


def _images(n: int = 3, height: int = 37, width: int = 41, seed: int = 0) -> Tensor:
    """Colour images with the spectrum of photographs: plane waves of amplitude 1 / frequency."""
    generator = torch.Generator().manual_seed(seed)
    frequency = torch.arange(1.0, 12)
    direction, phase = 6.28 * torch.rand(2, n, 3, len(frequency), 1, 1, generator=generator)
    y, x = torch.arange(height)[:, None] / height, torch.arange(width) / width
    wave = frequency[:, None, None] * 6.28 * (x * direction.cos() + y * direction.sin()) + phase
    pixels = (wave.cos() / frequency[:, None, None]).sum(dim=2)
    low, high = pixels.amin(dim=(1, 2, 3), keepdim=True), pixels.amax(dim=(1, 2, 3), keepdim=True)
    return (255 * (pixels - low) / (high - low)).round().to(torch.uint8)


def _corrupt(name: str, images: Tensor, severity: int = 3, seed: int = 0) -> Tensor:
    return corrupt(images, BY_NAME[name], severity=severity, seed=seed)


def test_the_names_are_those_of_the_package() -> None:
    assert [corruption.name for corruption in IMAGENET_C] == imagecorruptions.get_corruption_names("common")
    assert [corruption.name for corruption in IMAGENET_C_EXTRA] == imagecorruptions.get_corruption_names("validation")
    assert (len(IMAGENET_C), len(IMAGENET_C_EXTRA)) == (15, 4)


@pytest.mark.parametrize("name", BY_NAME)
def test_pixels_are_those_of_the_package(name: str) -> None:
    images, severity = _images(2), 4
    seeds = torch.randint(2**32, (2,), generator=torch.Generator().manual_seed(11)).tolist()
    expected = []
    for image, seed in zip(images, seeds, strict=True):
        np.random.seed(seed)
        options = {"seed": seed} if name in TAKES_SEED else {}
        array = image.permute(1, 2, 0).numpy()
        expected.append(imagecorruptions.corrupt(array, severity=severity, corruption_name=name, **options))
    pixels = BY_NAME[name](images.float() / 255, severity=severity, generator=torch.Generator().manual_seed(11))
    assert torch.equal((255 * pixels).round(), torch.from_numpy(np.stack(expected)).permute(0, 3, 1, 2).float())


@pytest.mark.parametrize("name", BY_NAME)
def test_each_corruption_runs_on_the_smallest_images(name: str) -> None:
    images = _images(1, 32, 32)
    before = images.clone()
    for severity in SEVERITIES:
        corrupted = _corrupt(name, images, severity)
        assert (corrupted.shape, corrupted.dtype) == (images.shape, torch.uint8)
        assert not torch.equal(corrupted, images)
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", BY_NAME)
def test_randomness_depends_only_on_the_seed(name: str) -> None:
    images = _images(2)
    np.random.seed(1)
    random.seed(1)
    torch.manual_seed(1)
    first = _corrupt(name, images)
    np.random.seed(2)
    random.seed(2)
    torch.manual_seed(2)
    assert torch.equal(first, _corrupt(name, images))
    assert torch.equal(first, _corrupt(name, images, seed=1)) == (name in WITHOUT_RANDOMNESS)


@pytest.mark.parametrize("name", BY_NAME)
def test_an_image_does_not_depend_on_its_batch(name: str) -> None:
    images = _images(5, 32, 43)
    whole = _corrupt(name, images, 2)
    parts = corrupt_batches(images.split([1, 3, 1]), BY_NAME[name], severity=2, seed=0)
    assert torch.equal(whole, torch.cat(list(parts)))
    assert torch.equal(whole[:2], _corrupt(name, images[:2], 2))
    # Control: with a new generator for each part, the second part repeats the random numbers of the first.
    repeated = torch.cat([_corrupt(name, part, 2) for part in images.split([2, 3])])
    assert torch.equal(whole, repeated) == (name in WITHOUT_RANDOMNESS)


def test_images_of_a_batch_get_different_noise() -> None:
    same = _images(1).expand(3, -1, -1, -1)
    for name in BY_NAME.keys() - WITHOUT_RANDOMNESS:
        different = {image.numpy().tobytes() for image in _corrupt(name, same)}
        assert len(different) == len(same), name


@pytest.mark.parametrize("name", ["gaussian_noise", "glass_blur", "impulse_noise", "frost"])
def test_global_random_state_is_untouched(name: str, typechecked: bool) -> None:
    np.random.seed(5)
    np.random.normal()  # the state now holds a second normal number
    random.seed(5)
    torch.manual_seed(5)

    def state() -> list[object]:
        kind, keys, *rest = np.random.get_state()
        # beartype draws from Python's generator which items of a sequence it checks.
        python = None if typechecked else random.getstate()
        return [kind, keys.tolist(), rest, python, torch.get_rng_state().tolist()]

    before = state()
    _corrupt(name, _images(2))
    assert state() == before
    imagecorruptions.corrupt(np.zeros((32, 32, 3), np.uint8), corruption_name="gaussian_noise")
    assert state() != before  # control: the package alone draws from the global state


def test_global_random_state_is_restored_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(image: object, severity: int) -> None:
        np.random.normal()
        raise RuntimeError("no snow")

    monkeypatch.setitem(imagecorruptions.corruption_dict, "snow", fail)
    np.random.seed(5)
    before = np.random.get_state()[1].tolist()
    with pytest.raises(RuntimeError, match="no snow"):
        _corrupt("snow", _images(1))
    assert np.random.get_state()[1].tolist() == before


def _distances(name: str) -> list[float]:
    images = _images(13, 32, 32)
    return [float((_corrupt(name, images, severity).float() - images).square().mean()) for severity in SEVERITIES]


@pytest.mark.parametrize("name", ASCENDING)
def test_each_severity_is_further_from_the_image_than_the_one_before(name: str) -> None:
    distances = _distances(name)
    assert distances == sorted(distances)
    assert 0 < distances[0] < distances[-1]


@pytest.mark.parametrize("name", ["glass_blur", "saturate"])
def test_severities_need_not_be_ordered_by_distance(name: str) -> None:
    assert _distances(name) != sorted(_distances(name))


def test_an_image_without_a_drop_of_spatter_stays_as_it_is() -> None:
    grey = np.full((32, 32, 3), 128, np.uint8)

    def corrupted_by_package(seed: int) -> np.ndarray:
        np.random.seed(seed)
        with np.errstate(invalid="ignore"):
            return imagecorruptions.corruption_dict["spatter"](Image.fromarray(grey), 1)

    images, generator = torch.full((499, 3, 32, 32), 128, dtype=torch.uint8), torch.Generator().manual_seed(0)
    seeds = torch.randint(2**32, (len(images),), generator=generator).tolist()
    dropless = [index for index, seed in enumerate(seeds) if np.isnan(corrupted_by_package(seed)).any()]
    assert 0 < len(dropless) < len(images) / 20  # the package divides zero by zero
    pixels = BY_NAME["spatter"](images.float() / 255, severity=1, generator=generator.manual_seed(0))
    unchanged = ((255 * pixels).round() == 128).flatten(1).all(dim=1)
    assert unchanged.nonzero().squeeze(1).tolist() == dropless


def test_a_sweep_takes_these_corruptions() -> None:
    images = _images(2, 32, 32)
    chosen = [BY_NAME["brightness"], BY_NAME["gaussian_noise"]]

    def mean(shown: Tensor) -> float:
        return float(shown.float().mean())

    brightness, noise = sweep(images, mean, corruptions=chosen, seed=5)
    assert list(brightness.values) == sorted(brightness.values)
    assert noise.corruption == "gaussian_noise"
    assert noise.values[3] == mean(_corrupt("gaussian_noise", images, 4, seed=5))


def _refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as raised:
        call()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_images_that_the_package_cannot_corrupt_are_refused() -> None:
    for height, width in ((31, 32), (32, 31)):
        message = _refusal(lambda size=(height, width): _corrupt("fog", _images(1, *size)))
        assert f"need images of at least 32 x 32 pixels; got {height} x {width}" in message
    for channels in (1, 2, 4):
        message = _refusal(lambda channels=channels: _corrupt("fog", _images(2)[:, :1].expand(-1, channels, -1, -1)))
        assert f"need images of 3 channels; got {channels}: repeat grey images with images.expand(-1, 3, " in message
    grey = _images(2)[:, :1]
    assert _corrupt("fog", grey.expand(-1, 3, -1, -1)).shape == (2, 3, 37, 41)
    assert "dtype uint8" in _refusal(lambda: _corrupt("fog", _images(1).float()))
    assert "severity must be from 1 to 5; got 6" in _refusal(lambda: _corrupt("fog", _images(1), 6))


def test_without_the_package_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    message = _refusal(lambda: _corrupt("fog", _images(1)))
    assert "need imagecorruptions" in message
    assert message.endswith("pip install 'clearhead-lab[corruptions]'")


def test_the_package_is_imported_only_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("imagecorruptions", "cv2", "numba", "skimage", "PIL"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "clearhead_lab.robustness.imagenet_c")
    again = importlib.import_module("clearhead_lab.robustness.imagenet_c")
    assert len(again.IMAGENET_C) == 15
    with pytest.raises(ImportError):  # control
        importlib.import_module("cv2")
