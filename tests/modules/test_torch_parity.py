"""MultiHeadAttention agrees with torch.nn.MultiheadAttention, forward and backward."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from clearhead.modules import MultiHeadAttention
from clearhead.modules.multi_head import convert_state_dict
from tests.modules.drawing import boolean, differ, normal, randomised, require_same

MASKS = ["none", "causal", "boolean", "per head", "additive", "additive per head"]


@st.composite
def layers(draw):
    """Draw a torch.nn.MultiheadAttention with random widths and parameters, with or without biases, kdim and vdim."""
    heads, width = draw(st.sampled_from([1, 2, 3, 5])), draw(st.sampled_from([1, 2, 3, 7]))
    layer = nn.MultiheadAttention(
        heads * width,
        heads,
        bias=draw(st.booleans()),
        kdim=draw(st.sampled_from([None, 11])),
        vdim=draw(st.sampled_from([None, 13])),
        batch_first=draw(st.booleans()),
    )
    return randomised(layer, seed=draw(st.integers(0, 1000)))


def masks_for_both(kind: str, padded: bool, shape: tuple[int, int, int, int], seed: int) -> tuple[dict, dict]:
    """Return the same masks for torch, True where hidden, and for Clearhead, True where visible."""
    b, h, n, m = shape
    theirs: dict[str, Tensor] = {}
    ours: dict[str, Tensor | bool] = {}
    if kind == "causal":
        theirs["attn_mask"] = ~torch.ones(n, m, dtype=torch.bool).tril(m - n)
        ours["causal"] = True
    elif kind == "boolean":
        ours["mask"] = boolean(n, m, seed=seed)
        theirs["attn_mask"] = ~ours["mask"]
    elif kind == "per head":
        ours["mask"] = boolean(b, h, n, m, seed=seed)
        theirs["attn_mask"] = ~ours["mask"].flatten(0, 1)
    elif kind == "additive":
        theirs["attn_mask"] = ours["attn_bias"] = normal(n, m, seed=seed)
    elif kind == "additive per head":
        ours["attn_bias"] = normal(b, h, n, m, seed=seed)
        theirs["attn_mask"] = ours["attn_bias"].flatten(0, 1)
    if padded:
        ours["key_mask"] = boolean(b, m, seed=seed + 1)
        hidden = ~ours["key_mask"]
        theirs["key_padding_mask"] = (
            torch.zeros(b, m, dtype=torch.float64).masked_fill(hidden, -torch.inf) if "additive" in kind else hidden
        )
    return theirs, ours


def run(attend, inputs: list[Tensor], parameters: dict[str, Tensor]) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    """Return the output, the gradients of the inputs, and those of the parameters by name."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = attend(*leaves)
    grads = torch.autograd.grad((out * normal(*out.shape, seed=7)).sum(), [*leaves, *parameters.values()])
    return out, list(grads[: len(leaves)]), dict(zip(parameters, grads[len(leaves) :], strict=True))


@settings(max_examples=100)
@given(
    layer=layers(),
    kind=st.sampled_from(MASKS),
    padded=st.booleans(),
    alone=st.booleans(),
    sizes=st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 5]), st.sampled_from([1, 3, 7])),
    seed=st.integers(0, 1000),
)
@example(layer=randomised(nn.MultiheadAttention(6, 3)), kind="none", padded=False, alone=True, sizes=(2, 5, 5), seed=0)
def test_outputs_and_gradients_agree_with_torch(layer, kind, padded, alone, sizes, seed) -> None:
    (b, n, m), p = sizes, layer.embed_dim
    alone = alone and layer.kdim == layer.vdim == p
    m = n if alone else max(n, m) if kind == "causal" else m
    inputs = [normal(b, n, p, seed=seed)]
    if not alone:
        inputs += [normal(b, m, layer.kdim, seed=seed + 1), normal(b, m, layer.vdim, seed=seed + 2)]
    theirs, ours = masks_for_both(kind, padded, (b, layer.num_heads, n, m), seed)
    made = MultiHeadAttention.from_torch(layer)

    def of_torch(*tokens: Tensor) -> Tensor:
        tokens = tokens * 3 if len(tokens) == 1 else tokens
        turned = tokens if layer.batch_first else [x.transpose(0, 1) for x in tokens]
        out = layer(*turned, need_weights=False, **theirs)[0]
        return out if layer.batch_first else out.transpose(0, 1)

    want, want_inputs, want_parameters = run(of_torch, inputs, dict(layer.named_parameters()))
    got, got_inputs, got_parameters = run(lambda *tokens: made(*tokens, **ours), inputs, dict(made.named_parameters()))
    require_same(got, want)
    want_parameters = convert_state_dict(want_parameters)
    assert got_parameters.keys() == want_parameters.keys()
    size = max([1.0, *(float(x.abs().max()) for x in [*want_inputs, *want_parameters.values()])])
    for x, y in zip(got_inputs, want_inputs, strict=True):
        require_same(x, y, what="gradient for an input", size=size)
    for name, x in got_parameters.items():
        require_same(x, want_parameters[name], what=f"gradient for {name}", size=size)


