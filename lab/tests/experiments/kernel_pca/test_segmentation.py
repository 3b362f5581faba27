"""Table 6: the overlap under corruptions, the layers of each variant, and a study on tiny images."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from clearhead.operators.named import RPC, ClampedKeys, Softmax, Symmetric
from clearhead_lab.experiments.estimates import Floor, decimals
from clearhead_lab.experiments.experiment import Request
from clearhead_lab.experiments.kernel_pca import segmentation
from clearhead_lab.experiments.kernel_pca.segmentation import (
    SEGMENTER,
    SEVERITIES,
    STUDY,
    corrupted_mean,
    corrupted_overlap,
    evaluated_batches,
)  # fmt: skip
from clearhead_lab.robustness.corruptions import CORRUPTIONS
from clearhead_lab.training.recipe_file import layer_operators, read_recipe_file
from lab.tests.data.image_files import write_pets

RECIPE = """
task = "segmentation"

[data]
image_size = 8

[model]
name = "segmenter-pets"
image_size = 8
patch_size = 4
width = 8
layers = 2
heads = 2
mlp_width = 8

[training]
epochs = 1
batch_size = 3
warmup = 0.2
"""
BY_NAME = {corruption.name: corruption for corruption in CORRUPTIONS}


class Bright(nn.Module):
    """A segmenter that predicts class 1 where the first channel is above one half."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([torch.full_like(images[:, 0], 0.5), images[:, 0]], dim=1)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE)
    return path


def _pets(tmp_path: Path) -> Path:
    names = {"trainval": [f"pug_{i}" for i in range(7)], "test": [f"boxer_{i}" for i in range(10, 21)]}
    return write_pets(tmp_path / "pets", names)


def test_every_corruption_is_measured_on_all_batches_with_the_masks_unchanged() -> None:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(5, 3, 16, 16, generator=generator)
    masks = (images[:, 0] > 0.5).long()
    masks[:, 0] = 255
    overlaps = corrupted_overlap(Bright(), [(images[:2], masks[:2]), (images[2:], masks[2:])], classes=2, seed=3)
    assert list(overlaps) == ["clean", *(f"{name} {severity}" for name in BY_NAME for severity in SEVERITIES)]
    assert {int(overlap.counts.sum()) for overlap in overlaps.values()} == {5 * 15 * 16}
    assert overlaps["clean"].mean == 1
    for name, severity in (("brightness", 3), ("contrast", 1)):  # they draw nothing
        changed = BY_NAME[name](images, severity=severity, generator=generator)[:, 0, 1:] > 0.5
        right = (changed == (masks[:, 1:] == 1)).double().mean()
        assert overlaps[f"{name} {severity}"].pixel_accuracy == pytest.approx(float(right))
    by_severity = [overlaps[f"gaussian noise {severity}"].mean for severity in SEVERITIES]
    assert by_severity == sorted(by_severity, reverse=True)
    assert by_severity[0] < 1


def test_noise_differs_between_batches_and_is_the_same_for_equal_seeds() -> None:
    images = torch.full((1, 3, 16, 16), 0.5)
    masks = torch.zeros(1, 16, 16, dtype=torch.int64)

    def counts(batches: int, seed: int) -> Tensor:
        return corrupted_overlap(Bright(), [(images, masks)] * batches, classes=2, seed=seed)["gaussian noise 3"].counts

    assert torch.equal(counts(2, seed=3), counts(2, seed=3))
    assert not torch.equal(counts(2, seed=3), counts(2, seed=4))
    assert not torch.equal(counts(2, seed=3), 2 * counts(1, seed=3))


def test_the_mean_is_over_corruptions_of_one_severity_or_of_all() -> None:
    results = {
        f"{name} {severity}": {"mean_iou": number + 100.0 * severity}
        for number, name in enumerate(BY_NAME)
        for severity in SEVERITIES
    }
    assert corrupted_mean(results, "mean_iou", 5) == pytest.approx(503.5)
    assert corrupted_mean(results, "mean_iou") == pytest.approx(303.5)


