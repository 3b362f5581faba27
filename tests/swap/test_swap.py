"""Swapping any operator into any layer and back; afterwards the model is bit-identical."""

import copy
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import clearhead
from clearhead import SwapWarning, swap
from clearhead.operators.named import RPC, ClampedKeys, Scaled, Softmax, Symmetric
from tests.swap.models import IDENTITY, MODELS, relative_error, run, same, trace
from tests.swap.operators import Gained, TwoSteps, uniform

pytestmark = pytest.mark.filterwarnings("ignore::clearhead.SwapWarning")

EITHER = ["bert", "gpt2", "gpt2, padded left", "llama", "vit", "clip", "swin"]
# Models with a large initialiser range amplify rounding; the measured fidelity is below a tenth of this.
ROUNDING = 1e-4
CLAMPED = ClampedKeys(queries="given", strength=0.1)


@pytest.mark.parametrize(("name", "eager"), [*((name, False) for name in IDENTITY), *((name, True) for name in EITHER)])
def test_swapping_in_softmax_changes_only_rounding(name: str, eager: bool) -> None:
    model, inputs = IDENTITY[name].make(), IDENTITY[name].inputs()
    if eager:
        model.set_attn_implementation("eager")
    alone, before = run(model, inputs), trace(model)
    with swap(model, "softmax") as done:
        swapped = run(model, inputs)
    # Eager attention returns arbitrary values for queries without visible keys, which occur only in padding.
    assert relative_error(alone, swapped, inputs.get("attention_mask")) < ROUNDING
    assert set(done.calls) == {layer.path for layer in done.layers}
    assert sum(done.calls.values()) == IDENTITY[name].calls
    assert trace(model) == before
    assert same(alone, run(model, inputs))


def test_eager_attention_without_a_mask_is_not_causal() -> None:
    """transformers' sdpa makes a layer causal if it has neither a mask nor `is_causal`; eager attention does not."""
    model, inputs = MODELS["vit"].make(), MODELS["vit"].inputs()
    for module in model.modules():
        vars(module).pop("is_causal", None)
    alone = {}
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        alone[implementation] = run(model, inputs)
        with swap(model, "softmax"):
            assert relative_error(alone[implementation], run(model, inputs)) < ROUNDING
            with torch.no_grad(), clearhead.capture(model) as captured:
                run(model, inputs)
        assert all((heads.mask is None) == (implementation == "eager") for heads in captured.heads)
    assert relative_error(alone["sdpa"], alone["eager"]) > 1e-2


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "operator",
    [uniform, Symmetric(), TwoSteps(queries="given"), Gained(start=1.5), RPC(), RPC(queries="given"), CLAMPED],
)
def test_another_operator_changes_the_output_until_undone(name: str, operator: Any) -> None:
    model, inputs = MODELS[name].make(), MODELS[name].inputs()
    alone, before = run(model, inputs), trace(model)
    with swap(model, operator, layers=[0, -1 + len(run_layers(model))]) as done:
        assert trace(model) != before
        assert relative_error(alone, run(model, inputs)) > 1e-2
        assert list(done.calls.values()) == [1, 1]
    assert trace(model) == before
    assert same(alone, run(model, inputs))
    done.undo()
    assert trace(model) == before


def run_layers(model: nn.Module) -> list[str]:
    with swap(model, "softmax") as done:
        return [layer.path for layer in done.layers]


@pytest.mark.parametrize("name", MODELS)
def test_only_the_selected_layer_is_swapped(name: str) -> None:
    model, inputs = MODELS[name].make(), MODELS[name].inputs()
    paths = run_layers(model)
    seen: dict[str, list[Tensor]] = {}

    def outputs(key: str) -> None:
        def keep(*given: Any) -> None:
            output = given[-1][0] if isinstance(given[-1], tuple) else given[-1]
            seen[key].append(output.to_padded_tensor(0.0) if output.is_nested else output)

        seen[key] = []
        handles = [model.get_submodule(path).register_forward_hook(keep) for path in paths]
        run(model, inputs)
        for handle in handles:
            handle.remove()

    outputs("alone")
    with swap(model, uniform, layers=paths[1]) as done:
        assert [(layer.index, layer.path) for layer in done.layers] == [(1, paths[1])]
        outputs("swapped")
    same_layers = [torch.equal(a, b) for a, b in zip(seen["alone"], seen["swapped"], strict=True)]
    assert same_layers[:2] == [True, False]


