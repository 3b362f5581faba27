"""The one cache of experiments: a JSON file per measurement, used while its settings and the code are unchanged.

Every file carries a SHA-256 of its content (`stored_json`). A damaged file is never used: the measurement is repeated,
and one line says so.
"""

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.experiments.experiment import Request
from clearhead.stored_json import DamagedFileError, read_json, write_json

__all__ = ["cached", "code_fingerprint", "load_cached", "measure_cells", "store", "tensor_fingerprint"]

Notice = Callable[[str], None]


def cached(
    path: Path,
    measure: Callable[..., Any],
    settings: Mapping[str, Any],
    *,
    packages: Iterable[str] = (),
    notice: Notice,
) -> Any:
    """Return the cached result of `measure(**settings)`; compute and cache it if settings or code changed.

    settings, result: plain values, as JSON has them
    packages: folders below src/clearhead whose code the result depends on, in addition to the file of `measure`
    notice: receives one line if the cached file is damaged
    """
    module = inspect.getmodule(measure) or measure
    key = {
        "settings": settings,
        "code": {package: code_fingerprint(package) for package in packages},
        "file": hashlib.sha256(inspect.getsource(module).encode()).hexdigest(),
        "torch": torch.__version__,
    }
    stored = load_cached(path, key, notice=notice)
    return stored["result"] if stored is not None else store(path, key, measure(**settings))


def load_cached(path: Path, key: Mapping[str, Any], *, notice: Notice) -> dict[str, Any] | None:
    """Return what `store` wrote under the same key: {"key": ..., "result": ...}; None if there is no such file."""
    try:
        stored = read_json(path)
    except FileNotFoundError:
        return None
    except DamagedFileError:
        notice(f"{path} is damaged or has no checksum; measuring again")
        return None
    return stored if "result" in stored and stored.get("key") == _plain(key) else None


def store(path: Path, key: Mapping[str, Any], result: Any) -> Any:
    """Write a result under its key and return it as a later `load_cached` will."""
    write_json(path, {"key": key, "result": result})
    return _plain(result)


def measure_cells(
    measure: Callable[..., Any],
    settings: Callable[[Request], Mapping[str, Mapping[str, Any]]],
    *,
    packages: Iterable[str],
) -> Callable[[Request, Path], dict[str, Any]]:
    """Return a function that runs `measure` once per cell and caches each result under its name.

    settings: the arguments of `measure`, by the name of the cell
    """

    def run(request: Request, folder: Path) -> dict[str, Any]:
        cells = settings(request)
        results = {}
        for number, (name, arguments) in enumerate(cells.items()):
            request.progress(name, number, len(cells))
            path = folder / "measured" / f"{_file_name(name)}.json"
            results[name] = cached(path, measure, arguments, packages=packages, notice=request.notice)
        return results

    return run


def tensor_fingerprint(tensors: Iterable[Tensor], *, source: str = "") -> str:
    """Return the SHA-256 of the shapes, dtypes and entries of tensors, and of `source`."""
    digest = hashlib.sha256(source.encode())
    for tensor in tensors:
        digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@functools.cache
def code_fingerprint(package: str = "") -> str:
    """Return the SHA-256 of the Python source of a folder below src/clearhead; "" is all of Clearhead."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted((root / package).rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _file_name(cell: str) -> str:
    return "-".join("".join(c if c.isalnum() or c == "." else " " for c in cell).split())