def test_images_are_evenly_spaced_in_the_held_out_set(tmp_path: Path, recipe: Path) -> None:
    file, data = read_recipe_file(str(recipe)), _pets(tmp_path)
    everything = torch.cat([images for images, _ in evaluated_batches(file, data, images=None)])
    some = [(images, masks) for images, masks in evaluated_batches(file, data, images=4)]
    assert len(everything) == 11
    assert [len(images) for images, _ in some] == [3, 3]  # every second image
    assert torch.equal(torch.cat([images for images, _ in some]), everything[::2])
    assert some[0][1].shape == (3, 8, 8)


@pytest.mark.parametrize(("scale", "layers", "decoder_layers"), [("small", 3, 1), ("paper", 12, 2)])
def test_the_robust_variants_are_in_the_first_blocks(
    tmp_path: Path, scale: str, layers: int, decoder_layers: int
) -> None:
    request = Request(out=tmp_path, scale=scale)  # type: ignore[arg-type]
    first = {"softmax": Softmax, "symmetric": Symmetric, "clamped keys": ClampedKeys, "RPC": RPC}
    for variant, kind in first.items():
        model = STUDY.recipe(request, variant, 0).model
        others = Softmax if variant == "softmax" else Symmetric
        for setting, count in (("attention", layers), ("decoder_attention", decoder_layers)):
            operators = layer_operators(model[setting], layers=count)
            assert [type(operator) for operator in operators] == [kind, *[others] * (count - 1)]
    model = STUDY.recipe(request, "RPC", 0).model
    for setting in ("attention", "decoder_attention"):
        rpc = layer_operators(model[setting], layers=1)[0]
        assert (rpc.iterations, rpc.strength) == (6, 4.0)


def test_a_study_is_reported_and_resumed(tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = {name: STUDY.variants[name] for name in ("symmetric", "RPC")}
    monkeypatch.setattr(segmentation, "STUDY", dataclasses.replace(STUDY, small=str(recipe), variants=variants))
    # Below every model, so that tiny ones count as trained.
    monkeypatch.setattr(segmentation, "Floor", lambda **given: Floor(**{**given, "value": -9.0}))
    request = Request(out=tmp_path / "out", data=_pets(tmp_path), seeds=2, inputs=3, notice=pytest.fail)
    outcome = SEGMENTER.run(request)
    folder = tmp_path / "out" / "paper-segmentation"
    measured = outcome.facts["measured"]
    assert {name: list(seeds) for name, seeds in measured.items()} == {"symmetric": ["0", "1"], "RPC": ["0", "1"]}
    means = {
        name: sum(values["clean"]["mean_iou"] for values in seeds.values()) / 2 for name, seeds in measured.items()
    }
    best, majority = max(means, key=means.__getitem__), measured["RPC"]["0"]["majority"]
    assert (
        outcome.headline
        == f"highest clean mean IoU: {best}, {decimals(means[best])}, the majority class -9.000; 4 runs"
    )
    assert majority["mean_iou"] == pytest.approx(majority["pixel_accuracy"] / 2)  # one of two classes is never right
    page = (folder / "table.md").read_text()
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert headings == [
        "## Claimed", "## Measured", "## Differences from symmetric attention", "## Majority baseline",
        "## Mean IoU by corruption, all severities", "## Why they differ", "## Figures", "## Manifest",
    ]  # fmt: skip
    assert "| seeds | mean IoU, clean | mean IoU, corrupted | mean accuracy, clean | mean accuracy, corrupted |" in page
    assert (folder / "corruptions.svg").exists()

    monkeypatch.setattr(segmentation, "Floor", lambda **given: Floor(**{**given, "value": 9.0}))
    assert (
        SEGMENTER.run(request).headline
        == "highest clean mean IoU: no variant trained, -, the majority class 9.000; 4 runs"
    )
    assert "did not train" in (folder / "table.md").read_text()

    monkeypatch.setattr(segmentation, "corrupted_overlap", lambda *_, **__: pytest.fail("measured again"))
    assert SEGMENTER.run(request).facts["measured"] == measured