@pytest.mark.parametrize("name", MODELS)
def test_gradients_pass_through_and_parameters_train(name: str) -> None:
    model, inputs = MODELS[name].make(), MODELS[name].inputs()
    before = set(model.state_dict())
    done = swap(model, Gained(start=1.0), layers=0)
    added = set(model.state_dict()) - before
    assert added == {f"{done.layers[0].path}.clearhead_operator.gain"}
    child = model.get_submodule(f"{done.layers[0].path}.clearhead_operator")
    assert child.training == model.training
    loss = _loss(model, inputs)
    loss.backward()
    gradient = dict(model.named_parameters())[added.pop()].grad
    assert gradient is not None
    assert gradient.isfinite()
    assert gradient != 0
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    assert not torch.equal(_loss(model, inputs), loss)
    done.undo()
    assert set(model.state_dict()) == before


def _loss(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    output = model(**inputs)
    first = output if isinstance(output, Tensor) else output[0]
    return first.square().mean()


def test_an_operators_parameters_have_the_layers_dtype_and_device() -> None:
    model = MODELS["bert"].make().to(torch.bfloat16).train()
    swap(model, Gained(start=1.5), layers=0)
    gain = dict(model.named_parameters())["encoder.layer.0.attention.self.clearhead_operator.gain"]
    assert gain.dtype == torch.bfloat16
    assert model.encoder.layer[0].attention.self.clearhead_operator.training


@pytest.mark.parametrize("name", ["gpt2, padded left", "llama", "bert", "torch encoder"])
@pytest.mark.parametrize("operator", [functional.scaled_dot_product_attention, Symmetric(), TwoSteps()])
def test_hidden_rows_give_finite_gradients(name: str, operator: Any) -> None:
    """torch's function gives NaN for rows without visible keys, so it is never called with such rows."""

    def plain(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
        scores = (q @ k.mT) * (scale or 1.0)
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        return scores.softmax(dim=-1) @ v

    given = plain if operator is functional.scaled_dot_product_attention else operator
    model, inputs = MODELS[name].make(), MODELS[name].inputs()
    with swap(model, given):
        loss = _loss(model, inputs)
        loss.backward()
    assert loss.isfinite()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", MODELS)
def test_a_copy_of_a_swapped_model_is_independent(name: str) -> None:
    model, inputs = MODELS[name].make(), MODELS[name].inputs()
    alone = run(model, inputs)
    done = swap(model, Gained(start=1.5))
    twin = copy.deepcopy(model)
    swapped = run(model, inputs)
    assert same(run(twin, inputs), swapped)
    with torch.no_grad():
        for parameter in (p for n, p in twin.named_parameters() if "clearhead_operator" in n):
            parameter.mul_(2)
    assert not same(run(twin, inputs), swapped)
    assert same(run(model, inputs), swapped)
    done.undo()
    assert clearhead.find_swaps(model) == ()
    assert same(run(model, inputs), alone)
    assert not same(run(twin, inputs), alone)
    (copied,) = clearhead.find_swaps(twin)
    copied.undo()
    assert same(run(twin, inputs), alone)
    assert trace(twin)["state"] == trace(model)["state"]


@pytest.mark.parametrize("form", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("name", ["bert", "gpt2, padded left", "llama", "own vision transformer"])
def test_scaled_attention_starts_as_the_original_layer_and_trains(name: str, form: str) -> None:
    model, inputs = MODELS[name].make(), MODELS[name].inputs()
    alone = run(model, inputs)
    with swap(model, Scaled(form=form), layers=[0]):
        assert relative_error(alone, run(model, inputs), inputs.get("attention_mask")) < ROUNDING
        (alpha,) = (p for path, p in model.named_parameters() if "clearhead_operator" in path)
        out = model(**inputs)
        (out if isinstance(out, Tensor) else out[0]).square().sum().backward()
        assert alpha.grad.abs().sum() > 0
        with torch.no_grad():
            alpha.add_(0.5)
        assert relative_error(alone, run(model, inputs)) > 1e-2
    assert same(alone, run(model, inputs))


@pytest.mark.parametrize("name", ["bert", "timm vit", "torch encoder", "own vision transformer", "mpnet"])
def test_swaps_in_several_threads_are_independent(name: str) -> None:
    family = IDENTITY[name]
    models = [family.make() for _ in range(3)]
    inputs = family.inputs()
    alone = run(models[0], inputs)
    for model, start in zip(models[1:], (1.5, 2.5), strict=True):
        swap(model, Gained(start=start))
    expected = [run(model, inputs) for model in models]
    assert same(expected[0], alone)
    assert not same(expected[1], expected[2])
    wrong: list[int] = []

    def work(number: int) -> None:
        wrong.extend(number for _ in range(4) if not same(run(models[number], inputs), expected[number]))

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1, 2, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_swaps_are_undone_in_any_order_and_cannot_be_stacked() -> None:
    model, inputs = MODELS["llama"].make(), MODELS["llama"].inputs()
    alone, before = run(model, inputs), trace(model)
    first = swap(model, uniform, layers=0)
    only_first = run(model, inputs)
    second = swap(model, Symmetric(), layers=[1, 2])
    with pytest.raises(ValueError, match=r"layers\.1\.self_attn .*symmetric"):
        swap(model, uniform, layers=[2, 1])
    assert clearhead.find_swaps(model) == (first, second)
    first.undo()
    assert not same(run(model, inputs), alone)
    swap(model, uniform, layers=0)
    second.undo()
    assert same(run(model, inputs), only_first)
    clearhead.find_swaps(model)[0].undo()
    assert trace(model) == before
    assert same(run(model, inputs), alone)


@pytest.mark.parametrize("name", ["bert", "timm vit", "torch encoder", "own vision transformer"])
def test_layers_are_chosen_by_number_and_path(name: str) -> None:
    model = MODELS[name].make()
    paths = run_layers(model)
    for which in (1, paths[1], [paths[1], 1]):
        with swap(model, "softmax", layers=which) as done:
            assert [layer.path for layer in done.layers] == [paths[1]]
    for which in (len(paths), -1, True, "encoder.nowhere", [0, "nowhere"], []):
        with pytest.raises(ValueError, match=r"there is no attention layer .*there are 0 |got none") as caught:
            swap(model, "softmax", layers=which)
        assert "\n" not in str(caught.value)
    assert clearhead.find_swaps(model) == ()


def test_operators_are_given_by_name_or_as_functions(typechecked: bool) -> None:
    model = MODELS["bert"].make()
    with pytest.raises(ValueError, match=r"'sofmax'.* softmax, symmetric"):
        swap(model, "sofmax")
    for wrong in (Softmax,) if typechecked else (Softmax, 3):
        with pytest.raises(ValueError, match="expected an operator"):
            swap(model, wrong)
    for wrong in (lambda q, k, v: v, nn.Linear(3, 3)):
        with pytest.raises(ValueError, match=r"\(q, k, v, \*, mask, scale\)"):
            swap(model, wrong)
    with pytest.raises(ValueError, match="LayerNorm"):
        swap(nn.LayerNorm(3), "softmax")
    with swap(model, lambda q, k, v, *, mask, scale: v[..., :2]), pytest.raises(ValueError, match=r"expected .* got "):
        run(model, MODELS["bert"].inputs())


def test_side_effects_of_a_swap_are_reported() -> None:
    llama, bert = MODELS["llama"].make(), MODELS["bert"].make()
    with pytest.warns(SwapWarning, match=r"queries of 3 layers: .*2 query") as _:
        swap(llama, "symmetric").undo()
    with pytest.warns(SwapWarning, match=r"encoder\.layer\.0\.attention\.self: W_Q") as warned:
        swap(bert, "symmetric", layers=0).undo()
    assert "group" not in str(warned[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        swap(llama, TwoSteps(queries="given")).undo()
        swap(clearhead.modules.SymmetricAttention(24, num_heads=4), "symmetric").undo()
    bert.train()
    with (
        pytest.warns(SwapWarning, match=r"10% .*dropout"),
        swap(bert, "softmax"),
    ):
        bert(**MODELS["bert"].inputs())
