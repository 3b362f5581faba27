"""The linear maps of queries, keys and values: found if and only if they are a linear map's output."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clearhead._capture import capture
from clearhead.audit.fidelity import replaced
from clearhead.heads import Heads
from clearhead.numerics.precision import machine_epsilon, tolerance
from tests.interfaces.map_checks import ROLES, assert_found, identity_error, map_of
from tests.interfaces.zoo import FAMILIES

BATCH, TOKENS, WIDTH, HEADS, FEATURES = 3, 11, 23, 5, 7


def _x(seed: int = 0, batch: int = BATCH, tokens: int = TOKENS) -> Tensor:
    return torch.randn(batch, tokens, WIDTH, generator=torch.Generator().manual_seed(seed))


class Attention(nn.Module):
    """Attention whose `role` is `lay(self, x)`, (b, h, t, f), computed with a projection of `width` columns."""

    def __init__(
        self, lay: Callable[["Attention", Tensor], Tensor], width: int = 3 * HEADS * FEATURES, role: str = "v"
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lay, self.role = lay, role
        self.project = nn.Linear(WIDTH, width)
        self.others = nn.ModuleList(nn.Linear(WIDTH, HEADS * FEATURES) for _ in range(2))
        self.norm = nn.LayerNorm(FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        parts = [_heads(other(x)) for other in self.others]
        parts.insert(ROLES.index(self.role), self.lay(self, x))
        return functional.scaled_dot_product_attention(*parts)


def _heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, FEATURES)).transpose(1, 2)


def _captured(model: nn.Module, *batches: Tensor) -> list[Heads]:
    with torch.no_grad(), capture(model) as captured:
        for batch in batches or (_x(),):
            model(batch)
    return captured.heads


ALL = HEADS * FEATURES
COLUMNS: dict[str, tuple[Callable[[Attention, Tensor], Tensor], int, Tensor]] = {
    "v alone": (lambda m, x: _heads(m.project(x)), ALL, torch.arange(ALL).view(HEADS, FEATURES)),
    "q, k, v": (
        lambda m, x: _heads(m.project(x).chunk(3, dim=-1)[2]), 3 * ALL,
        torch.arange(2 * ALL, 3 * ALL).view(HEADS, FEATURES),
    ),
    "k, v": (
        lambda m, x: _heads(m.project(x).chunk(2, dim=-1)[1]), 2 * ALL,
        torch.arange(ALL, 2 * ALL).view(HEADS, FEATURES),
    ),
    "head by head": (
        lambda m, x: m.project(x).unflatten(-1, (HEADS, 3, FEATURES))[..., 2, :].transpose(1, 2), 3 * ALL,
        torch.arange(3 * ALL).view(HEADS, 3, FEATURES)[:, 2],
    ),
    "features before heads": (
        lambda m, x: m.project(x).unflatten(-1, (FEATURES, HEADS)).permute(0, 3, 1, 2), ALL,
        torch.arange(ALL).view(FEATURES, HEADS).mT,
    ),
    "backwards": (lambda m, x: _heads(m.project(x).flip(-1)), ALL, torch.arange(ALL).flip(0).view(HEADS, FEATURES)),
    "one for all": (
        lambda m, x: m.project(x).unsqueeze(1).expand(-1, HEADS, -1, -1), FEATURES,
        torch.arange(FEATURES).expand(HEADS, FEATURES),
    ),
    "tokens first": (
        lambda m, x: m.project(x.transpose(0, 1)).unflatten(-1, (HEADS, FEATURES)).permute(1, 2, 0, 3), ALL,
        torch.arange(ALL).view(HEADS, FEATURES),
    ),
    "tokens in one axis": (
        lambda m, x: _heads(m.project(x.flatten(0, 1)).unflatten(0, (BATCH, TOKENS))), ALL,
        torch.arange(ALL).view(HEADS, FEATURES),
    ),
    "no module": (
        lambda m, x: _heads(functional.linear(x, bias=m.project.bias, weight=m.project.weight)), ALL,
        torch.arange(ALL).view(HEADS, FEATURES),
    ),
    "others after it": (
        lambda m, x: [_heads(m.project(x)), *(m.others[0](x) for _ in range(6))][0], ALL,
        torch.arange(ALL).view(HEADS, FEATURES),
    ),
    "the other part written into": (
        lambda m, x: _heads(_with(m.project(x), lambda y: y[..., :ALL].mul_(2)).chunk(2, dim=-1)[1]), 2 * ALL,
        torch.arange(ALL, 2 * ALL).view(HEADS, FEATURES),
    ),
}  # fmt: skip


def _with(x: Tensor, act: Callable[[Tensor], Any]) -> Tensor:
    act(x)
    return x


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("case", COLUMNS)
def test_the_columns_are_found_in_any_order(case: str, role: str) -> None:
    lay, width, columns = COLUMNS[case]
    model = Attention(lay, width, role)
    for heads in _captured(model, _x(), _x(1)):
        for each in ROLES:
            assert_found(heads, each)
        made = map_of(heads, role)
        assert torch.equal(made.weight, model.project.weight[columns].mT)
        assert torch.equal(made.bias, model.project.bias[columns])
    assert torch.equal(made.x, _x(1))


def test_the_columns_are_reused_for_other_batch_sizes() -> None:
    model = Attention(COLUMNS["head by head"][0])
    for heads in _captured(model, _x(), _x(1, batch=2, tokens=13), _x(2, batch=1, tokens=1)):
        assert_found(heads)


NO_MAP: dict[str, Callable[[Attention, Tensor], Tensor]] = {
    "through a nonlinearity": lambda m, x: _heads(functional.gelu(m.project(x))),
    "through a norm": lambda m, x: m.norm(_heads(m.project(x))),
    "scaled token by token": lambda m, x: _heads(m.project(x) * torch.linspace(1, 1.01, TOKENS)[:, None]),
    "scaled head by head": lambda m, x: _heads(m.project(x)) * torch.linspace(1, 1.01, HEADS)[:, None, None],
    "scaled and shifted": lambda m, x: _heads(m.project(x) * 1.01 + 1e-5),
    "one entry scaled more": lambda m, x: _heads(_with(m.project(x) * 1.01, lambda y: y[1, 3, 2].mul_(1.0001))),
    "scaled in place": lambda m, x: _heads(m.project(x).mul_(1.01)),
    "one entry scaled in place": lambda m, x: _heads(_with(m.project(x), lambda y: y[1, 3, 2].mul_(1.5))),
    "input written into": lambda m, x: _heads(_with(m.project(y := x.clone()), lambda _: y.mul_(1.01))),
    "weight written into": lambda m, x: _heads(_with(m.project(x), lambda _: m.project.weight.mul_(1.01))),
    "sum of two maps": lambda m, x: _heads(m.project(x) + m.others[0](x)),
    "tokens out of order": lambda m, x: _heads(m.project(x).flip(1)),
    "token appended": lambda m, x: functional.pad(_heads(m.project(x)), (0, 0, 0, 1))[:, :, 1:],
    "no map at all": lambda m, x: _heads(x.repeat(1, 1, 2)[..., :ALL]),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("case", NO_MAP)
def test_operands_that_are_not_linear_outputs_have_no_map(case: str, role: str) -> None:
    """Controls: all heads and features must match, not all but one. The other two operands keep their maps."""
    for heads in _captured(Attention(NO_MAP[case], ALL, role), _x(), _x(1)):
        assert [map_of(heads, each) is None for each in ROLES] == [each == role for each in ROLES]


MULTIPLIED: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "by a number": (lambda y: y * 1.01, 1.01),
    "by the root of the width": (lambda y: y * FEATURES**-0.5, FEATURES**-0.5),
    "divided": (lambda y: y / FEATURES**0.5, FEATURES**-0.5),
    "by a power of two": (lambda y: y * 0.125, 0.125),
    "by a negative number": (lambda y: -3 * y, -3.0),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("case", MULTIPLIED)
def test_a_constant_factor_is_included_in_the_map(case: str, role: str) -> None:
    multiply, constant = MULTIPLIED[case]
    lay, width, columns = COLUMNS["head by head"]
    model = Attention(lambda m, x: multiply(lay(m, x)), width, role)
    for heads in _captured(model, _x(), _x(1), _x(2, batch=1, tokens=1)):
        assert_found(heads, role)
        made = map_of(heads, role)
        expected = model.project.weight[columns].mT * constant
        torch.testing.assert_close(made.weight, expected, rtol=2 * machine_epsilon(torch.float32), atol=0)
        expected = model.project.bias[columns] * constant
        torch.testing.assert_close(made.bias, expected, rtol=2 * machine_epsilon(torch.float32), atol=0)


def test_zero_operands_are_not_matched_with_a_zero_factor() -> None:
    zeros = Attention(lambda m, x: torch.zeros_like(_heads(m.project(x))), ALL)
    assert all(heads.values_from is None for heads in _captured(zeros, _x(), _x(1)))
    mapped = Attention(lambda m, x: _heads(m.project(x)), ALL)
    with torch.no_grad():
        for parameter in mapped.project.parameters():
            parameter.zero_()
    for heads in _captured(mapped, _x(), _x(1)):
        assert heads.values_from is not None
        assert torch.equal(heads.values_from.x, heads.keys_from.x)


@pytest.mark.parametrize("case", NO_MAP)
def test_cached_columns_are_checked_on_every_call(case: str) -> None:
    """Columns that match on the first batch are checked again on the second."""

    def lay(model: Attention, x: Tensor) -> Tensor:
        model.times = getattr(model, "times", 0) + 1
        return _heads(model.project(x)) if model.times == 1 else NO_MAP[case](model, x)

    first, second = _captured(Attention(lay, ALL), _x(), _x(1))
    # Writing into a weight also changes the captured weight of the first batch.
    assert first.values_from is not None
    assert second.values_from is None


def test_either_of_two_equal_maps_is_accepted() -> None:
    model = Attention(lambda m, x: _heads(m.project(x)), ALL)
    for other in model.others:
        other.load_state_dict(model.project.state_dict())
    with torch.no_grad():
        model.project.weight[3:6] = model.project.weight[9:12]
        model.project.bias[3:6] = model.project.bias[9:12]
    for heads in _captured(model, _x(), _x(1)):
        assert_found(heads)
        assert torch.equal(heads.values_from.weight.mT.flatten(0, 1), model.project.weight)


def test_columns_that_differ_on_few_tokens_are_distinguished() -> None:
    """Two outputs are equal on all tokens but one, which is neither long nor among those compared first."""

    def lay(model: Attention, x: Tensor) -> Tensor:
        return _heads(model.project(x)[..., 1:])

    model = Attention(lay, ALL + 1)
    with torch.no_grad():
        model.project.weight[0] = model.project.weight[1]
        model.project.bias[0] = model.project.bias[1]
        model.project.weight[0, 0] += 1
    x = _x()
    x[..., 0] = 0
    x[1, 2, 0] = 1e-3
    for heads in _captured(model, x):
        assert heads.values_from is None or identity_error(heads) <= tolerance(torch.float32)


def test_dead_features_and_empty_tokens() -> None:
    model = Attention(lambda m, x: _heads(m.project(x)), ALL)
    with torch.no_grad():
        model.project.weight[4:9] = 0
        model.project.bias.zero_()
    x = torch.zeros_like(_x())
    x[1, 2], x[2, 3] = _x()[0, :2]
    (heads,) = _captured(model, x)
    assert_found(heads)


def test_maps_are_found_in_generation_until_values_come_from_a_cache() -> None:
    model = FAMILIES["gpt2"].make()
    ids = FAMILIES["gpt2"].inputs()["input_ids"]
    with torch.no_grad(), capture(model) as captured:
        cache = model(ids, use_cache=True).past_key_values
        model(ids[:, :1], past_key_values=cache)
    assert [heads.values_from is not None for heads in captured.heads] == [True] * 3 + [False] * 3
    assert [heads.keys_from is not None for heads in captured.heads] == [True] * 3 + [False] * 3
    assert all(heads.queries_from is not None for heads in captured.heads)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "timm vit", "whisper"])
def test_maps_are_found_in_half_precision(name: str) -> None:
    model = FAMILIES[name].make().to(torch.bfloat16)
    inputs = {k: x.bfloat16() if x.is_floating_point() else x for k, x in FAMILIES[name].inputs().items()}
    with torch.no_grad(), capture(model) as captured:
        model(**inputs)
    for heads in captured.heads:
        for role in "v" if name == "llama" else ROLES:
            assert_found(heads, role, roundings=2 * machine_epsilon(torch.bfloat16))


def test_maps_are_found_under_autocast_in_inference_mode_and_in_training() -> None:
    family = FAMILIES["bert"]
    model, inputs = family.make(), family.inputs()
    with capture(model) as captured:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            model(**inputs)
        with torch.inference_mode():
            model(**inputs)
        model.train()(**inputs).last_hidden_state.sum().backward()
    assert captured.heads[0].v.dtype is torch.bfloat16
    assert len(captured.heads) == 3 * family.calls
    for heads in captured.heads:
        for role in ROLES:
            assert_found(heads, role, roundings=8 * machine_epsilon(heads.v.dtype))


def test_overwritten_tensors_are_detected_in_inference_mode_too() -> None:
    for case in ("scaled in place", "one entry scaled in place", "input written into"):
        with torch.inference_mode(), capture(model := Attention(NO_MAP[case], ALL)) as captured:
            for seed in range(5):
                model(_x(seed))
        assert all(heads.values_from is None for heads in captured.heads)


@pytest.mark.parametrize("raises", [False, True])
def test_torch_and_the_model_are_unchanged_afterwards(raises: bool) -> None:
    def lay(model: Attention, x: Tensor) -> Tensor:
        if raises:
            raise RuntimeError("broken on purpose")
        return _heads(model.project(x))

    model = Attention(lay, ALL)
    before = functional.linear, torch.addmm, [sorted(vars(part)) for part in model.modules()]
    try:
        with capture(model):
            assert (functional.linear, torch.addmm) == before[:2]
            model(_x())
    except RuntimeError:
        assert raises
    assert (functional.linear, torch.addmm, [sorted(vars(part)) for part in model.modules()]) == before


def test_a_swap_does_not_look_for_maps() -> None:
    linear = functional.linear
    seen = []

    def operator(heads: Heads) -> Tensor:
        seen.append((heads.queries_from, heads.keys_from, heads.values_from, functional.linear is linear))
        return heads.out

    model = Attention(COLUMNS["v alone"][0], ALL)
    with torch.no_grad(), replaced(model, operator):
        model(_x())
    assert seen == [(None, None, None, True)]


def _outputs_alive(model: nn.Module) -> Callable[[], int]:
    """Return the number of outputs of the model's linear layers that are still referenced, views included."""
    born: list[weakref.ref[torch.UntypedStorage]] = []
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(lambda _, __, output: born.append(weakref.ref(output.untyped_storage())))

    def alive() -> int:
        gc.collect()
        return sum(output() is not None for output in born)

    return alive


