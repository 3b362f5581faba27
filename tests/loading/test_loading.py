"""Loading models by name, and refusing folders that are broken or hostile."""

import json
import os
import pickle
import socket
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from clearhead.errors import InputError
from clearhead.loading.huggingface import TOKENIZER_FILES
from clearhead.loading.model import DEFAULT_MODEL, load_model
from clearhead.loading.objects import LoadError, load_batches, load_function, load_object
from clearhead.storage import CHECKSUMS_FILE, write_checksums
from tests.faults.damage import DAMAGES, damage


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


def test_a_local_folder_is_loaded(folder: Path) -> None:
    loaded = load_model(str(folder), max_tokens=6)
    assert loaded.encode is not None
    batch = loaded.encode(["a b c d e f", "a"])
    assert batch["input_ids"].shape == (2, 6)
    assert batch["attention_mask"].tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0]]
    assert not loaded.model.training
    assert loaded.model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_folder_with_checksums_is_checked(folder: Path, kind: str) -> None:
    names = [path.name for path in folder.iterdir()]
    write_checksums(folder, names)
    load_model(str(folder), max_tokens=6)
    for seed, name in enumerate([*names, CHECKSUMS_FILE]):
        intact = (folder / name).read_bytes()
        damage(folder / name, kind, seed)
        with pytest.raises(InputError) as caught:
            load_model(str(folder), max_tokens=6)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
        (folder / name).write_bytes(intact)


def test_the_demo_model_is_trained() -> None:
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
    module = types.ModuleType("user_models")
    sys.modules["user_models"] = module
    yield module
    del sys.modules["user_models"]


def test_an_object_path_is_loaded(module: types.ModuleType) -> None:
    module.make = lambda: nn.Linear(2, 2)
    module.model = nn.Linear(3, 3)
    module.number = lambda: 3
    assert load_model("user_models:make", max_tokens=8).model.in_features == 2
    assert load_model("user_models:model", max_tokens=8).model.in_features == 3
    with pytest.raises(LoadError, match="returns a int; it must return a torch"):
        load_model("user_models:number", max_tokens=8)
    with pytest.raises(LoadError, match="cannot import user_models:nothing"):
        load_object("user_models:nothing")
    with pytest.raises(LoadError, match="cannot import no_such_module:make"):
        load_object("no_such_module:make")


def _raises(error: BaseException) -> object:
    raise error


