"""Modules that look like attention by their class's name: whether they ran although no call of theirs was seen."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from clearhead.interfaces.forward import unwrap_forward, wrap_forward

_ATTENTION = re.compile(r"attention|attn|(?<![a-z])(mha|mhsa|xca|gpsa)(?![a-z])|MLA", re.IGNORECASE)
_NOT_ATTENTION = re.compile(r"norm|dropout|output|bias|embedding|mask|block|layer$|encoder|decoder", re.IGNORECASE)


class ExpectedModules:
    """The innermost modules of a model that look like attention, and those of them that ran.

    counts: whether the forward that runs now is to be noted, called at each one
    """

    def __init__(self, model: nn.Module, counts: Callable[[], bool]) -> None:
        self.ran: dict[str, str] = {}
        self._notes = [(module, _Note(self, path)) for path, module in _innermost(model)]
        self._counts = counts
        for module, note in self._notes:
            wrap_forward(module, note)

    def remove(self) -> None:
        """Leave the modules as they were."""
        for module, note in self._notes:
            unwrap_forward(module, note)

    def note(self, path: str, module: nn.Module) -> None:
        """Remember that the module ran."""
        if self._counts():
            self.ran[path] = type(module).__name__

    def unseen(self, seen: Iterable[str]) -> tuple[str, ...]:
        """Return the modules that ran although no call was seen from them, a part of them, or a module around them."""
        seen = set(seen)
        return tuple(
            f"{path} ({kind})" for path, kind in self.ran.items() if not any(_related(path, other) for other in seen)
        )


class _Note:
    """A forward wrapper that notes that its module runs."""

    permanent = False

    def __init__(self, expected: ExpectedModules, path: str) -> None:
        self.expected, self.path = expected, path

    def __call__(self, module: nn.Module, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.expected.note(self.path, module)
        return proceed(*args, **kwargs)


def _related(path: str, other: str) -> bool:
    return path == other or other.startswith(path + ".") or path.startswith(other + ".") or "(model)" in (path, other)


def _projects(module: nn.Module) -> bool:
    """Return whether the module has at least two maps of its own, for example a fused one and one for the output."""
    return sum(isinstance(child, nn.Linear | nn.Conv1d | nn.Conv2d) for child in module.children()) >= 2


def looks_like_attention(module: nn.Module) -> bool:
    """Return whether the class is called attention, and not a part of it unless it projects."""
    name = type(module).__name__
    return bool(_ATTENTION.search(name)) and (_projects(module) or not _NOT_ATTENTION.search(name))


def _innermost(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return modules that look like attention and contain no other, and torch's encoder layers.

    The latter run their attention in one kernel, which calls no module.
    """
    similar = {
        name: module
        for name, module in model.named_modules()
        if looks_like_attention(module) or isinstance(module, nn.TransformerEncoderLayer)
    }
    return [
        (name or "(model)", module)
        for name, module in similar.items()
        if isinstance(module, nn.TransformerEncoderLayer)
        or (
            not isinstance(module, nn.MultiheadAttention)
            and not any(other != name and (not name or other.startswith(name + ".")) for other in similar)
        )
    ]
