"""Files of inputs as accidents and attackers leave them, drawn from a seed: each is read, or refused in one line.

`python tests/faults/hostile_inputs.py` tries 150 and prints counts. A fault is code that runs, a traceback, several
lines, a control character, more than 60 seconds, more than 2 GB of additional memory, or "silent": a file that cannot
be what it says is read.
"""

import gzip
import os
import random
import resource
import shutil
import struct
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from PIL import Image

from clearhead.cli.main import app
from clearhead.data.media import list_files
from clearhead.data.readers import endings, read_file
from clearhead.data.text import read_passages
from clearhead.interfaces.descriptions import read_descriptions
from clearhead_lab.data.image_sets import read_images
from clearhead_lab.data.samples import open_samples
from tests.faults.attempts import HangError, in_child, limited, run, try_all, wrong_end
from tests.faults.damage import DAMAGES, damage

SECONDS, BYTES = 60, 2 * 2**30
HUGE = (0, 1, 2**31 - 1, 2**32 - 1)
RECIPE = """task = "classification"
[data]
image_size = 4
rows = 12
[model]
kind = "vision-transformer"
image_size = 4
patch_size = 2
width = 6
layers = 1
heads = 2
mlp_width = 5
classes = 2
attention = "softmax"
[training]
epochs = 1
batch_size = 3
"""
Read = Callable[[Path], object]
Change = Callable[[random.Random, Path], None]


class _Planted:
    """An object whose pickle runs code."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __reduce__(self) -> Any:
        return Path.touch, (self.log,)


def _log(path: Path) -> Path:
    """Return the file that planted code writes."""
    return path.parents[1] / "log"


# What the files are before they are changed, and how they are read.


def _write_wav(path: Path, rate: int = 800, bits: int = 16, channels: int = 1, claimed: int | None = None) -> None:
    content = bytes(range(256)) * 4
    width = bits // 8
    header = struct.pack("<HHIIHH", 1, channels, rate, rate * width % 2**32, channels * width % 2**16, bits)
    size = len(content) if claimed is None else claimed
    chunks = b"WAVEfmt " + struct.pack("<I", 16) + header + b"data" + struct.pack("<I", size) + content
    path.write_bytes(b"RIFF" + struct.pack("<I", len(chunks)) + chunks)


def _write_flac(path: Path) -> None:
    import soundfile

    soundfile.write(path, np.zeros(512), 800)


def _write_image(path: Path) -> None:
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(path)


def _write_idx(path: Path) -> None:
    for split, count in (("train", 4), ("t10k", 2)):
        labels = bytes([0, 0, 8, 1]) + struct.pack(">I", count) + bytes(count)
        for name in ("images-idx3", "labels-idx1"):
            file = path.with_name(f"{split}-{name}-ubyte.gz")
            file.write_bytes(
                gzip.compress(_idx(count, entries=bytes(4 * count)) if name.startswith("images") else labels)
            )


def _idx(count: int, side: int = 2, *, entries: bytes) -> bytes:
    shape = struct.pack(">III", count, side, side)
    return bytes([0, 0, 8, 3]) + shape + entries


def _arrays(count: int = 4) -> dict[str, Any]:
    images, labels = np.zeros((count, 2, 2), dtype=np.uint8), np.zeros(count, dtype=np.int64)
    return {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}


def _write_images_table(path: Path) -> None:
    _write_image(path.with_name("one.png"))
    content = path.with_name("one.png").read_bytes()
    path.with_name("one.png").unlink()
    pyarrow.parquet.write_table(pa.table({"image": [content] * 3, "label": [0, 1, 0]}), path)


def _write_dataset(path: Path, texts: Any = ("a b", "c d"), **options: Any) -> None:
    path.with_name("state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    table = pa.table({"text": pa.array(texts)})
    with path.open("wb") as file, pa.ipc.new_stream(file, table.schema, **options) as stream:
        stream.write_table(table)


def _write_table(path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"text": ["a b", "c d"], "n": [1, 2]}), path)


def _read_images_table(path: Path) -> object:
    samples = open_samples(path, split=None)
    return [samples[index] for index in range(len(samples))], samples.order(torch.Generator())


def _read_folder(kind: Any, *arguments: Any) -> Read:
    return lambda path: [read_file(file, kind, *arguments) for file in list_files(path.parent, endings(kind))]


def _plan(path: Path) -> int:
    """Read a recipe and estimate its run."""
    return app(("train", str(path), "--dry-run"), prog_name="clearhead", standalone_mode=False)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file: its name, how it is written and read, and how an attacker changes it.

    The name of a change that no reader may accept begins with "!".
    """

    name: str
    write: Callable[[Path], object]
    read: Read
    changes: dict[str, Change]


