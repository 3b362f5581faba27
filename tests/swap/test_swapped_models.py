"""Swapped models that are captured, compiled or never run."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import clearhead
from clearhead import swap
from clearhead.interfaces import AttentionNotSeenError
from clearhead.operators.named import Symmetric
from tests.noise import rounding_tolerance
from tests.swap.models import IDENTITY, MODELS, relative_error, rounding, run, same
from tests.swap.operators import Gained

pytestmark = pytest.mark.filterwarnings("ignore::clearhead.SwapWarning")

WIDTH = 24


class Sometimes(nn.Module):
    """A model that does not always use its second attention layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.second = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.written = WrittenAttention()
        self.use = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x, x, x, need_weights=False)[0]
        return self.second(x, x, x, need_weights=False)[0] if self.use else x


class WrittenAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return (self.q(x) @ self.k(x).mT).softmax(dim=-1) @ x


def test_a_swap_without_effect_raises_an_error() -> None:
    model, x = Sometimes().eval(), torch.randn(3, 7, WIDTH)
    with swap(model, "softmax", layers=[0, 1]) as done:
        model(x)
        assert "forward" not in vars(model)  # every layer has run, so the wrapper is removed
    assert list(done.calls.values()) == [1, 1]
    model.use = False
    done = swap(model, "softmax", layers=[0, 1])
    with pytest.raises(AttentionNotSeenError, match="never called in second"):
        model(x)
    done.undo()
    model.train()
    with pytest.raises(AttentionNotSeenError, match="never called in second"), swap(model, "softmax", layers=[0, 1]):
        model(x)
    with swap(model, "softmax"):
        pass  # nothing ran, so no layer was missed
    with pytest.raises(ZeroDivisionError), swap(model, "softmax"):
        model(x[0] / (1 // 0))
    assert clearhead.find_swaps(model) == ()
    written = WrittenAttention()
    with swap(written, "softmax"), pytest.raises(AttentionNotSeenError, match="scaled_dot"):
        written(x)


@pytest.mark.parametrize("name", ["timm vit", "torch encoder"])
def test_an_undone_swap_has_no_effect_below_another_forward(name: str) -> None:
    """Wrap forward as libraries do that move layers between devices."""
    model, inputs = MODELS[name].make(), MODELS[name].inputs()
    alone, close = run(model, inputs), rounding(model, inputs)
    first = swap(model, "symmetric", layers=0)
    layer = model.get_submodule(first.layers[0].path)
    beneath = layer.forward

    def over(*args: Any, **kwargs: Any) -> Any:
        return beneath(*args, **kwargs)

    layer.forward = over
    assert not same(run(model, inputs), alone)
    first.undo()
    assert relative_error(run(model, inputs), alone) <= close
    with swap(model, "symmetric", layers=0):
        assert not same(run(model, inputs), alone)
    assert relative_error(run(model, inputs), alone) <= close


def test_compiled_captured_and_scripted_models_raise_an_error() -> None:
    model = MODELS["torch encoder"].make()
    with pytest.raises(ValueError, match=r"swap model\._orig_mod"):
        swap(torch.compile(model), "softmax")
    with pytest.raises(ValueError, match=r"capture .*open"), torch.no_grad(), clearhead.capture(model):
        swap(model, "softmax")
    traced = torch.jit.trace(nn.Linear(3, 3), torch.ones(2, 3))
    with pytest.raises(ValueError, match="scripted"):
        swap(traced, "softmax")
    assert clearhead.find_swaps(model) == ()


class Counted(TorchFunctionMode):
    """Count the calls of torch's attention, fused or by module."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func in (functional.scaled_dot_product_attention, functional.multi_head_attention_forward)
        return func(*args, **(kwargs or {}))


def mean(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
    """An operator that does not call torch's attention."""
    return v.mean(dim=-2, keepdim=True).expand(*q.shape[:-1], -1)


@pytest.mark.parametrize("name", MODELS)
def test_the_original_attention_is_not_computed(name: str) -> None:
    model, inputs = MODELS[name].make(), MODELS[name].inputs()
    with Counted() as alone:
        run(model, inputs)
    with swap(model, mean), Counted() as swapped:
        run(model, inputs)
    assert (alone.calls, swapped.calls) == (MODELS[name].calls, 0)


@pytest.mark.parametrize("name", ["llama", "timm vit"])
def test_a_swapped_model_compiles_without_a_graph_break(name: str, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("torch cannot compile the checks of annotations")
    model, inputs = MODELS[name].make(), MODELS[name].inputs()
    torch._dynamo.reset()
    with swap(model, Gained(start=1.5)):
        compiled = run(torch.compile(model, fullgraph=True, backend="eager"), inputs)
        assert relative_error(run(model, inputs), compiled) <= rounding(model, inputs)


def test_compiling_a_described_layer_raises_an_error(typechecked: bool) -> None:
    if typechecked:
        pytest.skip("torch cannot compile the checks of annotations")
    family = IDENTITY["mpnet"]
    model, inputs = family.make(), family.inputs()
    torch._dynamo.reset()
    with swap(model, "softmax", layers=0), pytest.raises(Exception, match="fullgraph"):
        run(torch.compile(model, fullgraph=True, backend="eager"), inputs)


@pytest.mark.parametrize("name", [*MODELS, "timm eva"])
def test_capturing_a_swapped_model_records_the_operator(name: str) -> None:
    model, inputs = IDENTITY[name].make(), IDENTITY[name].inputs()
    done = swap(model, Symmetric(), layers=1)
    alone = run(model, inputs)
    with torch.no_grad(), clearhead.capture(model) as captured:
        assert same(alone, run(model, inputs))
    (heads,) = [heads for heads in captured.heads if heads.name == done.layers[0].path]
    assert len(captured.heads) == IDENTITY[name].calls
    rows = torch.ones_like(heads.out[..., :1]) if heads.rows is None else heads.rows

    def recomputed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return Symmetric()(q, k, v, mask=heads.mask, scale=heads.scale) * rows

    operands = (heads.q, heads.k, heads.v)
    difference = recomputed(*operands) - heads.out * rows
    assert float(difference.abs().max()) <= rounding_tolerance(recomputed, *operands)
    with torch.no_grad(), pytest.raises(clearhead.AttentionNotSeenError, match=r"Symmetric\(\) is swapped in"):
        clearhead.check_fidelity(model, lambda: model(**inputs))
    done.undo()
    with torch.no_grad(), swap(model, "softmax", layers=1):
        assert clearhead.check_fidelity(model, lambda: model(**inputs)).output_difference == 0
