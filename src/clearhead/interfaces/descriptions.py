"""Descriptions of attention modules: the class `AttentionSpec`, files of them, and those that ship with Clearhead."""

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.interfaces.call import AttentionNotSeenError
from clearhead.records import read_record
from clearhead.storage import parse_toml, read_bytes

__all__ = ["SHIPPED", "AttentionSpec", "read_descriptions"]

MAX_BYTES = 2**20
"""Of a file of descriptions."""
_CHILD = re.compile(r"(?P<name>[\w.]+)(\[(?P<third>\d)\])?")

Bias = Callable[[nn.Module, dict[str, Any]], Tensor | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Where one kind of attention module has q, k, v and its output.

    module: dotted name of its class, or the end of it
    q, k, v: a child whose output is that projection, (b, n, h*d) or (b, h, n, d); "qkv[0]" is the first third of a
        fused projection
    out: a child whose input is the attention output with heads joined; empty if the module itself returns that
    heads: the attribute, or the number, that splits the projections
    scale: a number, an attribute, or None for 1/sqrt(d)
    mask, bias, causal: names of arguments of the module's forward; a bias may be a function of the module and its
        arguments, and causal a bool
    """

    module: str
    q: str
    k: str
    v: str
    out: str = ""
    heads: str | int = "num_heads"
    scale: str | float | None = None
    mask: str | None = None
    bias: str | Bias | None = None
    causal: str | bool = False

    def describes(self, module: nn.Module) -> bool:
        """Return whether the module is of this class."""
        path = f"{type(module).__module__}.{type(module).__qualname__}"
        return path == self.module or path.endswith("." + self.module)

    def child(self, module: nn.Module, where: str) -> tuple[nn.Module, int | None]:
        """Return the child that q, k, v or out names, and which third of its output is meant."""
        match = _CHILD.fullmatch(where)
        try:
            if match is None:
                raise AttributeError
            child = module.get_submodule(match["name"])
        except AttributeError:
            names = ", ".join(name for name, _ in module.named_children())
            raise AttentionNotSeenError(f"{self.module} has no child {where!r}; its children are {names}") from None
        return child, None if match["third"] is None else int(match["third"])


SHIPPED = (
    AttentionSpec(
        module="transformers.models.mpnet.modeling_mpnet.MPNetSelfAttention",
        q="q", k="k", v="v", out="o", heads="num_attention_heads", mask="attention_mask", bias="position_bias",
    ),
)  # fmt: skip
"""Layers of transformers that do not use its attention interface."""


def read_descriptions(path: Path) -> list[AttentionSpec]:
    """Read descriptions from a TOML file: one [[attention]] table each, with the fields of `AttentionSpec`."""
    known = ", ".join(field.name for field in fields(AttentionSpec))
    try:
        tables = parse_toml(read_bytes(path, max_bytes=MAX_BYTES), path).get("attention")
    except FileNotFoundError as error:
        raise InputError(f"cannot read the description {path}: {error.strerror}") from None
    if not tables:
        raise InputError(f"{path} describes nothing: write one [[attention]] table per kind of module")
    remedy = f"an [[attention]] table needs module, q, k, v; it takes {known}"
    return read_record(list[AttentionSpec], tables, path, remedy=remedy, defaults=True)