def test_user_code_that_fails_is_named_with_its_error(
    module: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "with_a_syntax_error.py").write_text("def model(:\n")
    (tmp_path / "that_leaves.py").write_text("raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module.needs = lambda size: nn.Linear(size, size)
    module.fails = lambda: _raises(KeyError("weights"))
    module.leaves = lambda: _raises(SystemExit(0))
    for path, message in {
        "with_a_syntax_error:model": r"cannot import with_a_syntax_error:model: SyntaxError: invalid syntax",
        "that_leaves:model": "cannot import that_leaves:model: SystemExit: 0",
        "user_models:needs": r"needs fails when it is called without arguments: TypeError: .*'size'",
        "user_models:fails": "fails fails when .*: KeyError: 'weights'",
        "user_models:leaves": "leaves fails when .*: SystemExit: 0",
    }.items():
        with pytest.raises(LoadError, match=message):
            load_model(path, max_tokens=8)


def test_user_code_can_provide_batches(module: types.ModuleType) -> None:
    def breaks() -> Iterator[int]:
        yield 1
        raise KeyError("next")

    module.three = lambda: [1, 2, 3]
    module.number = 3
    module.breaks = breaks
    assert list(load_batches("user_models:three")) == [1, 2, 3]
    with pytest.raises(LoadError, match="user_models:number returns a int, not batches: TypeError"):
        load_batches("user_models:number")
    stream = load_batches("user_models:breaks")
    assert next(stream) == 1
    with pytest.raises(LoadError, match="user_models:breaks fails at batch 1: KeyError: 'next'"):
        next(stream)


def test_functions_of_user_code_are_not_called(module: types.ModuleType) -> None:
    module.fails = lambda output, batch: _raises(KeyError("labels"))
    module.number = 3
    assert load_function("user_models:fails") is module.fails
    with pytest.raises(LoadError, match="user_models:number is a int, not a function"):
        load_function("user_models:number")
    with pytest.raises(LoadError, match="cannot import user_models:nothing"):
        load_function("user_models:nothing")


class Tokenizer:
    """A minimal tokenizer: one token per character."""

    pad_token = eos_token = None
    model_max_length = 100

    def __call__(self, passages: list[str], *, padding: bool, max_length: int, **_: object) -> dict[str, torch.Tensor]:
        if padding and self.pad_token is None:
            raise ValueError("Asking to pad but the tokenizer does not have a padding token")
        rows = [[ord(letter) for letter in passage][:max_length] for passage in passages]
        longest = max(map(len, rows))
        return {"input_ids": torch.tensor([row + [0] * (longest - len(row)) for row in rows])}


def test_without_a_padding_token_passages_go_one_by_one(module: types.ModuleType) -> None:
    tokenizer = Tokenizer()
    module.pair = lambda: (nn.Linear(2, 2), tokenizer)
    encode = load_model("user_models:pair", max_tokens=3).encode
    assert encode is not None
    assert encode(["abcd"])["input_ids"].tolist() == [[97, 98, 99]]
    with pytest.raises(LoadError, match=r"has no padding token, .* --batch-size 1"):
        encode(["ab", "c"])
    tokenizer.eos_token = "."
    padding = load_model("user_models:pair", max_tokens=3).encode
    assert padding is not None
    assert padding(["ab", "c"])["input_ids"].tolist() == [[97, 98], [99, 0]]


def test_a_pair_without_a_working_tokenizer_raises_an_error(module: types.ModuleType) -> None:
    module.pair = lambda: (nn.Linear(2, 2), 7)
    with pytest.raises(LoadError, match="a model with a int, which is not a tokenizer"):
        load_model("user_models:pair", max_tokens=8)

    class Failing(Tokenizer):
        def __call__(self, *_: object, **__: object) -> dict[str, torch.Tensor]:
            raise KeyError("letter")

    module.pair = lambda: (nn.Linear(2, 2), Failing())
    encode = load_model("user_models:pair", max_tokens=8).encode
    assert encode is not None
    with pytest.raises(LoadError, match="the tokenizer fails on the text: KeyError: 'letter'"):
        encode(["a"])


def test_a_missing_folder_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        LoadError, match=r"there is no model folder .*nowhere'; give a local Hugging Face folder, all-MiniLM"
    ):
        load_model(str(tmp_path / "nowhere"), max_tokens=8)


def test_a_folder_without_a_model_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"has no config\.json"):
        load_model(str(tmp_path), max_tokens=8)


@pytest.mark.parametrize("content", ["{", "[]", "\xff"])
def test_a_broken_config_raises_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(LoadError, match=r"config\.json"):
        load_model(str(tmp_path), max_tokens=8)


def test_missing_weights_files_raise_an_error(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(LoadError, match="has no weights"):
        load_model(str(folder), max_tokens=8)


def test_truncated_weights_raise_an_error(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(LoadError, match="cannot load"):
        load_model(str(folder), max_tokens=8)


def test_an_unknown_architecture_says_what_to_do_next(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "unheard-of"}))
    next_step = r"give package\.module:function that returns the model and its tokenizer \(docs/models\.md"
    with pytest.raises(LoadError, match=next_step):
        load_model(str(folder), max_tokens=8)
    (folder / "config.json").unlink()
    with pytest.raises(LoadError, match=r"has no config\.json; .* package\.module:function that returns the model"):
        load_model(str(folder), max_tokens=8)


def test_missing_weights_are_not_initialised_at_random(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.attention.self.key.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        LoadError, match=r"lacks 1 of the model's weights, the first is encoder\.layer\.1\.attention\.self\.key"
    ):
        load_model(str(folder), max_tokens=8)