# Changes of one kind of file.


def _text(content: str) -> Change:
    return lambda rng, path: path.write_bytes(content.encode(errors="surrogatepass")) and None


def _wav(**options: Any) -> Change:
    return lambda rng, path: _write_wav(path, **{name: rng.choice(values) for name, values in options.items()})


def _recipe(before: str, *after: str) -> Change:
    return lambda rng, path: path.write_text(RECIPE.replace(before, rng.choice(after))) and None


def _png_of_size(rng: random.Random, path: Path) -> None:
    """Claim many pixels in the header of an image."""
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", *rng.choice([(2**31 - 1, 2**31 - 1), (60_000, 60_000), (1, 2**31 - 1)]))
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)


def _png_with_text(rng: random.Random, path: Path) -> None:
    """Add a text that expands to 256 MB."""
    content, text = path.read_bytes(), b"zTXta\0\0" + zlib.compress(bytes(2**28))
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    path.write_bytes(content[:33] + chunk + content[33:])


def _idx_bomb(rng: random.Random, path: Path) -> None:
    """Declare huge sizes, or hold more than is declared."""
    images = path.with_name("train-images-idx3-ubyte.gz")
    claimed = _idx(*rng.choice([(2**32 - 1, 2**16), (2**31, 1), (10**6, 60)]), entries=b"few")
    images.write_bytes(gzip.compress(rng.choice([claimed, _idx(4, entries=bytes(2**29))]), 1))


def _npz_of_size(rng: random.Random, path: Path) -> None:
    """Declare an array that is far larger than the file."""
    import zipfile

    np.savez(path, **_arrays())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in _arrays().items():
            with archive.open(f"{name}.npy", "w") as file:
                shape = (rng.choice([2**31, 2**62, 10**30]), 2, 2) if name == "x_train" else array.shape
                header = {"shape": shape, "fortran_order": False, "descr": array.dtype.str}
                np.lib.format.write_array_header_1_0(file, header)
                file.write(array.tobytes())


def _npz_of_objects(rng: random.Random, path: Path) -> None:
    arrays = {**_arrays(), "x_train": np.array([_Planted(_log(path))], dtype=object)}
    np.savez(path, **arrays)


