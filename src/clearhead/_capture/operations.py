"""The operations of a forward pass, traced for the residual stream around its attention calls."""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from clearhead._capture.blocks import BlockCall
from clearhead._capture.output_maps import COPIES, SCALES, SUMS, coefficient
from clearhead._capture.residual import Residuals
from clearhead.heads import Heads
from clearhead.private_names import DispatchMode, current_dispatch_mode, pop_dispatch_mode

_JOINS = "aten::cat"
_LAYER_NORMS = {"aten::layer_norm", "aten::native_layer_norm"}


class StreamTrace:
    """The residual stream of one model's forward passes: `traced` around each, `note_call` for each attention call.

    A call's residual stream is known one block later, or at the end of the pass. Nothing is held from pass to pass.
    Calls in other threads than the pass's own have none.

    copies: whether weights are copied, because they are not in memory after their module has run
    """

    def __init__(self) -> None:
        self.copies = False
        self._residuals: Residuals | None = None
        self._mode: _Operations | None = None
        self._thread = 0

    @property
    def tracing(self) -> bool:
        """True while a pass is running in this thread."""
        return self._mode is not None and self._thread == threading.get_ident()

    @contextmanager
    def traced(self, ended: Callable[[], None]) -> Iterator[None]:
        """Trace one forward pass; at its end all calls are ready and `ended` is called. A pass inside is part of it."""
        if self._mode is not None:
            yield
            return
        self._residuals = Residuals(copies=self.copies)
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

    def note_call(self, heads: Heads, model_output: Tensor, *, projection: Tensor | None = None) -> BlockCall | None:
        """Note an attention call with which the model continues as `model_output`; return None outside a pass.

        projection: weight of the output projection that is already applied to it
        """
        if not self.tracing or self._residuals is None:
            return None
        return self._residuals.note_call(heads, model_output, projection=projection)

    def note_replacement(self, call: BlockCall, output: Tensor) -> None:
        """Note that the model continues with this tensor instead."""
        if self.tracing and self._residuals is not None:
            self._residuals.flow.assign(output, call.node)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore operations inside the block. A mode below one of others stays active and ignores them too."""
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
        """Yield the calls whose residual stream is known, in order and each once."""
        calls = () if self._residuals is None else self._residuals.calls
        while calls and calls[0].settled:
            call = calls.popleft()
            if call.heads is not None:
                yield dataclasses.replace(call.heads, **call.block_fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """An operator's name, and the arguments it writes to, by position and name."""

    name: str
    writes: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, operator: Any) -> "_Kind":
        schema = getattr(operator, "_schema", None)
        if schema is None:
            return cls(name=str(operator))
        written = [
            (index, argument.name)
            for index, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        return cls(name=schema.name, writes=tuple(written))

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """Return the tensors that a call writes to."""
        values = [args[index] if index < len(args) else kwargs.get(name) for index, name in self.writes]
        return list(_tensors(values))


class _Operations(DispatchMode):  # type: ignore[no-untyped-call]
    """A mode that shows every operation of the pass to the rule and runs it unchanged."""

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
        """Note the operation with what it reads and makes. A sum is examined before it overwrites anything."""
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _Kind.of(func)
        rule = self._residuals
        residual_sum = None
        if kind.name in SUMS and _are_tokens(args):
            residual_sum = rule.classify_sum(args[0], args[1], coefficient=coefficient(kind.name, kwargs))
        elif kind.name == _JOINS:
            rule.note_concatenation(args[0])
        written = kind.written(args, kwargs) if kind.writes else []
        if written:
            rule.unshare(written)
            if residual_sum is not None and residual_sum.operand is args[0]:
                residual_sum = dataclasses.replace(residual_sum, operand=residual_sum.operand.detach().clone())
        out = func(*args, **kwargs)
        reads = [*_tensors(args), *_tensors(kwargs.values())]
        outputs = list(_tensors((out,)))
        node = rule.flow.add(kind.name, reads, outputs + written, writes=bool(written))
        if node is None:
            return out
        if kind.name in COPIES and len(reads) == 1:
            rule.flow.note_copy(node, reads[0], scaled=False)
        elif kind.name in SCALES:
            self._note_multiple(node, reads, outputs[0])
        rule.follow_outputs(kind.name, args, kwargs, node)
        if residual_sum is not None:
            rule.apply_sum(residual_sum, out)
        elif kind.name in _LAYER_NORMS:
            rule.note_layer_norm(args, node)
        if outputs:
            rule.note_step(outputs[0])
        return out

    def _note_multiple(self, node: int, reads: list[Tensor], output: Tensor) -> None:
        """Note that the result of one tensor and numbers is a multiple."""
        tensors = [x for x in reads if x.ndim]
        if len(tensors) == 1 and tensors[0].shape == output.shape:
            self._residuals.flow.note_copy(node, tensors[0], scaled=True)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among the values, and in lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _are_tokens(args: tuple[Any, ...]) -> bool:
    """Return whether two tensors are added that may be tokens: one shape, with one to three axes before the width."""
    x, y = args[:2]
    if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.is_nested or y.is_nested:
        return False
    return x.shape == y.shape and 2 <= x.ndim <= 4 and x.is_floating_point() and y.is_floating_point()
