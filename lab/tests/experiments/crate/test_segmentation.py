"""Attention maps as segmentations: what is scored, and the whole run with small settings."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from clearhead_lab.data.image_sets import ImageSet
from clearhead_lab.experiments.crate import segmentation
from clearhead_lab.experiments.crate.pets import MaskedImages
from clearhead_lab.experiments.crate.segmentation import BASELINE, CENTRE, EVERYTHING, SEGMENTATION
from clearhead_lab.experiments.crate.training import VIT, variants
from clearhead_lab.experiments.estimates import DID_NOT_TRAIN
from clearhead_lab.experiments.experiment import Request
from clearhead_lab.models.crate import Form
from lab.tests.experiments.test_training_runs import SIZES, STUDY, random_images


def half_masks(images: ImageSet, *, side: int) -> MaskedImages:
    objects = torch.zeros(len(images.test_images), side, side, dtype=torch.bool)
    objects[:, : side // 2] = True
    return MaskedImages(images=images, objects=objects, counted=torch.ones_like(objects))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmentation, "SIZE", 8)
    monkeypatch.setattr(segmentation, "PATCH", 4)
    study = dataclasses.replace(STUDY, variants=variants(Form.RELEASED, **SIZES))
    monkeypatch.setattr(segmentation, "STUDY", study)
    monkeypatch.setattr(segmentation, "SHOWN", 2)


def test_masks_that_ignore_the_image_are_scored_by_their_overlap(small: None) -> None:
    scores = segmentation.score_controls(half_masks(random_images(), side=8), images=6)
    assert scores[EVERYTHING] == pytest.approx(0.25)  # half of the object's union, none of the background's


def test_the_best_head_is_chosen_on_other_images_than_it_is_scored_on() -> None:
    heads = np.array([[0.9, 0.1], [0.2, 0.4], [0.9, 0.1], [0.2, 0.6]])
    scores = segmentation.score_heads(heads)
    assert scores["head"] == 0
    assert scores["best"] == pytest.approx(0.2)
    assert scores["mean"] == pytest.approx(0.35)


def test_the_run_compares_every_model_with_itself_before_training(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segmentation, "read_pets", lambda *_, **__: half_masks(random_images(), side=8))
    outcome = SEGMENTATION.run(Request(out=tmp_path, data=tmp_path, epochs=1))
    assert CENTRE in outcome.headline
    assert outcome.remarks[1:] == (f"CRATE, released: {DID_NOT_TRAIN}", f"{VIT}: {DID_NOT_TRAIN}")
    assert set(outcome.facts["scores"]) == {
        name + baseline for name in ("CRATE, released", VIT) for baseline in ("", BASELINE)
    }
    folder = SEGMENTATION.folder(tmp_path)
    page = (folder / "table.md").read_text()
    assert f"| {VIT}{BASELINE} |" in page
    assert "--data" in page
    assert str(tmp_path) not in page
    assert (folder / "picture.svg").read_text().count("<image") == 2 * 6


def test_segmentation_without_images_names_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Oxford-IIIT Pet set"):
        SEGMENTATION.run(Request(out=tmp_path))
