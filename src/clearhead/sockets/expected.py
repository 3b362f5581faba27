"""Which modules of a model ought to be seen: those that look like attention by their class's name, and did run."""

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

__all__ = ["ExpectedModules", "expected_modules", "looks_like_attention"]

_ATTENTION = re.compile(r"attention|attn|(?<![a-z])(mha|mhsa|xca|gpsa)(?![a-z])|MLA", re.IGNORECASE)
_NOT_ATTENTION = re.compile(r"norm|dropout|output|bias|embedding|mask|block|layer$|encoder|decoder", re.IGNORECASE)


class ExpectedModules:
    """The modules that ran and look like attention, by path."""

    def __init__(self) -> None:
        self.ran: dict[str, str] = {}

    def unseen(self, seen: Iterable[str]) -> tuple[str, ...]:
        """Those that ran although no call was seen from them, from a part of them, or from what they are a part of."""
        seen = set(seen)
        return tuple(
            f"{path} ({kind})" for path, kind in self.ran.items() if not any(_related(path, other) for other in seen)
        )


def _related(path: str, other: str) -> bool:
    return path == other or other.startswith(path + ".") or path.startswith(other + ".") or "(model)" in (path, other)


@contextmanager
def expected_modules(model: nn.Module) -> Iterator[ExpectedModules]:
    """Note which of the innermost attention-like modules run."""
    expected = ExpectedModules()
    with ExitStack() as stack:
        for path, module in _innermost(model):
            kind = type(module).__name__

            def note(*_: object, path: str = path, kind: str = kind) -> None:
                expected.ran[path] = kind

            stack.callback(module.register_forward_pre_hook(note).remove)
        yield expected


def _projects(module: nn.Module) -> bool:
    """Whether it has at least two maps of its own, a fused one and one for the output say."""
    return sum(isinstance(child, nn.Linear | nn.Conv1d | nn.Conv2d) for child in module.children()) >= 2


def looks_like_attention(module: nn.Module) -> bool:
    """Whether the class is called so, and is not called a part of it unless it projects."""
    name = type(module).__name__
    return bool(_ATTENTION.search(name)) and (_projects(module) or not _NOT_ATTENTION.search(name))


def _innermost(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Attention-like modules that hold no other. torch's own are left out: a hook there would change their path."""
    alike = {name: module for name, module in model.named_modules() if looks_like_attention(module)}
    return [
        (name or "(model)", module)
        for name, module in alike.items()
        if not isinstance(module, nn.MultiheadAttention)
        and not any(other != name and (not name or other.startswith(name + ".")) for other in alike)
    ]
