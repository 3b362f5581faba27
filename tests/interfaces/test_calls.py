"""The call that an interface records, compared with torch's result for the same arguments."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clearhead import capture, swap
from clearhead._swap.operator import apply_operator
from clearhead.audit.fidelity import recompute_error, replaced
from clearhead.interfaces import Call, Detach, Layer, Original, attach, attachment_of, find, huggingface, sdpa
from clearhead.interfaces.call import causal_mask, split_mask
from clearhead.interfaces.finding import forward_order
from clearhead.interfaces.forward import named_arguments, unwrap_forward, wrap_forward
from clearhead.interfaces.layouts import Layout
from clearhead.numerics.precision import tolerance
from clearhead.operators.requirements import requirements_of
from tests.interfaces.zoo import FAMILIES

QUERIES, KEYS, WIDTH = 5, 11, 7


class Direct(nn.Module):
    """A module that passes its arguments to torch's function."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, **options)


def _operands(heads: int = 2, shared: int = 2, *, queries: int = QUERIES, keys: int = KEYS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(heads + keys)
    return [
        torch.randn(3, h, n, WIDTH, generator=generator) for h, n in ((heads, queries), (shared, keys), (shared, keys))
    ]


@pytest.mark.parametrize(("queries", "keys"), [(QUERIES, KEYS), (KEYS, QUERIES), (KEYS, KEYS)])
def test_causal_masks_are_aligned_at_the_first_key(queries: int, keys: int) -> None:
    """torch's kernel aligns causal masks at the start, also if keys are more or fewer than queries."""
    model = Direct()
    with capture(model) as captured:
        model(*_operands(queries=queries, keys=keys), is_causal=True)
    (heads,) = captured.heads
    rows, columns = torch.arange(queries)[:, None], torch.arange(keys)
    assert torch.equal(heads.mask[0, 0], columns <= rows)
    assert recompute_error(heads) <= 4 * tolerance(torch.float32)
    assert torch.equal(causal_mask(queries, keys, torch.device("cpu"))[0, 0], columns <= rows)


def test_causal_masks_of_transformers_are_aligned_at_the_first_key() -> None:
    module = nn.Identity()
    module.is_causal = True
    q, k, v = _operands()
    call = huggingface.read_call(
        module, {"query": q, "key": k, "value": v}, name="layer", cross=False, rebuilds_causality=True
    )
    assert torch.equal(call.mask, causal_mask(QUERIES, KEYS, q.device))
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    again = functional.scaled_dot_product_attention(q, k, v, attn_mask=call.mask)
    assert torch.allclose(out, again, atol=tolerance(torch.float32))


@pytest.mark.parametrize("shared", [1, 2, 3])
def test_keys_and_values_of_grouped_heads_are_repeated_in_torchs_order(shared: int) -> None:
    model = Direct()
    q, k, v = _operands(heads=6, shared=shared)
    with torch.no_grad(), capture(model) as captured:
        model(q, k, v, enable_gqa=True)
    (heads,) = captured.heads
    assert heads.groups == 6 // shared
    for ours, theirs in ((heads.k, k), (heads.v, v)):
        for head in range(6):
            assert torch.equal(ours[:, head], theirs[:, head // (6 // shared)])
    assert recompute_error(heads) <= 4 * tolerance(torch.float32)


def test_grouped_heads_of_transformers_are_repeated_in_its_order() -> None:
    q, k, v = _operands(heads=6, shared=2)
    call = huggingface.read_call(
        nn.Identity(), {"query": q, "key": k, "value": v}, name="layer", cross=False, rebuilds_causality=False
    )
    assert call.groups == 3
    assert torch.equal(call.k[:, 4], k[:, 1])
    assert torch.equal(call.v[:, 2], v[:, 0])


def test_dropout_of_transformers_is_recorded_in_training_only() -> None:
    """Some models always pass their dropout, and their attention functions apply it in training only."""
    q, k, v = _operands()
    given = {"query": q, "key": k, "value": v, "dropout": 0.3}
    module = nn.Identity()
    for training in (True, False):
        module.train(training)
        call = huggingface.read_call(module, given, name="layer", cross=False, rebuilds_causality=False)
        assert call.dropout == (0.3 if training else 0.0)


def _hidden_row(mask: Tensor) -> Tensor:
    mask = mask.clone()
    mask[1, :, 3] = False
    return mask


@pytest.mark.parametrize("masked", [False, True])
def test_a_function_is_never_called_with_a_row_without_keys_and_the_row_is_zero(masked: bool) -> None:
    seen: list[Tensor | None] = []

    def plain(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
        seen.append(mask)
        return torch.ones(*q.shape[:-1], v.shape[-1])

    q, k, v = _operands()
    mask = _hidden_row(torch.ones(3, 1, QUERIES, KEYS, dtype=torch.bool)) if masked else None
    call = Call(name="layer", module=nn.Identity(), interface="", q=q, k=k, v=v, scale=1.0, mask=mask)
    out = apply_operator(plain, requirements_of(plain), call)
    assert bool((out[1, :, 3] == (0 if masked else 1)).all())
    assert float(out.sum()) == out.numel() - (2 * WIDTH if masked else 0)
    assert (seen[0] is None) == (not masked)
    assert seen[0] is None or bool(seen[0].any(dim=-1).all())


def test_rows_without_keys_are_zero_in_a_swapped_model_too() -> None:
    model = Direct()
    operands = _operands()
    mask = _hidden_row(torch.ones(3, 1, QUERIES, KEYS, dtype=torch.bool))

    def plain(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)

    with swap(model, plain):
        out = model(*operands, attn_mask=mask)
    assert not out[1, :, 3].any()
    assert not out.isnan().any()
    assert out[1, :, 2].abs().sum() > 0


def test_a_bias_together_with_a_mask_is_recorded() -> None:
    added = torch.zeros(1, 1, QUERIES, KEYS)
    added[..., 4] = -torch.inf
    added[..., 2] = 0.5
    mask, bias = split_mask(added)
    assert torch.equal(mask, torch.arange(KEYS).expand(1, 1, QUERIES, KEYS) != 4)
    assert torch.equal(bias, torch.where(mask, added, 0))


@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_recorded_scale_is_that_of_the_call(scale: float | None) -> None:
    model = Direct()
    with torch.no_grad(), capture(model) as captured:
        model(*_operands(), scale=scale)
    (heads,) = captured.heads
    assert heads.scale == (WIDTH**-0.5 if scale is None else scale)
    assert recompute_error(heads) <= 4 * tolerance(torch.float32)


def _attend(x: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(x, x, x)


def test_a_model_that_calls_itself_is_recorded_once_per_call() -> None:
    """A model with attention in a function, which is found only when the model runs."""

    class Recursive(nn.Module):
        def forward(self, x: Tensor, depth: int = 2) -> Tensor:
            return _attend(self(x, depth - 1) if depth else x)

    model, x = Recursive(), torch.randn(2, 5, 7)
    alone = model(x)
    with capture(model) as captured:
        assert torch.equal(model(x), alone)
    assert captured.passes == 1
    assert [heads.name for heads in captured.heads] == ["(model)", "(model), call 2", "(model), call 3"]


class Recording:
    """A handler that records its calls and applies `change` to the original output."""

    replaces = True

    def __init__(self, change: Any = lambda out: out, *, permanent: bool = False) -> None:
        self.change, self.permanent = change, permanent
        self.calls: list[Call] = []

    def __call__(self, call: Call, original: Original) -> Tensor:
        self.calls.append(call)
        return self.change(original())


@pytest.mark.parametrize("name", ["bert", "mpnet", "timm vit", "timm eva", "diffusers dit"])
def test_attach_calls_the_handler_until_detach(name: str) -> None:
    model, inputs = FAMILIES[name].make(), FAMILIES[name].inputs()
    layers = find(model)
    first = Recording()
    with torch.no_grad():
        alone = model(**inputs)[0]
        detach = attach(layers[0], first)
        assert torch.equal(model(**inputs)[0], alone)
        assert [call.name for call in first.calls] == [layers[0].path]
        doubled = Recording(lambda out: 2 * out)
        second = attach(layers[0], doubled)
        assert not torch.equal(model(**inputs)[0], alone)
        assert (len(first.calls), len(doubled.calls)) == (2, 1)
        second()
        second()
        assert torch.equal(model(**inputs)[0], alone)
        detach()
        assert torch.equal(model(**inputs)[0], alone)
    assert (len(first.calls), len(doubled.calls)) == (3, 1)
    assert attachment_of(layers[0].module) is None


def test_permanent_handlers_are_innermost() -> None:
    model, order = Direct(), []

    class Noting(Recording):
        def __call__(self, call: Call, original: Original) -> Tensor:
            out = original()
            order.append(self.permanent)
            return out

    layer = Layer(path="", module=model, interface=sdpa.NAME)
    detach: list[Detach] = [attach(layer, Noting()), attach(layer, Noting(permanent=True)), attach(layer, Noting())]
    model(*_operands())
    assert order == [True, False, False]
    for undo in detach:
        undo()
    assert sorted(vars(model)) == sorted(vars(Direct()))


def test_the_original_attention_is_computed_at_most_once_and_only_if_called() -> None:
    counted: list[int] = []

    def compute() -> tuple[Tensor, Tensor]:
        counted.append(1)
        return torch.ones(2), torch.zeros(2)

    original = Original(compute)
    assert counted == []
    assert original() is original()
    assert counted == [1]
    assert torch.equal(original.model_output, torch.zeros(2))


def test_wrappers_are_removed_in_any_order_even_below_another_forward() -> None:
    class Plus:
        permanent = False

        def __init__(self, by: float) -> None:
            self.by = by

        def __call__(self, module: nn.Module, proceed: Any, *args: Any, **kwargs: Any) -> Any:
            return proceed(*args, **kwargs) + self.by

    module, x = nn.Identity(), torch.zeros(())
    one, ten = Plus(1), Plus(10)
    wrap_forward(module, one)
    wrap_forward(module, ten)
    assert module(x) == 11
    below = module.forward
    module.forward = lambda x: below(x) * 2
    assert module(x) == 22
    unwrap_forward(module, one)
    assert module(x) == 20
    wrap_forward(module, one)
    assert module(x) == 21
    unwrap_forward(module, ten)
    unwrap_forward(module, one)
    assert module(x) == 0
    del module.forward
    assert sorted(vars(module)) == sorted(vars(nn.Identity()))


def test_positional_and_keyword_arguments_are_named() -> None:
    def function(x: int, y: int = 2, **rest: int) -> None: ...

    assert named_arguments(function, 1, z=3) == {"x": 1, "z": 3}
    assert named_arguments(function, 1, 5) == {"x": 1, "y": 5}


def test_layers_are_in_the_order_of_forward() -> None:
    class Later(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.unnamed = (nn.Identity() for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.c(x)
            x = self._inside(x)
            return self.a(x)

        def _inside(self, x: Tensor) -> Tensor:
            return self.b(x)

    names = [path for path, _ in forward_order(nn.Sequential(Later()))]
    assert names == ["", "0", "0.c", "0.b", "0.a", "0.unnamed"]


def test_a_replacement_in_half_precision_keeps_the_models_dtype() -> None:
    model = Direct()
    operands = [x.bfloat16() for x in _operands()]
    with torch.no_grad(), replaced(model, lambda heads: heads.out.double()):
        assert model(*operands).dtype is torch.bfloat16


def test_heads_in_the_batch_axis_need_a_multiple_of_the_inputs() -> None:
    module = nn.Identity()
    module.num_heads = 4
    x = torch.randn(12, 5, 7)
    call = Call(name="layer", module=module, interface="", q=x, k=x, v=x, scale=1.0)
    assert Layout.of(call, 3) == Layout(folded=4)
    assert Layout.of(call, 12) == Layout()
    assert tuple(Layout.of(call, 3).heads(call, x, name="layer").q.shape) == (3, 4, 5, 7)


def test_windows_are_counted_for_modules_with_a_window_size() -> None:
    module = nn.Identity()
    x = torch.randn(12, 2, 5, 7)
    call = Call(name="layer", module=module, interface="", q=x, k=x, v=x, scale=1.0)
    assert Layout.of(call, 3).windows == 1
    module.window_size = 5
    assert Layout.of(call, 3).windows == 4
    assert Layout.of(call, 5).windows == 1
