"""Model folders with hostile or nonsensical files, drawn from a seed: each is loaded or refused with one line.

`python tests/faults/hostile_folders.py` tries 200 and prints counts. A fault is an exception that is not a
ClearheadError, a message of several lines, more than 20 seconds, or more than 1 GB of additional memory.
"""

import json
import math
import os
import random
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clearhead.errors import ClearheadError
from clearhead.loading.model import load_model
from tests.faults.attempts import HangError, limited, try_all
from tests.faults.current_folder import make_model_folder

SECONDS, BYTES = 20, 2**30
VALUES: tuple[Any, ...] = (
    0, -1, 1, 3, 10**4, 10**6, 10**9, 10**30, 0.5, -0.5, 1e308, math.nan, math.inf, True, None, "", "8", "../x",
    "x" * 10**5, [], [1, 2], [[]], {}, {"a": {"b": 1}}, "\x1b[2J", "\u202e", ["sdpa"], {"": "eager"},
)  # fmt: skip
TOKENIZER_KEYS = ("model_max_length", "pad_token", "tokenizer_class", "vocab_file", "do_lower_case", "padding_side")


def _change_value(rng: random.Random, path: Path, *more: str) -> None:
    """Give one key of a JSON file a value that it should not have."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    stored[rng.choice([*stored, *more])] = rng.choice(VALUES)
    path.write_text(json.dumps(stored))


def _damage_bytes(rng: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 8, 64])):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(content[: rng.choice([len(content), len(content) // 2, 0])])


def _replace(rng: random.Random, path: Path) -> None:
    """Put something in the place of a file: a pipe, a device, a folder, a link to itself, deep or long JSON."""
    path.unlink(missing_ok=True)
    kind = rng.randrange(6)
    if kind == 0:
        os.mkfifo(path)
    elif kind in (1, 2):
        path.symlink_to("/dev/zero" if kind == 1 else path)
    elif kind == 3:
        path.mkdir()
    else:
        path.write_text("[" * 10**5 if kind == 4 else '{"a": "' + "x" * 10**7 + '"}')


ATTACKS: tuple[Callable[[random.Random, Path], None], ...] = (
    lambda rng, folder: _change_value(rng, folder / "config.json", "attn_implementation", "auto_map", "backbone"),
    lambda rng, folder: _change_value(rng, folder / "config.json"),
    lambda rng, folder: _change_value(rng, folder / "tokenizer_config.json", *TOKENIZER_KEYS),
    lambda rng, folder: _change_value(rng, folder / "tokenizer.json"),
    lambda rng, folder: _change_value(rng, folder / "model.safetensors.index.json", "weight_map", "metadata"),
    lambda rng, folder: _damage_bytes(rng, folder / rng.choice(["config.json", "tokenizer.json"])),
    lambda rng, folder: _damage_bytes(rng, folder / "model.safetensors"),
    lambda rng, folder: _replace(rng, rng.choice(sorted(folder.iterdir()))),
)


def outcome(folder: Path, seed: int) -> str:
    """Change the folder by the seed and load it. Return "loaded", "refused", or a description of the fault."""
    rng = random.Random(seed)
    for _ in range(rng.choice([1, 1, 2])):
        try:
            rng.choice(ATTACKS)(rng, folder)
        except (OSError, ValueError, AttributeError, TypeError, IndexError):
            continue  # an earlier change left nothing to change
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with limited(SECONDS):
            loaded = load_model(str(folder), max_tokens=8)
            if loaded.encode is not None:
                loaded.encode(["the a", "a"])
        result = "loaded"
    except HangError:
        result = f"more than {SECONDS} s"
    except ClearheadError as error:
        result = "refused" if "\n" not in str(error) else f"several lines: {error}"
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory)
    return result if grown < BYTES else f"{grown / BYTES:.1f} GB more memory"


def _prepare(folder: Path) -> Callable[[int], str]:
    (folder / "original").mkdir()
    make_model_folder(folder / "original")

    def attempt(seed: int) -> str:
        shutil.copytree(folder / "original", folder / "folder")
        result = outcome(folder / "folder", seed)
        shutil.rmtree(folder / "folder")
        return result

    return attempt


if __name__ == "__main__":
    sys.exit(try_all(__doc__, _prepare, count=200, noun="folders", good={"loaded", "refused"}))