def _repeat(rng: random.Random, path: Path, rows: int, text: str) -> None:
    """Write a table of some kilobytes that expands to gigabytes."""
    indices = pa.array(np.zeros(rows, dtype=np.int32))
    table = pa.table({"text": pa.DictionaryArray.from_arrays(indices, pa.array([text]))})
    pyarrow.parquet.write_table(table, path, compression="zstd", row_group_size=rng.choice([rows, rows // 20]))


def _many_rows(rng: random.Random, path: Path) -> None:
    _repeat(rng, path, 20_000_000, "x")


def _long_rows(rng: random.Random, path: Path) -> None:
    _repeat(rng, path, 1_500_000, "x" * 2000)


def _nested_column(rng: random.Random, path: Path) -> None:
    value: Any = "x"
    for _ in range(40):
        value = [value]
    pyarrow.parquet.write_table(pa.table({"text": [value]}), path)


def _strange_columns(rng: random.Random, path: Path) -> None:
    """Give the columns names that must not reach the terminal as they are."""
    pyarrow.parquet.write_table(pa.table({"\x1b[2J": ["a"], "te\nxt": ["b"]}), path)


def _lying_buffers(rng: random.Random, path: Path) -> None:
    """Claim that a compressed buffer of the stream expands to far more than it does."""
    size = 4096
    _write_dataset(path, ["x" * size], options=pa.ipc.IpcWriteOptions(compression="zstd"))
    content, claimed = path.read_bytes(), struct.pack("<q", rng.choice([2**40, 2**62, -5, 2**33]))
    assert struct.pack("<q", size) in content
    path.write_bytes(content.replace(struct.pack("<q", size), claimed))


def _lying_state(rng: random.Random, path: Path) -> None:
    """Let state.json name other files, or be something else."""
    secret = path.parents[1] / "secret"
    secret.mkdir()
    _write_dataset(secret / "data2.arrow")
    os.mkfifo(path.with_name("pipe"))
    names = ["../secret/data2.arrow", str(secret / "data2.arrow"), "pipe", "/dev/zero", "..", "", "x\0y"]
    lists = [f'[{{"filename": {name!r}}}]'.replace("'", '"').replace("\\x00", "\\u0000") for name in names]
    stored = rng.choice([*lists, '{"a": 1}', "[1]", "[[]]", "null", '"x"', "[" * 10**5])
    path.with_name("state.json").write_text(f'{{"_data_files": {stored}}}')


def _labels(rng: random.Random, path: Path) -> None:
    """Write labels that are no numbers of classes, or images that are none."""
    labels: Any = rng.choice([[-5, 0], [2**62, 0], [None, 1], [0.5, 1.0], ["0", "1"], [[0], [1]]])
    images = rng.choice([[b"x", b""], ["x", "y"], [None, None], [{"bytes": None, "path": "/etc/passwd"}] * 2])
    pyarrow.parquet.write_table(pa.table({"image": images, "label": labels}), path)


KINDS = (
    Kind(
        "text.txt",
        lambda path: path.write_text("a b\nc d\n"),
        read_passages,
        {
            "zeros": _text("\0" * 1000),
            "!not UTF-8": lambda rng, path: path.write_bytes(rng.randbytes(999) + b"\xff") and None,
            "!half of a pair": _text("a\ud800"),
            "control characters": _text("\x1b[2J\n\u202ea\n"),
            "one long line": _text("x" * 10**7),
            "!only spaces": _text(" \n\t\n" * 10**5),
        },
    ),
    Kind(
        "table.csv",
        lambda path: path.write_text("id,text\n1,a b\n2,c d\n"),
        lambda path: read_passages(path, "text"),
        {
            "an open quotation mark": _text('id,text\n1,"a' + "b\n" * 10**6),
            "zeros": _text("id,text\n1,\0\n"),
            "!control characters in names": _text("\x1b[2J,\u202e\n1,2\n"),
            "rows of other lengths": _text("id,text\n1\n1,2,3,4\n"),
            "many columns": _text("text," + "x," * 10**6 + "\na" + ",a" * 10**6),
            "!no column": _text("\n\n\n"),
        },
    ),
    Kind(
        "table.jsonl",
        lambda path: path.write_text('{"text": "a b"}\n{"text": "c d"}\n'),
        lambda path: read_passages(path, "text"),
        {
            "!deep": _text('{"text": ' + "[" * 10**5),
            "!a long number": _text('{"text": ' + "9" * 10**5 + "}"),
            "half of a pair": _text('{"text": "a\\ud800"}'),
            "!other values": _text('{"text": {"a": "\\u001b[2J"}}'),
            "!no objects": _text("[1]\nnull\n3\n"),
            "!control characters in names": _text('{"\\u001b[2J\\n": 1}'),
        },
    ),
    Kind(
        "table.parquet",
        _write_table,
        lambda path: read_passages(path, "text"),
        {
            "!many rows": _many_rows,
            "!long rows": _long_rows,
            "!nested": _nested_column,
            "!strange columns": _strange_columns,
        },
    ),
    Kind(
        "data.arrow",
        _write_dataset,
        lambda path: read_passages(path.parent, "text"),
        {
            "!lying buffers": _lying_buffers,
            "lying state": _lying_state,
        },
    ),
    Kind(
        "image.png",
        _write_image,
        _read_folder("images"),
        {
            "!pixels": _png_of_size,
            "text": _png_with_text,
            "!another kind": lambda rng, path: _write_wav(path),
        },
    ),
    Kind(
        "sound.wav",
        _write_wav,
        _read_folder("audio", 16_000),
        {
            "!rate": _wav(rate=[0, 1, 2**32 - 1, 10**6]),
            "!bits": _wav(bits=[0, 64, 65528]),
            "!channels": _wav(channels=[0]),
            "many channels": _wav(channels=[255, 65535], claimed=HUGE),
            "another length": _wav(claimed=HUGE),
            "rates and bits": _wav(rate=HUGE, bits=[7, 8, 12, 24, 32, 64]),
        },
    ),
    Kind(
        "sound.flac",
        _write_flac,
        _read_folder("audio", 16_000),
        {"!another kind": lambda rng, path: _write_wav(path, bits=64)},
    ),
    Kind(
        "attention.toml",
        lambda path: path.write_text('[[attention]]\nmodule = "A"\nq = "q"\nk = "k"\nv = "v"\n'),
        read_descriptions,
        {
            "!deep": _text("attention = " + "[" * 1000 + "]" * 1000),
            "!deeper": _text("attention = " + "[" * 10**5),
            "!another type": _text("[attention]\nmodule = 3\n"),
            "!unknown": _text('[[attention]]\nmodule = "A"\nq = "q"\nk = "k"\nv = "v"\nrun = "os:system"\n'),
            "!a long number": _text("attention = " + "9" * 10**5),
        },
    ),
    Kind(
        "recipe.toml",
        lambda path: path.write_text(RECIPE),
        _plan,
        {
            "!huge layers": _recipe(
                "layers = 1", "layers = 1000000000", "layers = 10000000000000000000", "layers = -1", "layers = 1e9"
            ),
            "!huge sizes": _recipe("width = 6", "width = 6000000000", "width = 0", 'width = "6"', "width = inf"),
            "!deep": _recipe('"softmax"', "[" * 1000 + "]" * 1000, "{a=" * 1000 + "1" + "}" * 1000, "[" * 10**5),
            "!code": _recipe(
                '"softmax"', '"os:system"', '{operator = "os:system"}', '{operator = "softmax", run = "x"}'
            ),
            "!settings": _recipe(
                "batch_size = 3",
                "batch_size = 0",
                "batch_size = 10000000000000000000",
                "batch_size = nan",
                "batch_size = []",
            ),
            "!image": _recipe("image_size = 4", "image_size = 4000000000", "image_size = -4", "image_size = []"),
            "!kind": _recipe('"vision-transformer"', '"os:system"', "[]", "3", '"\\u001b[2J"'),
            "!rows": _recipe("rows = 12", "rows = -1", "rows = 1e3", 'rows = "many"'),
        },
    ),
    Kind("train-images-idx3-ubyte.gz", _write_idx, lambda path: read_images(path.parent), {"!bomb": _idx_bomb}),
    Kind(
        "images.npz",
        lambda path: np.savez(path, **_arrays()),
        read_images,
        {"!size": _npz_of_size, "!objects": _npz_of_objects},
    ),
    Kind("images.parquet", _write_images_table, _read_images_table, {"!labels": _labels}),
)


# Changes of any file.


def _replace(make: Callable[[Path], object]) -> Change:
    def change(rng: random.Random, path: Path) -> None:
        path.unlink()
        make(path)

    return change


def _too_big(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(5 * 2**30)  # takes no room on most disks


def _damaged(rng: random.Random, path: Path) -> None:
    for _ in range(rng.randrange(1, 6)):
        if path.stat().st_size > 1:
            damage(path, rng.choice(list(DAMAGES)), rng.randrange(2**30))


ANY: dict[str, Change] = {
    "!pipe": _replace(os.mkfifo),
    "!device": _replace(lambda path: path.symlink_to("/dev/zero")),
    "!loop": _replace(lambda path: path.symlink_to(path)),
    "!folder": _replace(lambda path: path.mkdir()),
    "!too big": _replace(_too_big),
    "damaged": _damaged,
    "!system": _replace(lambda path: path.symlink_to("/proc/self/mem")),
}

CASES = [(kind, name) for kind in KINDS for name in (*ANY, *kind.changes)]


def outcome(folder: Path, seed: int, case: tuple[Kind, str] | None = None) -> str:
    """Write, change and read a file of the seed in a process of its own. Return "read", "refused" or the fault."""
    kind, name = case or CASES[seed % len(CASES)]
    (folder / "inputs").mkdir(parents=True)
    result = in_child(lambda: _attempt(folder / "inputs" / kind.name, kind, name, random.Random(seed)))
    shutil.rmtree(folder)
    if result == "read" and name.startswith("!"):
        result = "silent"
    return result if result in ("read", "refused") else f"{kind.name}, {name}: {result}"


def _attempt(path: Path, kind: Kind, name: str, rng: random.Random) -> str:
    kind.write(path)
    {**ANY, **kind.changes}[name](rng, path)
    memory = _peak()
    try:
        with limited(SECONDS):
            code, _, err = run(lambda: kind.read(path) and None)
    except HangError:
        return "hang"
    if _log(path).exists():
        return "executed"
    if _peak() - memory > BYTES:
        return f"{(_peak() - memory) / 2**30:.1f} GB more memory"
    return next(iter(wrong_end(code, err)), "refused" if code == 2 else "read")


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _prepare(folder: Path) -> Callable[[int], str]:
    return lambda seed: outcome(folder / "world", seed)


if __name__ == "__main__":
    sys.exit(try_all(__doc__, _prepare, count=150, noun="files of inputs", good={"read", "refused"}))
