"""Sets of images on disk in their standard layouts."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from clearhead.data.decoding import CorruptImageError
from clearhead.errors import InputError
from clearhead_lab.data import image_table
from clearhead_lab.data.image_folder import ImageFolder
from clearhead_lab.data.masks import PETS, plain_coding
from clearhead_lab.data.samples import open_samples
from lab.tests.data.image_files import (
    X,
    Y,
    encoded,
    pixels_of,
    trimap_of,
    write_ade20k,
    write_folder,
    write_image,
    write_pets,
    write_table,
)

CLASSES = ("n01", "n02", "n07")


def _as_tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.transpose(2, 0, 1).copy())


def _order(samples, seed: int) -> list[int]:
    return samples.order(torch.Generator().manual_seed(seed)).tolist()


def test_a_folder_per_class_gives_images_with_labels(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", CLASSES)
    (tmp_path / "train" / "n01" / "notes.txt").write_text("no image")
    (tmp_path / "train" / "n01" / "._n01_0.png").write_bytes(b"of another system")
    samples = open_samples(tmp_path, split="train")
    assert (len(samples), samples.classes) == (9, 3)
    assert [samples[i][1] for i in range(9)] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    by_name = sorted(range(3), key=lambda i: f"n02_{i}.{'JPEG' if i % 2 else 'png'}")
    for position, i in enumerate(by_name):
        assert torch.equal(samples[3 + position][0], _as_tensor(pixels_of(3 + i)))
    with pytest.raises(IndexError):
        samples[9]


def test_another_split_keeps_the_numbers_of_training(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", CLASSES)
    write_folder(tmp_path / "val", CLASSES[1:])
    samples = open_samples(tmp_path, split="val")
    assert (samples.classes, samples[0][1], samples[5][1]) == (3, 1, 2)
    write_folder(tmp_path / "val", ["n99"])
    with pytest.raises(InputError, match=r"n99 is not among the 3 classes \(n01, \.\.\.\)"):
        open_samples(tmp_path, split="val")


def test_a_class_list_numbers_the_folders_of_a_part_of_imagenet(tmp_path: Path) -> None:
    write_folder(tmp_path / "imagenet-a", CLASSES)
    (tmp_path / "classes.txt").write_text("n00 tench\nn01 shark\n\nn07 cock\nn02 hen\nn03 finch\n")
    samples = open_samples(tmp_path / "imagenet-a", split=None, class_list=tmp_path / "classes.txt")
    assert (samples.classes, [samples[i][1] for i in (0, 3, 6)]) == (5, [1, 3, 2])
    plain = open_samples(tmp_path / "imagenet-a", split=None)
    assert (plain.classes, [plain[i][1] for i in (0, 3, 6)]) == (3, [0, 1, 2])
    assert plain.fingerprint() != samples.fingerprint()


def test_a_corruption_of_imagenet_c_is_a_split_of_two_parts(tmp_path: Path) -> None:
    write_folder(tmp_path / "gaussian_noise" / "3", CLASSES)
    samples = open_samples(tmp_path, split="gaussian_noise/3")
    assert (len(samples), samples[8][1], samples.name) == (9, 2, f"{tmp_path.name} gaussian_noise/3")


def test_a_folder_is_listed_without_a_call_of_stat_per_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, CLASSES, each=20)
    write_image(tmp_path / "n01" / "images" / "a.png", pixels_of(0))
    calls = []
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **settings: calls.append(path) or stat(path, **settings))
    samples = ImageFolder(tmp_path)
    assert (len(samples), samples.path_of(0)) == (61, tmp_path / "n01" / "images" / "a.png")
    assert calls == []
    samples.fingerprint()
    assert len(calls) == 61


def test_fingerprints_depend_on_names_sizes_and_labels(tmp_path: Path) -> None:
    first = ImageFolder(write_folder(tmp_path, CLASSES)).fingerprint()
    assert ImageFolder(tmp_path).fingerprint() == first
    (tmp_path / "n02" / "n02_0.png").rename(tmp_path / "n02" / "other.png")
    renamed = ImageFolder(tmp_path).fingerprint()
    write_image(tmp_path / "n02" / "other.png", pixels_of(0, y=5))
    resized = ImageFolder(tmp_path).fingerprint()
    (tmp_path / "n02").rename(tmp_path / "n09")
    labelled = ImageFolder(tmp_path).fingerprint()
    assert len({first, renamed, resized, labelled}) == 4


def _labelled(path: Path, number: int = 10, *, first: int = 0, **changes: object) -> Path:
    columns = {"image": [{"bytes": encoded(pixels_of(first + i)), "path": f"{i}.png"} for i in range(number)],
               "label": [i % 4 for i in range(number)]}  # fmt: skip
    return write_table(path, {**columns, **changes})


def test_a_table_in_the_layout_of_hugging_face(tmp_path: Path) -> None:
    _labelled(tmp_path / "data" / "train-00000-of-00002.parquet")
    _labelled(tmp_path / "data" / "train-00001-of-00002.parquet", 5, first=20, label=[3, 2, 1, 0, 3])
    samples = open_samples(tmp_path, split="train")
    assert (len(samples), samples.classes) == (15, 4)
    for index, number, label in ((0, 0, 0), (7, 7, 3), (9, 9, 1), (10, 20, 3), (14, 24, 3)):
        image, target = samples[index]
        assert torch.equal(image, _as_tensor(pixels_of(number)))
        assert target == label
    assert sorted(_order(samples, 0)) == list(range(15))
    again = pickle.loads(pickle.dumps(samples))  # noqa: S301
    assert torch.equal(again[12][0], samples[12][0])
    assert again.fingerprint() == samples.fingerprint()


def test_the_number_of_classes_is_that_of_the_stored_names(tmp_path: Path) -> None:
    names = {"info": {"features": {"label": {"names": list("abcdefg"), "_type": "ClassLabel"}}}}
    columns = {"img": [encoded(pixels_of(i)) for i in range(3)], "label": [0, 1, 2]}
    write_table(tmp_path / "test.parquet", columns, metadata={"huggingface": json.dumps(names)})
    assert open_samples(tmp_path, split="test").classes == 7


def test_a_column_divides_one_table_into_splits(tmp_path: Path) -> None:
    path = tmp_path / "pets.parquet"
    columns = {
        "split": ["trainval", "test", "trainval", "test", "test"],
        "breed": [4, 3, 2, 1, 0],
        "species": [0, 1, 0, 1, 1],
        "image_jpeg": [encoded(pixels_of(i)) for i in range(5)],
        "mask_png": [encoded(trimap_of(i)) for i in range(5)],
    }
    write_table(path, columns, group=2)
    train, test = open_samples(path, split="train"), open_samples(path, split="test", target="breed")
    assert (len(train), train.classes, len(test), test.classes) == (2, 2, 3, 5)
    image, mask = train[1]
    assert torch.equal(image, _as_tensor(pixels_of(2)))
    assert torch.equal(mask, torch.tensor([0, 0, 1, 255], dtype=torch.uint8)[trimap_of(2).astype(int)])
    assert [test[i][1] for i in range(3)] == [3, 1, 0]
    assert sorted(_order(test, 0)) == [0, 1, 2]
    assert open_samples(path, split="test", border_class=True)[2][1].unique().tolist() == [0, 1, 2]


def test_only_a_few_row_groups_are_kept_and_an_order_reads_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _labelled(tmp_path / "train.parquet", 29)
    monkeypatch.setattr(image_table, "CACHE_BYTES", 1)
    samples = open_samples(tmp_path, split="train")
    order = _order(samples, 0)
    assert sorted(order) == list(range(29))
    assert order != _order(samples, 1)
    assert order == _order(samples, 0)
    reads = []
    opened = image_table.open_parquet
    monkeypatch.setattr(image_table, "open_parquet", lambda file: reads.append(file) or opened(file))
    for index in order:
        samples[index]
    assert reads == [path] * 10
    samples[order[0]]
    assert len(reads) == 11
    # Two row groups are mixed: neighbours in the order are not always of one group.
    assert any(order[i] // 3 == order[i + 2] // 3 != order[i + 1] // 3 for i in range(27))


def test_a_table_that_fits_into_memory_is_mixed_as_a_whole(tmp_path: Path) -> None:
    samples = open_samples(_labelled(tmp_path / "a.parquet", 29), split=None)
    first = [_order(samples, seed)[0] // 3 for seed in range(40)]
    groups = [len({i // 3 for i in _order(samples, seed)[:5]}) for seed in range(40)]
    assert len(set(first)) > 6
    assert max(groups) == 5


@pytest.mark.parametrize("layout", ["auto", "ade20k"])
def test_masks_of_ade20k(tmp_path: Path, layout: str) -> None:
    write_ade20k(tmp_path, {"training": ["ADE_train_2", "ADE_train_1"], "validation": ["ADE_val_1"]})
    samples = open_samples(tmp_path, split="train", layout=layout)
    assert (len(samples), samples.classes, len(open_samples(tmp_path, split="val"))) == (2, 150, 1)
    image, mask = samples[1]
    stored = np.random.default_rng(0).integers(0, 151, (Y, X), dtype=np.uint8).astype(int)
    assert torch.equal(image, _as_tensor(pixels_of(0)))
    assert torch.equal(mask.long(), torch.from_numpy(np.where(stored == 0, 255, stored - 1)))


@pytest.mark.parametrize(("border", "values"), [(False, [0, 1, 255]), (True, [0, 1, 2])])
def test_masks_of_pets(tmp_path: Path, border: bool, values: list[int]) -> None:
    write_pets(tmp_path, {"trainval": ["pug_3", "Bengal_4"], "test": ["boxer_5"]})
    samples = open_samples(tmp_path, split="train", border_class=border)
    image, mask = samples[0]
    assert torch.equal(image, _as_tensor(pixels_of(3)))
    assert torch.equal(mask, torch.tensor([7, *values], dtype=torch.uint8)[trimap_of(3).astype(int)])
    assert (samples.classes, len(samples)) == (3 if border else 2, 2)


def test_labels_of_pets(tmp_path: Path) -> None:
    write_pets(tmp_path, {"trainval": ["pug_3"], "test": ["boxer_5", "Bengal_36"]})
    breeds, species = (open_samples(tmp_path, split="test", target=target) for target in ("breed", "species"))
    assert [(breeds[i][1], species[i][1]) for i in (0, 1)] == [(5, 1), (36, 0)]
    assert (breeds.classes, species.classes) == (37, 2)


def test_a_mask_value_without_a_class_is_refused() -> None:
    with pytest.raises(CorruptImageError, match="the mask m has the value 7; expected 3 values, 1 to 3"):
        PETS(torch.tensor([[1, 7]], dtype=torch.uint8), name="m")
    mask = torch.tensor([[0, 4, 255]], dtype=torch.uint8)
    assert torch.equal(plain_coding(5)(mask, name="m"), mask)


def _half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


PETS_NAMES = {"trainval": ["pug_3"], "test": ["boxer_5"]}
BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "nowhere": (lambda f: f.rmdir(), r"does not exist; expected PATH/train/CLASS/\*\.jpg.*Nothing is downloaded"),
    "empty": (lambda f: None, "has no folder train; expected PATH/train/CLASS"),
    "another split": (lambda f: write_folder(f / "val", CLASSES), "has no folder train; expected"),
    "no class folders": (
        lambda f: write_image(f / "train" / "a.png", pixels_of(0)),
        r"has 1 images but no class folders; expected train/CLASS/\*\.jpg",
    ),
    "empty class": (
        lambda f: (write_folder(f / "train", CLASSES) / "n03").mkdir(),
        "n03 has no images: the copy is incomplete",
    ),
    "half a table": (lambda f: _half(_labelled(f / "train.parquet")), r"train\.parquet is damaged or half copied"),
    "missing part": (
        lambda f: _labelled(f / "train-00001-of-00003.parquet"),
        r"train-00000-of-00003\.parquet is missing: the copy is incomplete",
    ),
    "label too large": (
        lambda f: write_table(
            f / "train.parquet",
            {"image": [encoded(pixels_of(0))] * 2, "label": [0, 4]},
            metadata={"huggingface": json.dumps({"info": {"features": {"label": {"names": ["a", "b"]}}}})},
        ),
        r"the label in row 1 of .*train\.parquet is 4, outside 0 to 1",
    ),
    "no labels": (
        lambda f: _labelled(f / "train.parquet", 3, label=[0, -1, -1]),
        r"the label in row 1 of .* is -1, outside 0 to 0; -1 marks rows without labels",
    ),
    "fractions": (lambda f: _labelled(f / "train.parquet", 2, label=[0.5, 1]), "'label' of .* holds double; expected"),
    "missing label": (lambda f: _labelled(f / "train.parquet", 2, label=[None, 1]), "int64 with missing rows"),
    "no image column": (lambda f: write_table(f / "train.parquet", {"a": [1]}), r"has no column of images .*it has a$"),
    "no label column": (
        lambda f: write_table(f / "train.parquet", {"image": [b"", b""]}),
        "has no column for the target 'auto'; it has image",
    ),
    "unknown masks": (
        lambda f: write_table(f / "train.parquet", {"image": [b""], "mask": [b""]}),
        "does not say which classes its masks have",
    ),
    "ade20k without masks": (
        lambda f: (write_ade20k(f, {"training": ["a", "b"]}) / "annotations" / "training" / "b.png").unlink(),
        r"images/training/b\.jpg has no mask in annotations/training",
    ),
    "half of ade20k": (
        lambda f: write_image(f / "images" / "training" / "a.jpg", pixels_of(0)),
        "annotations/training: No",
    ),
    "pets without list": (
        lambda f: (write_pets(f, PETS_NAMES) / "annotations" / "trainval.txt").unlink(),
        r"trainval\.txt does not exist; give the folder of the Oxford-IIIT Pet set",
    ),
    "pets breed": (
        lambda f: (write_pets(f, PETS_NAMES) / "annotations" / "trainval.txt").write_text("pug_3 38 1 1\n"),
        r"without name, breed \(1 to 37\) and species \(1 or 2\): 'pug_3 38 1 1'",
    ),
    "pets species": (
        lambda f: (write_pets(f, PETS_NAMES) / "annotations" / "trainval.txt").write_text("pug_3 1 3 1\n"),
        "without name, breed",
    ),
    "pets outside the folder": (
        lambda f: (write_pets(f, PETS_NAMES) / "annotations" / "trainval.txt").write_text("../secret 1 1 1\n"),
        "without name, breed",
    ),
    "no pets": (
        lambda f: (write_pets(f, PETS_NAMES) / "annotations" / "trainval.txt").write_text("# nothing\n"),
        "lists no image",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_missing_or_half_copied_sets_give_one_line(tmp_path: Path, case: str) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    spoil, reason = BAD[case]
    spoil(folder)
    with pytest.raises(InputError, match=reason) as error:
        open_samples(folder, split="train")
    assert "\n" not in str(error.value)


def test_a_table_without_splits_has_no_split(tmp_path: Path) -> None:
    path = _labelled(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="has no column 'split', so there is no split 'train'"):
        open_samples(path, split="train")
    assert len(open_samples(path, split=None)) == 10


def test_masks_of_another_size_are_named(tmp_path: Path) -> None:
    columns = {"image": [encoded(pixels_of(0))], "mask": [encoded(np.zeros((Y, X + 1), np.uint8))]}
    path = write_table(tmp_path / "a.parquet", columns)
    with pytest.raises(CorruptImageError, match=r"the mask in row 0 of .*a\.parquet has \(11, 14\) pixels, its image"):
        open_samples(path, split=None, class_list=["a", "b"])[0]
    write_pets(tmp_path, PETS_NAMES)
    write_image(tmp_path / "annotations" / "trimaps" / "pug_3.png", np.ones((Y, X + 1), np.uint8))
    with pytest.raises(CorruptImageError, match=r"pug_3\.png has \(11, 14\) pixels, its image \(11, 13\)"):
        open_samples(tmp_path, split="train", layout="pets")[0]


def test_a_row_without_an_image_is_named(tmp_path: Path) -> None:
    stored = [{"bytes": encoded(pixels_of(0)), "path": "0.png"}, {"bytes": None, "path": "1.png"}]
    samples = open_samples(_labelled(tmp_path / "a.parquet", 2, image=stored), split=None)
    assert samples[0][0].shape == (3, Y, X)
    with pytest.raises(
        CorruptImageError, match=r"in row 1 of .*a\.parquet: column 'image' holds no bytes; remove the row"
    ):
        samples[1]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"cannot read the class list .*classes\.txt"),
        ("\n \n", "is empty; give a text file with a class per line"),
        ("n01\nn02\nn07\nn01\n", "has a name twice; give each class once"),
        ("n01\nn02\n", r"n07 is not among the 2 classes \(n01, \.\.\.\); correct the class list"),
    ],
    ids=["missing", "empty", "twice", "short"],
)
def test_unusable_class_lists_give_one_line(tmp_path: Path, content: str | None, reason: str) -> None:
    write_folder(tmp_path / "set", CLASSES, each=1)
    if content is not None:
        (tmp_path / "classes.txt").write_text(content)
    with pytest.raises(InputError, match=reason) as error:
        open_samples(tmp_path / "set", split=None, class_list=tmp_path / "classes.txt")
    assert "\n" not in str(error.value)
