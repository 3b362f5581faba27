"""Python objects by path, `package.module:function`: loading one runs its code. Also the errors of loading."""

import importlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

from clearhead.errors import InputError

SWAP_FILE = "clearhead-swap.json"
"""The file of a model folder that describes swapped attention."""
SWAP_KEY = "clearhead_swap"
"""The key of a Hugging Face config that describes swapped attention."""


class LoadError(InputError):
    """A model that cannot be loaded."""


def is_object_path(name: str) -> bool:
    """Return whether `name` is `package.module:function` rather than a file or folder."""
    return ":" in name and not Path(name).exists()


def load_object(path: str) -> Any:
    """Import `package.module:function` and return what it returns. An attribute that is no function is returned."""
    value = _import(path)
    if isinstance(value, nn.Module) or not callable(value):
        return value
    try:
        return value()
    except (Exception, SystemExit) as error:
        raise LoadError(f"{path} fails when it is called without arguments: {error_line(error)}") from error


def load_function(path: str) -> Callable[..., Any]:
    """Import the function `package.module:function` without calling it."""
    value = _import(path)
    if not callable(value):
        raise LoadError(f"{path} is a {type(value).__name__}, not a function")
    function: Callable[..., Any] = value
    return function


def load_batches(path: str) -> Iterator[Any]:
    """Return an iterator over the batches that `package.module:function` returns."""
    value = load_object(path)
    try:
        batches = iter(value)
    except Exception as error:
        raise LoadError(f"{path} returns a {type(value).__name__}, not batches: {error_line(error)}") from error
    return _iterate(path, batches)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that is not empty, or the name of its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def error_line(error: BaseException) -> str:
    """Return the class and the first line of an error that code of others raised."""
    line, kind = first_line(error), type(error).__name__
    return line if line == kind else f"{kind}: {line}"


def _import(path: str) -> Any:
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise LoadError(f"expected package.module:function; got {path!r}")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:  # a module's code may raise anything, or end the process
        raise LoadError(f"cannot import {path}: {error_line(error)}") from error


def _iterate(path: str, batches: Iterator[Any]) -> Iterator[Any]:
    for number in itertools.count():
        try:
            batch = next(batches)
        except StopIteration:
            return
        except (Exception, SystemExit) as error:
            raise LoadError(f"{path} fails at batch {number}: {error_line(error)}") from error
        yield batch
        del batch  # or it would stay in memory while the next one is made
