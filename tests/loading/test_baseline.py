"""The baseline of a model: its architecture, with weights that depend only on the seed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.loading.model import DEFAULT_MODEL, LoadedModel, load_model
from clearhead.loading.objects import LoadError

SIZE = {"vocab_size": 67, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WIDTHS = {"hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 29, "num_hidden_layers": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "Bert": {**SIZE, **WIDTHS},
    "Llama": {**SIZE, **WIDTHS, "num_key_value_heads": 2},
    "GPT2": {**SIZE, "n_embd": 24, "n_layer": 2, "n_head": 4},
    "ViT": {**WIDTHS, "image_size": 16, "patch_size": 4},
    "T5": {"vocab_size": 67, "d_model": 24, "d_kv": 6, "d_ff": 29, "num_layers": 2, "num_heads": 4},
    "MPNet": {**SIZE, **WIDTHS},
}


def _loaded(family: str, folder: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**FAMILIES[family])
    getattr(transformers, f"{family}Model")(config).to(dtype).save_pretrained(folder)
    return load_model(str(folder), max_tokens=8)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: x for name, x in model.named_parameters() if x.ndim > 1}


def _baseline(loaded: LoadedModel, seed: int) -> nn.Module:
    assert loaded.draw_baseline is not None
    return loaded.draw_baseline(seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_baseline_has_the_architecture_and_no_weight_of_the_model(family: str, tmp_path: Path) -> None:
    loaded = _loaded(family, tmp_path)
    before = {name: x.clone() for name, x in loaded.model.state_dict().items()}
    config = loaded.model.config.to_dict()
    baseline = _baseline(loaded, 3)
    assert type(baseline) is type(loaded.model)
    assert str(baseline) == str(loaded.model)
    shapes = [{name: (x.shape, x.dtype) for name, x in model.named_parameters()} for model in (baseline, loaded.model)]
    assert shapes[0] == shapes[1]
    assert baseline.config._attn_implementation == loaded.model.config._attn_implementation
    assert not any(module.training for module in baseline.modules())
    theirs, drawn = _weights(loaded.model), _weights(baseline)
    assert len(drawn) > 5
    for name, x in drawn.items():
        assert torch.isfinite(x).all(), name
        assert not torch.equal(x, theirs[name]), name
        assert x.std() > 0, name
    # The model and its loader are unchanged.
    assert all(torch.equal(x, before[name]) for name, x in loaded.model.state_dict().items())
    assert loaded.model.config.to_dict() == config
    assert len({id(model.config) for model in (baseline, _baseline(loaded, 3), loaded.model)}) == 3


@pytest.mark.parametrize("family", FAMILIES)
def test_baseline_weights_depend_only_on_the_seed(family: str, tmp_path: Path) -> None:
    loaded = _loaded(family, tmp_path)
    torch.manual_seed(11)
    state = torch.get_rng_state()
    first = _weights(_baseline(loaded, 3))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(12)
    again, other = _weights(_baseline(loaded, 3)), _weights(_baseline(loaded, 4))
    for name, x in first.items():
        assert torch.equal(x, again[name]), name
        assert not torch.equal(x, other[name]), name


def test_the_baseline_has_the_models_dtype(tmp_path: Path) -> None:
    loaded = _loaded("Bert", tmp_path, torch.bfloat16)
    assert {x.dtype for x in loaded.model.parameters()} == {torch.bfloat16}
    assert {x.dtype for x in _baseline(loaded, 0).parameters()} == {torch.bfloat16}


def test_the_baseline_of_the_demo_model_is_untrained() -> None:
    loaded = load_model(DEFAULT_MODEL, max_tokens=32)
    assert loaded.encode is not None
    batch = loaded.encode(["A man plays a guitar.", "Stock prices fell."])
    with torch.no_grad():
        trained, drawn = (model(**batch).last_hidden_state for model in (loaded.model, _baseline(loaded, 0)))
    assert drawn.shape == trained.shape
    assert float((trained - drawn).abs().max()) > 0.1


def test_an_object_path_has_no_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user_model.py").write_text("from torch import nn\nmodel = nn.Linear(2, 3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_model("user_model:model", max_tokens=8).draw_baseline is None


def test_a_model_that_cannot_be_initialised_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    loaded = _loaded("Bert", tmp_path)

    def fails(*_: object, **__: object) -> object:
        raise OSError("no such backbone\nand more")

    monkeypatch.setattr(transformers.BertModel, "__init__", fails)
    state = torch.get_rng_state()
    with pytest.raises(LoadError, match=r"cannot draw fresh weights for .*: no such backbone$"):
        _baseline(loaded, 0)
    assert torch.equal(torch.get_rng_state(), state)
