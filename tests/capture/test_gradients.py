"""Gradients of a loss at each layer's output, recorded without side effects on the model."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from clearhead._capture import capture, capture_gradients
from clearhead._swap import swap
from clearhead.audit.fidelity import replaced
from clearhead.heads import Heads
from clearhead.numerics.precision import difference_step, tolerance
from tests.capture.models import CASES, HEADS, WIDTH, Layer, layers, loss_of, tokens

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor is True"
)


NORMS_IN_SINGLE = {"llama", "t5"}
"""Families that compute norms in single precision in any model: finite differences are too inaccurate."""
OUTPUT_MAPS = {
    "bert": (".self", ".output.dense"), "gpt2": ("", ".c_proj"), "llama": ("", ".o_proj"), "t5": ("", ".o"),
    "whisper": ("", ".out_proj"), "own vision transformer": ("", ".out"),
}  # fmt: skip
"""By family: how to get the path of the output map from the path of a layer."""


def _captured(model: nn.Module, *batches: Tensor) -> list[Heads]:
    with capture_gradients(model) as captured:
        for batch in batches or (tokens(),):
            captured.differentiate(loss_of(model(batch)))
    return captured.heads


def _relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


def test_gradients_equal_those_derived_by_hand() -> None:
    """For one layer o W^T + b with the loss sum(c * .), the gradient at o is c W, for any attention."""
    model = layers(1)
    weights = tokens(7)
    with capture_gradients(model) as captured:
        captured.differentiate((model(tokens()) * weights).sum())
    (heads,) = captured.heads
    expected = (weights @ model[0].out.weight.detach()).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    assert heads.out_gradient is not None
    assert not heads.out_gradient.requires_grad
    assert _relative(heads.out_gradient, expected) <= tolerance(torch.float64, terms=WIDTH)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", sorted(CASES.keys() - NORMS_IN_SINGLE))
def test_gradients_match_finite_differences_of_the_loss(name: str, frozen: bool) -> None:
    case = CASES[name]
    _assert_slopes(case.make().requires_grad_(not frozen), case.run)


@pytest.mark.filterwarnings("ignore:.*does not use the queries")
@pytest.mark.parametrize("name", ["bert", "own vision transformer", "torch encoder", "timm vit"])
def test_a_swapped_operator_has_gradients_too(name: str) -> None:
    case = CASES[name]
    model = case.make()
    with swap(model, "symmetric", layers=[0]):
        _assert_slopes(model, case.run)


def _assert_slopes(model: nn.Module, run: Callable[[nn.Module], Any]) -> None:
    """Central differences along the gradient, one call at a time, equal its length."""
    with capture_gradients(model) as captured:
        captured.differentiate(loss_of(run(model)))
    assert len(captured.heads) == len(captured.layers) > 0
    step = difference_step(torch.float64)
    for number, heads in enumerate(captured.heads):
        assert heads.out_gradient is not None, heads.name
        assert heads.out_gradient.shape == heads.out.shape
        # Outputs of queries without visible keys cannot be changed.
        gradient = heads.out_gradient if heads.rows is None else torch.where(heads.rows, heads.out_gradient, 0)
        direction = gradient / gradient.norm()
        ends = []
        for sign in (1, -1):
            with replaced(model, _moved(number, sign * step * direction)):
                ends.append(loss_of(run(model)).item())
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(float(gradient.norm()), rel=step), heads.name


def _moved(number: int, by: Tensor) -> Any:
    """A handler that adds to the output of one call of the pass."""
    calls = iter(range(1000))
    return lambda heads: heads.out + by if next(calls) == number else heads.out


@pytest.mark.parametrize("name", OUTPUT_MAPS)
def test_gradients_equal_torchs_at_the_input_of_the_output_map(name: str) -> None:
    case = CASES[name]
    model = case.make()
    with capture_gradients(model) as captured:
        captured.differentiate(loss_of(case.run(model)))
    kept: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[Tensor]) -> None:
        args[0].retain_grad()
        kept.append(args[0])

    for heads in captured.heads:
        end, other = OUTPUT_MAPS[name]
        model.get_submodule(heads.name.removesuffix(end) + other).register_forward_pre_hook(keep)
    loss_of(case.run(model)).backward()
    for heads, joined in zip(captured.heads, kept, strict=True):
        expected = joined.grad.unflatten(-1, (heads.q.shape[1], -1)).transpose(1, 2)
        assert _relative(heads.out_gradient, expected) <= tolerance(torch.float64)
    # Control: it differs from another layer's gradient.
    assert _relative(captured.heads[0].out_gradient, captured.heads[1].out_gradient) > 0.1


@pytest.mark.parametrize(
    "name", ["bert", "albert", "gpt2", "timm vit", "own vision transformer", "torch encoder, padded"]
)
def test_other_fields_equal_those_of_a_capture(name: str) -> None:
    case = CASES[name]
    model = case.make()
    with capture(model) as plain:
        case.run(model)
    with capture_gradients(model) as captured:
        captured.differentiate(loss_of(case.run(model)))
    assert captured.layers == plain.layers
    for ours, theirs in zip(captured.heads, plain.heads, strict=True):
        assert (ours.layer, ours.name, ours.scale, ours.interface) == (
            theirs.layer,
            theirs.name,
            theirs.scale,
            theirs.interface,
        )
        for part in ("q", "k", "v", "out"):
            assert not getattr(ours, part).requires_grad
            assert _relative(getattr(ours, part), getattr(theirs, part)) <= 8 * tolerance(torch.float64)
        assert theirs.out_gradient is None
        assert [made is None for made in (ours.queries_from, ours.keys_from, ours.values_from)] == [False] * 3


def test_the_model_is_unchanged_afterwards() -> None:
    model = layers(3)
    model[0].requires_grad_(False)
    model[1].train()
    model[2].out.weight.grad = torch.full_like(model[2].out.weight, 5.0)

    def trace() -> object:
        flags = [(p.requires_grad, None if p.grad is None else float(p.grad.sum())) for p in model.parameters()]
        modules = [(m.training, sorted(m.__dict__), len(m._forward_hooks)) for m in model.modules()]
        names = functional.scaled_dot_product_attention, functional.linear, torch.addmm
        return flags, modules, names, torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            before, output = trace(), model(tokens())
            assert all(heads.out_gradient is not None for heads in _captured(model, tokens(), tokens(1)))
            with pytest.raises(ValueError, match="no gradient"), capture_gradients(model):
                model(tokens())
            assert trace() == before
            assert torch.equal(model(tokens()), output)


def test_batches_are_recorded_one_by_one_and_released() -> None:
    model = layers(2)
    seen: list[tuple[int, str]] = []
    storages: list[weakref.ref[torch.UntypedStorage]] = []

    def keep(heads: Heads) -> None:
        seen.append((heads.layer, heads.name))
        storages.extend(weakref.ref(x.untyped_storage()) for x in (heads.out, heads.out_gradient))

    with capture_gradients(model, keep=keep) as captured:
        for seed in range(3):
            output = model(tokens(seed))
            assert len(seen) == 2 * seed
            captured.differentiate(loss_of(output))
            del output
            gc.collect()
            assert not any(storage() is not None for storage in storages)
    assert seen == [(0, "0"), (1, "1")] * 3
    assert captured.heads == []
    alone = [_captured(model, tokens(seed)) for seed in range(2)]
    together = _captured(model, tokens(0), tokens(1))
    for ours, theirs in zip(together, [*alone[0], *alone[1]], strict=True):
        assert torch.equal(ours.out_gradient, theirs.out_gradient)


def test_one_loss_can_use_several_passes() -> None:
    model = layers(1)
    with capture_gradients(model) as captured:
        captured.differentiate(loss_of(model(tokens())) * loss_of(model(tokens(1))))
    assert [heads.layer for heads in captured.heads] == [0, 0]
    first, second = (_captured(model, tokens(seed))[0] for seed in range(2))
    with torch.no_grad():
        size = [float(loss_of(model(tokens(seed)))) for seed in range(2)]
    assert _relative(captured.heads[0].out_gradient, first.out_gradient * size[1]) <= tolerance(torch.float64)
    assert _relative(captured.heads[1].out_gradient, second.out_gradient * size[0]) <= tolerance(torch.float64)


class Branching(nn.Module):
    """Three parallel layers: one that affects the loss, one that does not, and one changed by `how`."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.counts, self.idle, self.other = Layer(), Layer(), Layer()
        self.how = how
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        self.idle(x)
        if self.how == "no_grad":
            with torch.no_grad():
                other = self.other(x)
        else:
            other = self.other(x) * (0 if self.how == "zero" else 1)
        return self.counts(x) + other