def test_non_finite_weights_raise_an_error(folder: Path) -> None:
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
    _edit_config(folder, **{key: "owner/kernels"})
    with pytest.raises(LoadError, match="names the attention backend 'owner/kernels', not trusted"):
        load_model(str(folder), max_tokens=8)


def test_an_attention_backend_named_for_a_part_is_refused(folder: Path) -> None:
    _edit_config(folder, text_config={"attn_implementation": "flash_attention_2"})
    with pytest.raises(LoadError, match="not trusted"):
        load_model(str(folder), max_tokens=8)


def test_a_model_saved_with_swapped_attention_raises_an_error(folder: Path) -> None:
    _edit_config(folder, clearhead_swap=[{"operator": {"operator": "symmetric"}, "layers": ["encoder.layer.0"]}])
    with pytest.raises(LoadError, match=r'notes swapped attention, .* remove "clearhead_swap" there'):
        load_model(str(folder), max_tokens=8)
    _edit_config(folder, clearhead_swap=None)
    assert load_model(str(folder), max_tokens=8).model is not None
    (folder / "clearhead-swap.json").write_text("{}")
    with pytest.raises(LoadError, match=r"swapped attention, .* remove clearhead-swap\.json"):
        load_model(str(folder), max_tokens=8)


def test_code_in_a_folder_is_not_run(folder: Path) -> None:
    (folder / "modeling_own.py").write_text("raise SystemExit('code in the folder ran')")
    _edit_config(
        folder, model_type="own", auto_map={"AutoConfig": "modeling_own.Config", "AutoModel": "modeling_own.Model"}
    )
    with pytest.raises(LoadError, match="cannot load"):
        load_model(str(folder), max_tokens=8)


def test_a_broken_tokenizer_raises_an_error_only_for_text(folder: Path) -> None:
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


@pytest.mark.parametrize("file", TOKENIZER_FILES)
def test_every_kind_of_tokenizer_file_is_recognised(folder: Path, file: str) -> None:
    for other in folder.glob("*"):
        if other.name not in ("config.json", "model.safetensors"):
            other.unlink()
    (folder / file).write_text("{")
    assert load_model(str(folder), max_tokens=8).encode is not None