def test_outputs_agree_with_torchs_fused_path() -> None:
    layer = randomised(nn.MultiheadAttention(6, 3, batch_first=True)).eval()
    made, x = MultiHeadAttention.from_torch(layer), normal(2, 5, 6)
    with torch.no_grad():
        require_same(made(x), layer(x, x, x)[0])
    assert not made.training


def swapped_weights(state: dict[str, Tensor], one: int, other: int) -> dict[str, Tensor]:
    parts = list(state["in_proj_weight"].chunk(3))
    parts[one], parts[other] = parts[other], parts[one]
    return state | {"in_proj_weight": torch.cat(parts)}


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 2), (0, 2)])
def test_control_misread_state_dicts_give_other_outputs(one: int, other: int) -> None:
    layer, x = randomised(nn.MultiheadAttention(6, 3, batch_first=True)), normal(2, 5, 6)
    made = MultiHeadAttention(6, num_heads=3).double()
    made.load_torch_state_dict(layer.state_dict())
    mask = boolean(5, 5)
    want = layer(x, x, x, attn_mask=~mask)[0]
    require_same(made(x, mask=mask), want)
    assert differ(made(x, mask=~mask | torch.eye(5, dtype=torch.bool)), want)
    made.load_torch_state_dict(swapped_weights(layer.state_dict(), one, other))
    assert differ(made(x, mask=mask), want)


def test_the_parameters_are_copies_of_torchs_dtype() -> None:
    layer = nn.MultiheadAttention(6, 3, kdim=5, vdim=7, bias=False, dtype=torch.bfloat16)
    made = MultiHeadAttention.from_torch(layer)
    assert {x.dtype for x in made.parameters()} == {torch.bfloat16}
    assert {name for name, _ in made.named_parameters()} == {f"{x}.weight" for x in ("query", "key", "value", "out")}
    before = layer.out_proj.weight.clone()
    nn.init.zeros_(made.out.weight)
    assert torch.equal(layer.out_proj.weight, before)


def test_unsupported_torch_options_raise_an_error() -> None:
    for options, message in (
        ({"add_bias_kv": True}, "add_bias_kv, which appends a learned key and value, is not supported"),
        ({"add_zero_attn": True}, "add_zero_attn, which appends a key of zeros, is not supported"),
        ({"dropout": 0.1}, r"dropout in training mode is not supported \(got dropout 0.1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            MultiHeadAttention.from_torch(nn.MultiheadAttention(6, 3, **options))
    MultiHeadAttention.from_torch(nn.MultiheadAttention(6, 3, dropout=0.1).eval())


def state(**options) -> dict[str, Tensor]:
    return nn.MultiheadAttention(6, 3, **options).state_dict()


STATES = {
    "learned key": (lambda: state(add_bias_kv=True), "add_bias_kv.*got a state dict with in_proj_weight.*bias_k"),
    "nothing": (dict, r"with k_proj_weight, out_proj.weight, q_proj_weight, v_proj_weight.*got nothing"),
    "a linear layer": (lambda: nn.Linear(6, 6).state_dict(), "got weight, bias"),
    "no output map": (lambda: {"in_proj_weight": torch.zeros(18, 6)}, "with in_proj_weight, out_proj.weight"),
    "a stranger": (lambda: state() | {"gamma": torch.zeros(1)}, "got in_proj_weight.*gamma"),
    "no biases": (lambda: state(bias=False), r"expected parameters .*'query.bias'.*; got .*\(6, 6\)}"),
    "another kdim": (lambda: state(kdim=5), r"'key.weight': \(6, 6\).*; got .*'key.weight': \(6, 5\)"),
}


@pytest.mark.parametrize("case", STATES)
def test_a_state_dict_of_another_shape_raises_an_error(case: str) -> None:
    make, message = STATES[case]
    layer = MultiHeadAttention(6, num_heads=3)
    before = layer.query.weight.clone()
    with pytest.raises(ValueError, match=message):
        layer.load_torch_state_dict(make())
    assert torch.equal(layer.query.weight, before)


@pytest.mark.parametrize("options", [{"head_dim": [1, 2, 3]}, {"value_dim": 3}, {"num_kv_heads": 1}])
def test_modules_with_unequal_heads_refuse_torch_state_dicts(options: dict) -> None:
    with pytest.raises(ValueError, match=r"heads of one width, each with its own keys.*got head_dims="):
        MultiHeadAttention(6, num_heads=3, **options).load_torch_state_dict(state())
