"""Damage to stored files, drawn from a seed: seven kinds that disks, transfers and editors cause."""

import random
import re
from collections.abc import Callable
from pathlib import Path

__all__ = ["DAMAGES", "damage"]


def _flip_bit(content: bytearray, rng: random.Random) -> None:
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def _truncate(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(len(content)) :]


def _zero_block(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content))
    end = min(len(content), start + rng.choice([1, 16, 512]))
    content[start:end] = bytes(end - start)


def _swap_bytes(content: bytearray, rng: random.Random) -> None:
    i, j = rng.sample(range(len(content)), 2)
    content[i], content[j] = content[j], content[i]


def _append_bytes(content: bytearray, rng: random.Random) -> None:
    content += rng.choice([rng.randbytes(rng.randint(1, 64)), b"\n", b" "])


def _delete_line(content: bytearray, rng: random.Random) -> None:
    lines = bytes(content).splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    content[:] = b"".join(lines)


def _edit_number(content: bytearray, rng: random.Random) -> None:
    """Change one digit. In a file without digits, change one byte."""
    digits = [match.start() for match in re.finditer(rb"\d", content)] or range(len(content))
    index = rng.choice(digits)
    content[index] = rng.choice([digit for digit in b"0123456789" if digit != content[index]])


DAMAGES: dict[str, Callable[[bytearray, random.Random], None]] = {
    "bit flip": _flip_bit,
    "truncation": _truncate,
    "zeroed block": _zero_block,
    "swapped bytes": _swap_bytes,
    "appended bytes": _append_bytes,
    "deleted line": _delete_line,
    "edited number": _edit_number,
}


def damage(path: Path, kind: str, seed: int) -> None:
    """Damage a file so that its content changes. The same seed does the same damage to the same content."""
    before = path.read_bytes()
    rng = random.Random(f"{kind} {seed}")
    after = bytearray(before)
    while bytes(after) == before:
        DAMAGES[kind](after, rng)
    path.write_bytes(after)
