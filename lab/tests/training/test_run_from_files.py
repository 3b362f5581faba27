"""Runs on images that are decoded from files: labels, masks, workers, corrupt files, and what they cost to kill."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch

from clearhead.errors import InputError
from clearhead_lab.models.native import load_native
from clearhead_lab.models.segmenter import Segmenter
from clearhead_lab.training.recipe_file import read_recipe_file
from clearhead_lab.training.run import MODEL_FOLDER, Loading, prepare_run, run_recipe

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("torchvision")
MASKS = """
task = "segmentation"
[data]
image_size = 8
[data.augmentation]
flip = 0.5
crop = "padded"
padding = 1
[model]
kind = "segmenter"
patch_size = 4
channels = 3
width = 8
layers = 2
heads = 2
mlp_width = 6
decoder_layers = 1
[training]
epochs = 2
batch_size = 4
warmup = 0.5
"""
LABELS = MASKS.replace('"segmentation"', '"classification"').replace('"segmenter"', '"vision-transformer"').replace(
    "decoder_layers = 1\n", ""
)  # fmt: skip


def _png(pixels: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def _pets(folder: Path) -> Path:
    """Write ten pets with trimaps in the layout of Oxford Pets."""
    rng = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    (folder / "annotations" / "trimaps").mkdir(parents=True)
    names = [f"cat_{i}" for i in range(14)]
    for name in names:
        (folder / "images" / f"{name}.jpg").write_bytes(_png(rng.integers(0, 256, (9, 11, 3), dtype=np.uint8)))
        trimap = rng.integers(1, 4, (9, 11), dtype=np.uint8)
        (folder / "annotations" / "trimaps" / f"{name}.png").write_bytes(_png(trimap))
    for split, chosen in (("trainval", names[:10]), ("test", names[10:])):
        lines = [f"{name} 1 1 1" for name in chosen]
        (folder / "annotations" / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return folder


def _classes(folder: Path) -> Path:
    rng = np.random.default_rng(1)
    for split, count in (("train", 5), ("val", 2)):
        for name in ("ant", "bee"):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (10, 9, 3), dtype=np.uint8)
                (folder / split / name / f"{i}.png").write_bytes(_png(pixels))
    return folder


def _recipe(folder: Path, text: str, *changes: str) -> str:
    path = folder / "recipe.toml"
    path.write_text(text)
    return str(path)


def test_a_segmenter_is_trained_on_masks_and_measured_against_the_majority(tmp_path: Path) -> None:
    file = read_recipe_file(_recipe(tmp_path, MASKS))
    trained = run_recipe(file, _pets(tmp_path / "pets"), tmp_path / "out")
    model = load_native(trained.folder / MODEL_FOLDER)
    assert isinstance(model, Segmenter)
    assert model.config.classes == 2
    last = trained.log[-1]
    assert all(0 <= last[name] <= 1 for name in ("mean_iou", "mean_iou_of_majority", "mean_accuracy", "pixel_accuracy"))
    with_border = read_recipe_file(_recipe(tmp_path, MASKS), ["data.border_class=true"])
    assert prepare_run(with_border, tmp_path / "pets").model.config.classes == 3


def test_workers_change_no_result(tmp_path: Path) -> None:
    file, data = read_recipe_file(_recipe(tmp_path, LABELS)), _classes(tmp_path / "classes")
    runs = [run_recipe(file, data, tmp_path / f"out{workers}", loading=Loading(workers=workers)) for workers in (0, 2)]
    weights = [load_native(run.folder / MODEL_FOLDER).state_dict() for run in runs]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert runs[0].log[-1]["images"] == 4


def test_a_corrupt_image_is_refused_or_skipped_as_asked(tmp_path: Path) -> None:
    file, data = read_recipe_file(_recipe(tmp_path, LABELS)), _classes(tmp_path / "classes")
    broken = data / "train" / "bee" / "3.png"
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(InputError, match=r"bee.3\.png"):
        run_recipe(file, data, tmp_path / "refused")
    notices: list[str] = []
    run_recipe(file, data, tmp_path / "skipped", loading=Loading(on_corrupt="skip", notice=notices.append))
    assert len(notices) == 1
    assert "3.png" in notices[0]


def test_missing_sizes_and_splits_are_named(tmp_path: Path) -> None:
    file, data = read_recipe_file(_recipe(tmp_path, LABELS)), _classes(tmp_path / "classes")
    masks = read_recipe_file(_recipe(tmp_path, MASKS), ["data.image_size=0"])
    with pytest.raises(InputError, match=r"has no image_size in \[data\]"):
        prepare_run(masks, data)
    (data / "val" / "bee" / "more").mkdir()
    (data / "val" / "wasp").mkdir()
    (data / "val" / "wasp" / "0.png").write_bytes((data / "val" / "ant" / "0.png").read_bytes())
    with pytest.raises(InputError, match="wasp"):
        prepare_run(file, data)
