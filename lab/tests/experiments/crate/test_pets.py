"""The layout of the Oxford-IIIT Pet set, laid out small."""

from pathlib import Path

import numpy as np
import pytest

from clearhead_lab.experiments.crate.pets import read_pets

image_reader = pytest.importorskip("PIL.Image", reason="pillow reads the images")

ENTRIES = {"trainval": [("Abyssinian_1", 1), ("beagle_2", 2), ("pug_3", 2)], "test": [("Bengal_4", 1), ("boxer_5", 2)]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    (tmp_path / "annotations" / "trimaps").mkdir(parents=True)
    generator = np.random.default_rng(0)
    for part, entries in ENTRIES.items():
        lines = ["#Image CLASS-ID SPECIES BREED ID"]
        for number, (name, species) in enumerate(entries):
            height, width = 12 + number, 18
            pixels = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
            trimap = np.full((height, width), 2, dtype=np.uint8)
            trimap[:, : width // 3], trimap[:, width // 3 : width // 2] = 1, 3
            image_reader.fromarray(pixels).save(tmp_path / "images" / f"{name}.jpg")
            image_reader.fromarray(trimap).save(tmp_path / "annotations" / "trimaps" / f"{name}.png")
            lines.append(f"{name} {number + 1} {species} 1")
        (tmp_path / "annotations" / f"{part}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_images_labels_and_masks_are_read(folder: Path) -> None:
    reported: list[tuple[int, int]] = []
    data = read_pets(folder, size=6, progress=lambda done, total: reported.append((done, total)))
    assert tuple(data.images.train_images.shape) == (3, 3, 6, 6)
    assert data.images.train_labels.tolist() == [0, 1, 1]
    assert data.images.test_labels.tolist() == [0, 1]
    assert data.objects[:, :, :2].all()
    assert not data.objects[:, :, 2:].any()
    assert not data.counted[:, :, 2].any()
    assert data.counted[:, :, 3:].all()
    assert reported == [(number, 5) for number in range(1, 6)]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda f: (f / "images" / "pug_3.jpg").unlink(), r"pug_3\.jpg does not exist"),
        (lambda f: (f / "images" / "pug_3.jpg").write_bytes(b"no image"), "cannot read"),
        (lambda f: (f / "annotations" / "test.txt").unlink(), "give the folder of the Oxford-IIIT Pet set"),
        (lambda f: (f / "annotations" / "test.txt").write_text("Bengal_4 1 3 1\n"), "species"),
        (lambda f: (f / "annotations" / "test.txt").write_text("../secret 1 1 1\n"), "species"),
        (lambda f: (f / "annotations" / "test.txt").write_text("# nothing\n"), "lists no image"),
        (
            lambda f: image_reader.fromarray(np.full((9, 9), 7, np.uint8)).save(
                f / "annotations" / "trimaps" / "boxer_5.png"
            ),
            "is not a mask of 1",
        ),
    ],
    ids=["missing", "broken", "no list", "species", "outside", "empty", "mask"],
)
def test_unreadable_files_give_the_reason(folder: Path, damage, reason: str) -> None:
    damage(folder)
    with pytest.raises(ValueError, match=reason):
        read_pets(folder, size=6)