def test_no_tensor_is_held_after_a_pass() -> None:
    model = nn.Sequential(*(Attention(COLUMNS["v alone"][0], ALL) for _ in range(2)))
    model[0].after = nn.Linear(ALL, WIDTH)
    model[0].register_forward_hook(lambda layer, _, output: layer.after(output.transpose(1, 2).flatten(2)))
    tail = nn.Linear(FEATURES, 2)
    model.append(tail)
    alive = _outputs_alive(model)
    with torch.no_grad(), capture(model, keep=lambda heads: None):
        model(_x())
        assert alive() == 0
    kept: list[Heads] = []
    with torch.no_grad(), capture(model, keep=kept.append):
        model(_x())
        assert alive() > 0  # control: a reference is counted


def test_a_pass_with_many_maps_holds_only_the_last_ones() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.deep = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(29))
            self.last = Attention(COLUMNS["v alone"][0], ALL)
            self.after = nn.Linear(FEATURES, 2)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.deep:
                x = layer(x)
            kept.append(alive())
            out = self.after(self.last(x))
            kept.append(alive())
            return out

    kept: list[int] = []
    model = Deep()
    alive = _outputs_alive(model)
    with torch.no_grad(), capture(model, keep=assert_found):
        model(_x())
    assert 1 < kept[0] <= 9
    assert kept[1] == 2  # x and the output, which the model references
