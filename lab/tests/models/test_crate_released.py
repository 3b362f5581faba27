"""Weights with the names of the authors' code: reading, writing, and errors for wrong shapes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from clearhead.loading.objects import LoadError
from clearhead_lab.models.crate import CRATE_SIZES, Crate, CrateConfig, Form, crate_config
from clearhead_lab.models.crate_released import (
    IMAGENET_MEAN,
    IMAGENET_SPREAD,
    crate_from_released,
    released_names,
    released_state,
)
from lab.tests.models.released_crate import Released, randomised
from tests.noise import weight_tolerance


def _theirs(channels: int = 3) -> Released:
    return randomised(Released(size=15, patch=5, channels=channels, classes=7, width=22, depth=3, heads=2))


def _images(channels: int = 3) -> Tensor:
    return torch.rand(4, channels, 15, 15, generator=torch.Generator().manual_seed(1))


def _normalised(images: Tensor) -> Tensor:
    mean, spread = (torch.tensor(x).view(3, 1, 1) for x in (IMAGENET_MEAN, IMAGENET_SPREAD))
    return (images - mean) / spread


def _relative_error(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


def _rounding(model: nn.Module, images: Tensor) -> float:
    return weight_tolerance(model, lambda: model(images), _relative_error)


WRAPPED: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "plain": lambda state: state,
    "of several devices": lambda state: {f"module.{name}": x for name, x in state.items()},
    "a checkpoint": lambda state: {"epoch": 3, "state_dict": {f"module.{name}": x for name, x in state.items()}},
}


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_released_weights_give_the_released_outputs(wrapped: str) -> None:
    theirs, images = _theirs(), _images()
    model = crate_from_released(WRAPPED[wrapped](theirs.state_dict()), heads=2)
    with torch.no_grad():
        want = theirs(_normalised(images))
        assert _relative_error(model(images), want) <= _rounding(model, images)
        assert (
            _relative_error(model(_normalised(images)), want) > 1e-4
        )  # applied inside the model, once; the first norm hides most of the difference
    assert not model.training
    assert model.config == CrateConfig(
        image_size=15, patch_size=5, channels=3, classes=7, width=22, layers=3, heads=2,
        pixel_mean=IMAGENET_MEAN, pixel_spread=IMAGENET_SPREAD,
    )  # fmt: skip


def test_settings_that_shapes_do_not_determine_are_arguments() -> None:
    theirs, images = _theirs(channels=1), _images(channels=1)
    model = crate_from_released(
        theirs.state_dict(), heads=2, channels=1, pixel_mean=(0.0,), pixel_spread=(1.0,), penalty=0.1
    )
    with torch.no_grad():
        assert _relative_error(model(images), theirs(images)) <= _rounding(model, images)
        others = crate_from_released(theirs.state_dict(), heads=11, channels=1, pixel_mean=(0.0,), pixel_spread=(1.0,))
        assert (
            _relative_error(others(images), theirs(images)) > 1e-2
        )  # the same number of parameters, but another model


def test_both_kinds_of_files_are_read(tmp_path: Path) -> None:
    theirs = _theirs()
    save_file(theirs.state_dict(), tmp_path / "crate.safetensors")
    torch.save({"epoch": 3, "state_dict": theirs.state_dict(), "optimizer": {"lr": 0.1}}, tmp_path / "crate.pth.tar")
    with torch.no_grad():
        want, close = theirs(_normalised(_images())), _rounding(theirs, _normalised(_images()))
        for name in ("crate.safetensors", "crate.pth.tar"):
            assert _relative_error(crate_from_released(tmp_path / name, heads=2)(_images()), want) <= close
            assert _relative_error(crate_from_released(str(tmp_path / name), heads=2)(_images()), want) <= close


def test_exported_weights_give_the_same_output_in_the_released_code() -> None:
    config = CrateConfig(image_size=15, patch_size=5, channels=3, classes=7, width=22, layers=3, heads=2)
    model, theirs = randomised(Crate(config)), _theirs()
    theirs.load_state_dict(released_state(model))  # strict
    with torch.no_grad():
        close = _rounding(model, _images())
        assert _relative_error(theirs((_images() - 0.5) / 0.5), model(_images())) <= close
    assert set(released_names(model)) == set(model.state_dict())
    assert list(released_names(model).values()) == list(released_state(model))
    again = crate_from_released(released_state(model), heads=2)
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("size", CRATE_SIZES)
def test_the_heads_of_published_sizes_are_known(size: str) -> None:
    with torch.device("meta"):
        names = released_state(Crate(crate_config(size)))
    config = crate_config(size)
    assert len(names) == 2 + 6 + 4 + 8 * config.layers
    if size == "tiny":  # the larger sizes would need much memory
        state = {name: torch.zeros(x.shape) for name, x in names.items()}
        assert crate_from_released(state).config.heads == 6


def test_half_precision_is_widened() -> None:
    state = {name: x.half() for name, x in _theirs().state_dict().items()}
    assert {p.dtype for p in crate_from_released(state, heads=2).parameters()} == {torch.float32}


def _without(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {other: x for other, x in state.items() if other != name}


REFUSED: dict[str, tuple[Callable[[dict[str, Tensor]], Any], dict[str, Any], str]] = {
    "one missing": (
        lambda s: _without(s, "transformer.layers.1.1.fn.weight"), {"heads": 2},
        r"not weights of the released CRATE code\. missing: transformer.layers.1.1.fn.weight$",
    ),
    "one too many": (
        lambda s: {**s, "transformer.layers.0.0.fn.to_q.weight": torch.ones(2)}, {"heads": 2},
        r"code\. unknown: transformer.layers.0.0.fn.to_q.weight$",
    ),
    "both": (
        lambda s: {**_without(s, "cls_token"), "token": torch.ones(1)}, {"heads": 2},
        "missing: cls_token; unknown: token$",
    ),
    "another model": (lambda s: {"weight": torch.ones(2)}, {}, "missing: pos_embedding, to_patch_embedding.1.weight"),
    "heads unknown": (lambda s: s, {}, "no published CRATE has width 22 and 3 layers: pass heads="),
    "heads that do not divide": (lambda s: s, {"heads": 3}, "expected heads that divides width"),
    "another shape": (
        lambda s: {**s, "transformer.layers.2.0.fn.qkv.weight": torch.ones(64, 22)}, {"heads": 2},
        r"expected transformer.layers.2.0.fn.qkv.weight \(22, 22\); got \(64, 22\)",
    ),
    "channels": (lambda s: s, {"heads": 2, "channels": 2}, "square patches of 2 channels.*75 numbers.*pass channels="),
    "no channels": (lambda s: s, {"heads": 2, "channels": 0}, "expected channels of at least 1; got 0"),
    "no square": (lambda s: {**s, "pos_embedding": torch.ones(1, 9, 22)}, {"heads": 2}, "and 9 tokens"),
    "no tensors": (lambda s: {"state_dict": {"cls_token": 3}}, {}, "expected tensors by name"),
    "nothing": (lambda s: {}, {}, "expected tensors by name"),
    "form": (lambda s: s, {"heads": 2, "form": Form.TIED}, "needs blocks.0.attention.out.bias"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_weights_that_do_not_fit_are_named(case: str) -> None:
    spoil, options, words = REFUSED[case]
    with pytest.raises(ValueError, match=words) as error:
        crate_from_released(spoil(_theirs().state_dict()), **options)
    assert "\n" not in str(error.value)


def test_unreadable_files_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"there is no file .*lost.pth"):
        crate_from_released(tmp_path / "lost.pth")
    for name in ("nonsense.safetensors", "nonsense.pth"):
        (tmp_path / name).write_bytes(b"nonsense")
        with pytest.raises(LoadError, match=r"nonsense\."):
            crate_from_released(tmp_path / name)
    torch.save({"state_dict": _theirs()}, tmp_path / "code.pth")  # a pickled module, which can run code
    with pytest.raises(LoadError, match="contains more than tensors, and loading it could run code"):
        crate_from_released(tmp_path / "code.pth")
