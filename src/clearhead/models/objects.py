"""Python objects by their path, package.module:function, which is to run somebody's code; and how loading fails."""

import importlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

from clearhead.errors import InputError

__all__ = [
    "SWAP_FILE",
    "SWAP_KEY",
    "LoadError",
    "first_line",
    "is_object_path",
    "load_batches",
    "load_function",
    "load_object",
    "told",
]


SWAP_FILE = "clearhead-swap.json"
"""Notes, beside a model's own files, which attention was swapped in."""
SWAP_KEY = "clearhead_swap"
"""Does so in a Hugging Face config."""


class LoadError(InputError):
    """A model that cannot be loaded. The message names the cause and the remedy."""


def is_object_path(name: str) -> bool:
    """Return whether `name` is `package.module:function` rather than a file or folder."""
    return ":" in name and not Path(name).exists()


def load_object(path: str) -> Any:
    """Import `package.module:function` and call it. This runs that code."""
    made = _imported(path)
    if isinstance(made, nn.Module) or not callable(made):
        return made
    try:
        return made()
    except (Exception, SystemExit) as error:
        raise LoadError(f"{path} fails when it is called without arguments: {told(error)}") from error


def load_function(path: str) -> Callable[..., Any]:
    """Import `package.module:function`, to be called by others. This runs the module's code."""
    made = _imported(path)
    if not callable(made):
        raise LoadError(f"{path} is a {type(made).__name__}, not a function; name one")
    function: Callable[..., Any] = made
    return function


def _imported(path: str) -> Any:
    module_name, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:  # a module's own code may raise anything, or end the process
        raise LoadError(f"cannot import {path}: {told(error)}") from error


def load_batches(path: str) -> Iterator[Any]:
    """The batches that `package.module:function` gives, one by one. This runs that code."""
    made = load_object(path)
    try:
        stream = iter(made)
    except Exception as error:
        raise LoadError(f"{path} gives a {type(made).__name__}, not batches: {told(error)}") from error
    return _stepped(path, stream)


def _stepped(path: str, stream: Iterator[Any]) -> Iterator[Any]:
    for number in itertools.count():
        try:
            batch = next(stream)
        except StopIteration:
            return
        except (Exception, SystemExit) as error:
            raise LoadError(f"{path} fails at batch {number}: {told(error)}") from error
        yield batch
        del batch  # not kept while the next is made


def first_line(error: BaseException) -> str:
    """The first line of an error's message that says something, or its kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def told(error: BaseException) -> str:
    """An error of code that is not ours, in one line."""
    line, kind = first_line(error), type(error).__name__
    return line if line == kind else f"{kind}: {line}"
