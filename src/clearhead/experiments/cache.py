"""Keep what was computed in a file, and take it from there as long as nothing that it hangs on has changed."""

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from clearhead.experiments.experiment import write_json
from clearhead.experiments.fingerprint import of_code

__all__ = ["kept"]


def kept(path: Path, make: Callable[..., Any], settings: Mapping[str, Any], *, rooms: tuple[str, ...]) -> Any:
    """What the file holds of `make(**settings)`, or that, computed now and kept.

    settings, result: plain values, as JSON has them
    rooms: the parts of the package on which the result hangs, beside the file that `make` is in
    """
    key = {
        "settings": json.loads(json.dumps(settings)),
        "code": {room: of_code(room) for room in rooms},
        "file": hashlib.sha256(inspect.getsource(inspect.getmodule(make) or make).encode()).hexdigest(),
        "torch": torch.__version__,
    }
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["key"] == key:
            return stored["found"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = make(**settings)
    write_json(path, {"key": key, "found": found})
    return json.loads(json.dumps(found))