def test_sentencepiece_files_are_recognised() -> None:
    assert {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model"} <= set(TOKENIZER_FILES)


def test_positions_start_after_the_padding(tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(0)
    shape = {
        "vocab_size": 11,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 13,
    }
    positions, padding = 17, 2
    words = ["[UNK]", "[CLS]", "[PAD]", "[SEP]", "[MASK]", "a", "b", "c", "d", "e", "f"]
    limits = {}
    for kind in ("Roberta", "Bert"):
        folder = tmp_path / kind
        folder.mkdir()
        config = getattr(transformers, f"{kind}Config")(
            max_position_embeddings=positions, pad_token_id=padding, **shape
        )
        getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)
        (folder / "vocab.txt").write_text("\n".join(words))
        transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
        loaded = load_model(str(folder), max_tokens=64)
        assert loaded.encode is not None
        batch = loaded.encode(["a b c d e f " * 9, "a"])
        loaded.model(**{key: value for key, value in batch.items() if key != "token_type_ids"})
        limits[kind] = batch["input_ids"].shape[1]
    assert limits == {"Roberta": positions - padding - 1, "Bert": positions}


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the list of hosts that code tries to reach; every attempt fails."""
    hosts: list[object] = []

    def refuse(host: object, *_: object, **__: object) -> None:
        hosts.append(host)
        raise socket.gaierror("no look-ups in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return hosts


BACKBONES = {
    "detr": {"model_type": "detr", "use_timm_backbone": False, "backbone": "microsoft/resnet-50"},
    "dpt": {"model_type": "dpt", "backbone": "microsoft/resnet-50"},
    "rt_detr": {"model_type": "rt_detr", "backbone": "resnet18", "use_timm_backbone": True},
}


def _with_config(folder: Path, config: dict[str, object]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize("name", BACKBONES)
def test_a_backbone_named_by_a_folder_is_not_fetched(folder: Path, looked_up: list[object], name: str) -> None:
    import transformers
    from huggingface_hub import constants

    path = _with_config(folder, BACKBONES[name])
    with pytest.raises(LoadError, match="needs more than the folder holds, and nothing is downloaded"):
        load_model(path, max_tokens=8)
    assert looked_up == []
    assert constants.HF_HUB_OFFLINE is False
    # Control: transformers alone does contact the hub despite local_files_only.
    with suppress(Exception):
        transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    assert looked_up


def test_a_tokenizer_is_not_fetched(folder: Path, looked_up: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    import transformers

    loaded = load_model(str(folder), max_tokens=8)

    def fetches(*_: object, **__: object) -> object:
        return huggingface_hub.HfApi().repo_exists("owner/tokenizer")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fetches)
    assert loaded.encode is not None
    with pytest.raises(LoadError, match="cannot load the tokenizer"):
        loaded.encode(["a"])
    assert looked_up == []
    with suppress(Exception):
        fetches()
    assert looked_up


@pytest.mark.parametrize("level", ["top", "nested"])
def test_a_pretrained_backbone_is_refused(folder: Path, looked_up: list[object], level: str) -> None:
    wanted: dict[str, object] = {"use_pretrained_backbone": True}
    _edit_config(folder, **(wanted if level == "top" else {"parts": [{"vision_config": wanted}]}))
    with pytest.raises(LoadError, match=r'asks for a pretrained backbone.*set "use_pretrained_backbone" to false'):
        load_model(str(folder), max_tokens=8)
    assert looked_up == []
    _edit_config(folder, use_pretrained_backbone=False, parts=[])
    assert load_model(str(folder), max_tokens=8).encode is not None


def _edit_json(path: Path, **values: object) -> None:
    stored = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(stored | values))


def _make_fifo(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def _link_to_device(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/dev/zero")


def _store_as(dtype: torch.dtype, *, as_pickle: bool = False) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / "model.safetensors")
        weights["encoder.layer.1.attention.self.key.weight"] = torch.ones(8, 8, dtype=dtype)
        if as_pickle:
            (folder / "model.safetensors").unlink()
            torch.save(weights, folder / "pytorch_model.bin")
        else:
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def _shards(file: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        from safetensors.torch import load_file

        names = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").rename(folder / "model-00001.safetensors")
        _edit_json(
            folder / "model.safetensors.index.json",
            metadata={},
            weight_map=dict.fromkeys(names, "model-00001.safetensors") | {"embeddings.LayerNorm.bias": file},
        )

    return change


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "1e9 layers": (lambda f: _edit_config(f, num_hidden_layers=10**9), "num_hidden_layers of 1000000000, but the"),
    "1001 layers": (lambda f: _edit_config(f, num_hidden_layers=1001), "num_hidden_layers of 1001, but the"),
    "a large vocabulary": (
        lambda f: _edit_config(f, vocab_size=250_000, hidden_size=8192), r"a model of 2,\d+,\d+,\d+ parameters, but",
    ),
    "a pipe": (_make_fifo, r"config\.json is not a regular file"),
    "an endless device": (_link_to_device, r"config\.json is not a regular file"),
    "a long config": (lambda f: _edit_config(f, padding="x" * 5_000_000), r"config\.json: it has more than [\d,]+ b"),
    "deep JSON": (lambda f: _set(f / "config.json", "[" * 100_000), r"config\.json: its JSON is nested too deeply"),
    "rather deep JSON": (
        lambda f: _set(f / "config.json", '{"a":' * 500 + "1" + "}" * 500), "nested more than 64 levels deep",
    ),
    "weights above": (_shards("../other/model.safetensors"), r"names the file \.\./other/model\.safetensors, which"),
    "weights elsewhere": (_shards("/etc/passwd"), "names the file /etc/passwd, which is outside the folder"),
    "weights on a drive": (_shards("C:\\model.safetensors"), r"names the file C:.*, which is outside the folder"),
    "no map of weights": (lambda f: _edit_json(f / "model.safetensors.index.json", weight_map=[]), "has no weight_map"),
    "int32": (_store_as(torch.int32), r"key\.weight as I32; a parameter must be stored as floating point"),
    "bool": (_store_as(torch.bool), r"key\.weight as BOOL; a parameter"),
    "complex": (_store_as(torch.complex64), r"key\.weight as C64; a parameter"),
    "int32 in a pickle": (_store_as(torch.int32, as_pickle=True), r"key\.weight as torch\.int32; a parameter"),
    "a list of backends": (lambda f: _edit_config(f, attn_implementation=["sdpa"]), r"backend \['sdpa'\], not trusted"),
    "a table of backends": (
        lambda f: _edit_config(f, _attn_implementation={"text": {"deep": "x"}}), r"backend \{'deep': 'x'\}, not",
    ),
    "an adapter": (lambda f: _edit_json(f / "adapter_config.json"), "holds an adapter, which names a model elsewhere"),
}  # fmt: skip


def _set(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_folder_is_refused_in_one_line(folder: Path, case: str) -> None:
    change, message = HOSTILE[case]
    change(folder)
    with pytest.raises(LoadError, match=message) as caught:
        load_model(str(folder), max_tokens=6)
    assert "\n" not in str(caught.value)


HOSTILE_TOKENIZERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "length in words": (
        lambda f: _edit_json(f / "tokenizer_config.json", model_max_length="512"),
        "tokenizer's model_max_length is '512', not a positive number",
    ),
    "length of nothing": (
        lambda f: _edit_json(f / "tokenizer_config.json", model_max_length=-1), "model_max_length is -1, not a",
    ),
    "a replacement that expands": (
        lambda f: _edit_json(f / "tokenizer.json", normalizer={
            "type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10**6}),
        "replacements that can lengthen a text 1000000 times",
    ),
    "replacements that expand together": (
        lambda f: _edit_json(f / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 30}),
        "replacements that can lengthen a text 1073741824 times",
    ),
    "a file elsewhere": (
        lambda f: _edit_json(f / "tokenizer_config.json", vocab_file="/etc/passwd"),
        "names the file /etc/passwd, which is outside the folder",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE_TOKENIZERS)
def test_a_hostile_tokenizer_is_refused_in_one_line(folder: Path, case: str) -> None:
    change, message = HOSTILE_TOKENIZERS[case]
    change(folder)
    loaded = load_model(str(folder), max_tokens=6)
    assert loaded.encode is not None
    with pytest.raises(LoadError, match=message) as caught:
        loaded.encode(["a b"])
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_panics_is_an_error(module: types.ModuleType) -> None:
    class PanicException(BaseException):
        """An exception like those of the tokenizers library."""

    class Panics(Tokenizer):
        def __call__(self, *_: object, **__: object) -> dict[str, torch.Tensor]:
            raise PanicException("regex")

    module.pair = lambda: (nn.Linear(2, 2), Panics())
    encode = load_model("user_models:pair", max_tokens=8).encode
    assert encode is not None
    with pytest.raises(LoadError, match="the tokenizer fails on the text: PanicException: regex"):
        encode(["a"])


def test_long_passages_are_cut_before_they_are_tokenized(module: types.ModuleType) -> None:
    lengths: list[int] = []

    class Measures(Tokenizer):
        def __call__(self, passages: list[str], **options: object) -> dict[str, torch.Tensor]:
            lengths.extend(map(len, passages))
            return super().__call__(passages, **options)  # type: ignore[arg-type]

    module.pair = lambda: (nn.Linear(2, 2), Measures())
    encode = load_model("user_models:pair", max_tokens=8).encode
    assert encode is not None
    encode(["a" * 10**6])
    assert lengths == [8 * 64]


def test_shards_inside_the_folder_load(folder: Path) -> None:
    _shards("model-00001.safetensors")(folder)
    assert load_model(str(folder), max_tokens=6).model.config.hidden_size == 8
