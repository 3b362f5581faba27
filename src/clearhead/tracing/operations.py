"""Watch the operations of a forward pass for the residual stream around its attention calls."""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from clearhead.heads import Heads
from clearhead.private_names import DispatchMode, current_dispatch_mode, pop_dispatch_mode
from clearhead.tracing.blocks import BlockCall
from clearhead.tracing.residual import Residuals

__all__ = ["StreamTrace"]

_SUMS = {"aten::add", "aten::add_", "aten::sub", "aten::sub_"}
_JOINS = "aten::cat"
_COPIES = {"aten::clone", "aten::_to_copy", "aten::to", "aten::contiguous", "aten::reshape"}
_SCALES = {"aten::mul", "aten::div"}


class StreamTrace:
    """The residual stream of one model's forward passes: `watched` around each, `called` for each attention call.

    A call's stream is known one block later, or at the end of the pass. Nothing is kept from pass to pass. Calls in
    other threads than the pass's own have no stream.
    """

    def __init__(self) -> None:
        self._residuals: Residuals | None = None
        self._mode: _Operations | None = None
        self._thread = 0

    @property
    def tracing(self) -> bool:
        """Whether a pass is under way in this thread."""
        return self._mode is not None and self._thread == threading.get_ident()

    @contextmanager
    def traced(self, ended: Callable[[], None]) -> Iterator[None]:
        """One forward pass, after which every call is ready and `over` is called. One inside it is a part of it."""
        if self._mode is not None:
            yield
            return
        self._residuals = Residuals()
        self._mode = _Operations(self._residuals)
        self._thread = threading.get_ident()
        try:
            try:
                with self._mode:
                    yield
            finally:
                self._mode = None
            self._residuals.finish()
            ended()
        finally:
            self._residuals = None

    def called(self, heads: Heads, made: Tensor) -> BlockCall | None:
        """Note an attention call, of which the model goes on with `made`; None outside a pass."""
        if not self.tracing or self._residuals is None:
            return None
        return self._residuals.called(heads, made)

    def replaced(self, call: BlockCall, made: Tensor) -> None:
        """Note that the model goes on with this tensor instead."""
        if self.tracing and self._residuals is not None:
            self._residuals.flow.name_again(made, call.node)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While others than the model compute. A mode that lies beneath one of theirs stays, and lets all pass."""
        mode = self._mode
        if mode is None or not self.tracing or mode.paused:
            yield
            return
        mode.paused = True
        try:
            with pop_dispatch_mode() if current_dispatch_mode() is mode else nullcontext():
                yield
        finally:
            mode.paused = False

    def ready(self) -> Iterator[Heads]:
        """The calls whose stream is known, in their order and each once, as `BlockCall.heads` has them."""
        calls = () if self._residuals is None else self._residuals.calls
        while calls and calls[0].settled:
            call = calls.popleft()
            if call.heads is not None:
                yield dataclasses.replace(call.heads, stream=call.stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What there is to know of an operator: its name, and which of its arguments it writes to, by place and name."""

    name: str
    writes: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, operator: Any) -> "_Kind":
        schema = getattr(operator, "_schema", None)
        if schema is None:
            return cls(name=str(operator))
        written = [
            (place, argument.name)
            for place, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        return cls(name=schema.name, writes=tuple(written))

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The tensors that a call writes to."""
        given = [args[place] if place < len(args) else kwargs.get(name) for place, name in self.writes]
        return list(_tensors(given))


class _Operations(DispatchMode):  # type: ignore[no-untyped-call]
    """Tells the rule of every operation of the pass, and lets it run as it is."""

    supports_higher_order_operators = True

    def __init__(self, residuals: Residuals) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.paused = False
        self._residuals = residuals
        self._kinds: dict[Any, _Kind] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note the operation with what it reads and makes; a sum is looked at before it overwrites anything."""
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _Kind.of(func)
        rule = self._residuals
        found = None
        if kind.name in _SUMS and _are_tokens(args):
            either = kind.name in ("aten::add", "aten::add_") and kwargs.get("alpha", 1) == 1
            found = rule.summed(args[0], args[1], either=either)
        elif kind.name == _JOINS:
            rule.joined(args[0])
        written = kind.written(args, kwargs) if kind.writes else []
        if written:
            rule.unshare(written)
            if found is not None and found.carried is args[0]:
                found = dataclasses.replace(found, carried=found.carried.detach().clone())
        out = func(*args, **kwargs)
        reads = [*_tensors(args), *_tensors(kwargs.values())]
        made = list(_tensors((out,)))
        node = rule.flow.ran(kind.name, reads, made + written, writes=bool(written))
        if node is None:
            return out
        if kind.name in _COPIES and len(reads) == 1:
            rule.flow.copied(node, reads[0], scaled=False)
        elif kind.name in _SCALES:
            self._note_multiple(node, reads, made[0])
        if found is not None:
            rule.take(found, out)
        if made:
            rule.stepped(made[0])
        return out

    def _note_multiple(self, node: int, reads: list[Tensor], made: Tensor) -> None:
        """Of one tensor and numbers, what was made is a multiple."""
        several = [x for x in reads if x.ndim]
        if len(several) == 1 and several[0].shape == made.shape:
            self._residuals.flow.copied(node, several[0], scaled=True)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Tensors among the values, and in lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _are_tokens(args: tuple[Any, ...]) -> bool:
    """Whether two tensors are added that may be tokens: of one shape, with a width and one to three axes before it."""
    x, y = args[:2]
    if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.is_nested or y.is_nested:
        return False
    return x.shape == y.shape and 2 <= x.ndim <= 4 and x.is_floating_point() and y.is_floating_point()