@pytest.mark.parametrize("how", ["no_grad", "zero", "counts"])
def test_a_layer_that_does_not_affect_the_loss_has_no_gradient(how: str) -> None:
    result = {heads.name: heads.out_gradient is not None for heads in _captured(Branching(how))}
    assert result == {"counts": True, "idle": False, "other": how == "counts"}


class Checkpointed(nn.Module):
    """Two attention layers and one other layer, of which `part` is checkpointed."""

    def __init__(self, part: str, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second = layers(2)
        self.hidden = nn.Identity()
        self.part, self.reentrant = part, reentrant

    def forward(self, x: Tensor) -> Tensor:
        for name in ("first", "hidden", "second"):
            layer = getattr(self, name)
            x = checkpoint(layer, x, use_reentrant=self.reentrant) if name == self.part else layer(x)
        return x


PARTS = ["first", "hidden", "second"]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("frozen", [False, True])
def test_checkpointing_with_a_graph_works(part: str, frozen: bool) -> None:
    model = Checkpointed(part, reentrant=False).requires_grad_(not frozen)
    plain = _captured(layers(2))
    for ours, theirs in zip(_captured(model), plain, strict=True):
        assert _relative(ours.out_gradient, theirs.out_gradient) <= tolerance(torch.float64)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("part", PARTS)
def test_checkpointing_without_a_graph_raises_an_error(part: str) -> None:
    model = Checkpointed(part, reentrant=True)
    with pytest.raises(ValueError, match="use_reentrant=True"):
        _captured(model)


def test_models_in_inference_mode_raise_an_error() -> None:
    """Inference mode around the block is allowed; a model created or run in it raises an error."""
    expected = _captured(layers(1))[0].out_gradient
    x, model = tokens(), layers(1)
    with torch.inference_mode():
        assert torch.equal(_captured(model, x)[0].out_gradient, expected)
        assert torch.is_inference_mode_enabled()
        made = layers(1)
    with pytest.raises(ValueError, match=r"made in torch\.inference_mode"):
        _captured(made)
    model[0].forward = torch.inference_mode()(model[0].forward)
    with pytest.raises(ValueError, match=r"0 runs in torch\.inference_mode"):
        _captured(model)


class Scribbling(nn.Module):
    """A model that adds in place to the inputs of its frozen attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layers(1)[0].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1
        return x.add_(self.layer(x))


def test_overwritten_tensors_raise_an_error() -> None:
    with pytest.raises(ValueError, match=r"layer: .*writes into"):
        _captured(Scribbling())


class _NoWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise RuntimeError("no way back\nat all")


LOSSES: dict[str, tuple[Any, str]] = {
    "several numbers": (lambda y, _: y.mean(dim=-1), r"one number.*\(3, 11\)"),
    "no tensor": (lambda y, _: y.mean().item(), "one number.*float"),
    "nothing": (lambda y, _: None, "one number.*NoneType"),
    "whole number": (lambda y, _: y.mean().long(), "one number, .*floating"),
    "NaN": (lambda y, _: y.mean() * torch.nan, "loss is nan"),
    "infinite": (lambda y, _: y.mean() / 0, "loss is -?inf"),
    "detached": (lambda y, _: y.detach().mean(), "no gradient: .*detach"),
    "of something else": (lambda y, model: model[0].out.bias.sum(), "depend on any attention"),
    "no way back": (
        lambda y, _: _NoWayBack.apply(y).mean(),
        r"no way back; .*\?$",
    ),
}


@pytest.mark.parametrize("case", LOSSES)
def test_invalid_losses_raise_an_error(case: str, typechecked: bool) -> None:
    if typechecked and case in ("no tensor", "nothing"):
        pytest.skip("the annotations refuse it first")
    loss, message = LOSSES[case]
    model = layers(1)
    with pytest.raises(ValueError, match=message), capture_gradients(model) as captured:
        captured.differentiate(loss(model(tokens()), model))


def test_a_loss_without_a_pass_and_a_pass_without_a_loss_raise_errors() -> None:
    model = layers(2)
    with pytest.raises(ValueError, match="no attention ran"), capture_gradients(model) as captured:
        captured.differentiate(torch.ones((), requires_grad=True))
    message = "2 attention calls"
    with pytest.raises(ValueError, match=message), capture_gradients(model):
        model(tokens())


def test_operators_called_by_a_measurement_are_not_recorded() -> None:
    model = layers(1)
    seen = []

    def keep(heads: Heads) -> None:
        assert not torch.is_grad_enabled()
        model(tokens())
        seen.append(heads.name)

    with capture_gradients(model, keep=keep) as captured:
        captured.differentiate(loss_of(model(tokens())))
    assert seen == ["0"]
