"""The one cache of experiments: a JSON file per measurement, used while its settings and the code are unchanged.

Every file carries a SHA-256 of its content (`stored_json`). A damaged file is never used: the measurement is repeated,
and one line says so.
"""

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import torch

import clearhead
from clearhead.stored_json import load_cached, store
from clearhead_lab.experiments.experiment import Request

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
    packages: folders of Clearhead or its laboratory whose code the result depends on, besides the file of `measure`
    notice: receives one line if the cached file is damaged
    """
    module = inspect.getmodule(measure) or measure
    key = {
        "settings": settings,
        "code": {package: code_fingerprint(package) for package in packages},
        "file": hashlib.sha256(inspect.getsource(module).encode()).hexdigest(),
        "torch": torch.__version__,
    }
    # The annotation of the result says what may be in the file.
    kind = get_type_hints(measure).get("return", Any)
    return remembered(path, key, lambda: measure(**settings), notice=notice, kind=kind)


def remembered(path: Path, key: Mapping[str, Any], measure: Callable[[], Any], *, notice: Notice, kind: Any) -> Any:
    """Return the cached result of `measure()`; compute and cache it if there is none for this key.

    kind: what the file may hold
    """
    stored = load_cached(path, key, notice=notice, kind=kind)
    return stored["result"] if stored is not None else store(path, key, measure())


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


@functools.cache
def code_fingerprint(package: str = "") -> str:
    """Return the SHA-256 of the Python source of a folder of Clearhead or its laboratory; "" is all of both."""
    digest = hashlib.sha256()
    for root in (Path(clearhead.__file__).parent, Path(__file__).parents[1]):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root.parent).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _file_name(cell: str) -> str:
    return "-".join("".join(c if c.isalnum() or c == "." else " " for c in cell).split())
