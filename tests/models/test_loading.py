"""Models by what a person types, and everything that can be wrong with a folder."""

import json
import os
import pickle
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from clearhead.models.loading import DEFAULT_MODEL, LoadError, load_model, load_object


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small BERT with its tokenizer, as save_pretrained writes it."""
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=13
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d", "e", "f"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    return tmp_path


def _edit_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def test_a_local_folder(folder: Path) -> None:
    loaded = load_model(str(folder), max_tokens=6)
    assert loaded.encode is not None
    batch = loaded.encode(["a b c d e f", "a"])
    assert batch["input_ids"].shape == (2, 6)
    assert batch["attention_mask"].tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0]]
    assert not loaded.model.training
    assert loaded.model.config._attn_implementation == "sdpa"


def test_the_demo_model_is_real() -> None:
    loaded = load_model(DEFAULT_MODEL, max_tokens=32)
    assert (loaded.model.config.num_hidden_layers, loaded.model.config.num_attention_heads) == (6, 12)
    assert loaded.encode is not None
    with torch.no_grad():
        same, other = (
            torch.nn.functional.cosine_similarity(*loaded.model(**loaded.encode(pair))[0].mean(dim=1), dim=0)
            for pair in (
                ["A man plays a guitar.", "A man plays guitar now."],
                ["A man plays a guitar.", "Stock prices fell."],
            )
        )
    assert float(same) > float(other) + 0.3


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    made = types.ModuleType("somebodys_models")
    sys.modules["somebodys_models"] = made
    yield made
    del sys.modules["somebodys_models"]


def test_an_object_path(module: types.ModuleType) -> None:
    module.make = lambda: nn.Linear(2, 2)
    module.model = nn.Linear(3, 3)
    module.number = lambda: 3
    assert load_model("somebodys_models:make", max_tokens=8).model.in_features == 2
    assert load_model("somebodys_models:model", max_tokens=8).model.in_features == 3
    with pytest.raises(LoadError, match="gives a int; it must give a torch"):
        load_model("somebodys_models:number", max_tokens=8)
    with pytest.raises(LoadError, match="cannot import somebodys_models:nothing"):
        load_object("somebodys_models:nothing")
    with pytest.raises(LoadError, match="cannot import no_such_module:make"):
        load_object("no_such_module:make")


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(
        LoadError, match=r"there is no model folder .*nowhere; give a local Hugging Face folder, all-MiniLM"
    ):
        load_model(str(tmp_path / "nowhere"), max_tokens=8)


def test_a_folder_that_holds_no_model(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"has no config\.json"):
        load_model(str(tmp_path), max_tokens=8)


@pytest.mark.parametrize("content", ["{", "[]", "\xff"])
def test_a_broken_config(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(LoadError, match=r"config\.json"):
        load_model(str(tmp_path), max_tokens=8)


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(LoadError, match="has no weights"):
        load_model(str(folder), max_tokens=8)


def test_cut_off_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(LoadError, match="cannot load"):
        load_model(str(folder), max_tokens=8)


def test_missing_weights_are_not_drawn_at_random(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.attention.self.key.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LoadError, match=r"lacks 1 of the model's weights, encoder\.layer\.1\.attention\.self\.key"):
        load_model(str(folder), max_tokens=8)


def test_weights_that_are_not_finite(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.attention.self.key.weight"][0, 0] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LoadError, match=r"not finite: encoder\.layer\.1\.attention\.self\.key\.weight"):
        load_model(str(folder), max_tokens=8)


def test_a_plain_pickle_of_tensors_is_read_with_weights_only(folder: Path) -> None:
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert load_model(str(folder), max_tokens=8).model.config.hidden_size == 8


def test_a_pickle_that_runs_code_is_refused_and_does_not_run(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    witness = tmp_path / "ran"

    class Runs:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(witness),)

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Runs()}))
    with pytest.raises(LoadError, match="a pickle that could run code; save them as safetensors"):
        load_model(str(folder), max_tokens=8)
    assert not witness.exists()


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation", "_attn_implementation_internal"])
def test_an_attention_backend_named_by_a_file_is_refused(folder: Path, key: str) -> None:
    _edit_config(folder, **{key: "somebody/kernels"})
    with pytest.raises(LoadError, match="names the attention backend 'somebody/kernels', not trusted"):
        load_model(str(folder), max_tokens=8)


def test_an_attention_backend_named_for_a_part_is_refused(folder: Path) -> None:
    _edit_config(folder, text_config={"attn_implementation": "flash_attention_2"})
    with pytest.raises(LoadError, match="not trusted"):
        load_model(str(folder), max_tokens=8)


def test_code_in_a_folder_is_not_run(folder: Path) -> None:
    (folder / "modeling_own.py").write_text("raise SystemExit('code in the folder ran')")
    _edit_config(
        folder, model_type="own", auto_map={"AutoConfig": "modeling_own.Config", "AutoModel": "modeling_own.Model"}
    )
    with pytest.raises(LoadError, match="cannot load"):
        load_model(str(folder), max_tokens=8)


def test_a_broken_tokenizer_matters_only_to_those_who_give_text(folder: Path) -> None:
    for file in folder.glob("*"):
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
    (folder / "tokenizer.json").write_text("{")
    loaded = load_model(str(folder), max_tokens=8)
    assert loaded.encode is not None
    with pytest.raises(LoadError, match="cannot load the tokenizer"):
        loaded.encode(["a"])


def test_a_model_without_a_tokenizer_cannot_encode(folder: Path) -> None:
    for file in folder.glob("*"):
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
    assert load_model(str(folder), max_tokens=8).encode is None
