"""The attention weights of swapped layers: every layer keeps its place, and its entry is what it attends with."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead import capture, register_huggingface, swap
from clearhead._swap import SwapWarning
from clearhead.numerics.precision import tolerance
from clearhead.operators.named import RPC, ClampedKeys, Scaled, Softmax, Symmetric
from clearhead.operators.requirements import instantiate
from tests.interfaces.zoo import _GPT2, _GROUPED, FAMILIES
from tests.noise import weight_tolerance
from tests.swap.operators import named, uniform

pytestmark = pytest.mark.filterwarnings("ignore::clearhead.SwapWarning")

NAMES = ("llama", "llama, padded left", "gpt2", "bert", "vit", "swin", "t5", "clip")
N, HEADS, WIDTH = 11, 3, 5
OPERATORS = [
    Softmax(), Symmetric(), ClampedKeys(strength=0.1), ClampedKeys(strength=0.1, queries="given"),
    RPC(iterations=1), RPC(iterations=3, strength=0.1), RPC(iterations=2, queries="given"),
    Scaled(), Scaled(form="asymmetric"), Scaled(form="matrix", num_tokens=N, num_heads=HEADS),
]  # fmt: skip
CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()
PADDING = (torch.arange(N) < torch.tensor([N, 7])[:, None])[:, None, None]
MASKS = {"none": None, "padding": PADDING, "causal": CAUSAL, "both": CAUSAL & PADDING, "window": CAUSAL.triu(-2)}


def _id(operator: Any) -> str:
    return operator if isinstance(operator, str) else named(operator)


def _eager(name: str) -> nn.Module:
    model = FAMILIES[name].make()
    model.set_attn_implementation("eager")
    return model


def _attentions(model: nn.Module, inputs: dict[str, Any]) -> dict[str, tuple[Tensor, ...]]:
    """Return every list of attention weights in the model's output, those of its parts too."""
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    parts = {"": output, **{part: output[part] for part in output if part.endswith("_model_output")}}
    return {
        f"{part} {key}".strip(): value
        for part, fields in parts.items()
        for key, value in fields.items()
        if "attentions" in key and value
    }


def _visible(weights: Tensor, inputs: dict[str, Any]) -> Tensor:
    """Return the rows of queries that have a visible key: those of eager attention without one are an average."""
    mask = inputs.get("attention_mask")
    if mask is None or mask.shape[-1] != weights.shape[-2] or len(mask) != len(weights):
        return weights
    return weights[mask.bool()[:, None, :].expand(weights.shape[:-1])]


@pytest.mark.parametrize("name", NAMES)
def test_softmax_swapped_in_gives_the_weights_of_the_eager_model(name: str) -> None:
    model, inputs = _eager(name), FAMILIES[name].inputs()
    plain = _attentions(model, inputs)
    close = weight_tolerance(
        model,
        lambda: torch.cat([_visible(w, inputs).flatten() for ws in _attentions(model, inputs).values() for w in ws]),
    )
    with swap(model, "softmax"):
        swapped = _attentions(model, inputs)
    assert swapped.keys() == plain.keys() != set()
    for key, expected in plain.items():
        assert len(swapped[key]) == len(expected)
        for ours, theirs in zip(swapped[key], expected, strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            assert float((_visible(ours, inputs) - _visible(theirs, inputs)).abs().max()) <= close


@pytest.mark.parametrize("operator", ["softmax", "symmetric", "clamped", "rpc", "scaled", uniform], ids=_id)
@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_entry_i_belongs_to_layer_i(name: str, layer: int, operator: Any) -> None:
    """Layers before the swapped one keep their entry to the bit; its own is recomputed in double precision."""
    model, inputs = _eager(name), FAMILIES[name].inputs()
    plain = _attentions(model, inputs)["attentions"]
    with swap(model, operator, layers=layer):
        with torch.no_grad():
            alone = model(**inputs)[0]
        with capture(model) as captured, torch.no_grad():
            output = model(**inputs, output_attentions=True)
    assert torch.equal(output[0], alone), "asking for weights changed the output"
    assert len(output.attentions) == len(plain) == 3
    for index in range(layer):
        assert torch.equal(output.attentions[index], plain[index])
    heads, weights = captured.heads[layer], output.attentions[layer]
    assert weights.shape == plain[layer].shape
    if operator is uniform:
        assert weights.isnan().all()
        assert weights.untyped_storage().nbytes() == weights.element_size(), "NaN takes the memory of a matrix"
    elif operator in ("softmax", "scaled"):  # S is zero at first
        exact = heads.to(torch.device("cpu")).attention_weights().double()
        assert (weights - exact).abs().max() < tolerance(torch.float32)
    if operator in ("softmax", "symmetric", "clamped", "rpc", "scaled"):
        close = tolerance(torch.float32) * float(heads.v.abs().max())
        assert (weights.double() @ heads.v.double() - heads.out).abs().max() < 8 * close


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_weights_average_the_values_to_the_output(operator: Any, mask: str) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, HEADS, N, WIDTH, dtype=torch.float64, generator=generator) for _ in range(3))
    attend: Any = instantiate(operator, nn.Linear(2, 2).double())
    for parameter in getattr(attend, "parameters", list)():
        nn.init.normal_(parameter, std=0.3)
    with torch.no_grad():
        out = attend(q, k, v, mask=MASKS[mask], scale=0.6)
        weights, values = attend.weights_and_values(q, k, v, mask=MASKS[mask], scale=0.6)
    torch.testing.assert_close(weights @ values, out, rtol=0, atol=tolerance(torch.float64) * float(v.abs().max()) * 8)
    if MASKS[mask] is not None:
        assert (weights[~MASKS[mask].expand_as(weights)] == 0).all()
    assert torch.allclose(weights.sum(dim=-1), torch.ones(()).double())


def _language_model(name: str) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    if name == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**_GPT2))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_GROUPED))
    model.set_attn_implementation("eager")
    return model.eval()


def _generated(model: nn.Module, **options: Any) -> Any:
    ids = torch.tensor([[5, 6, 7, 5, 6, 7, 5, 6]])
    return model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, min_new_tokens=6, do_sample=False,
        output_attentions=True, return_dict_in_generate=True, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("llama", "dynamic"),
        ("llama", "static"),
        ("llama", "none"),
        ("llama", "prompt lookup"),
        ("gpt2", "prompt lookup"),
    ],
)
@pytest.mark.parametrize("operator", ["softmax", "symmetric", "clamped", "rpc", "scaled", uniform], ids=_id)
def test_generation_returns_weights_of_every_layer_and_step(name: str, operator: Any, cache: str) -> None:
    """Each step's row is the last of the rows that a pass over the same tokens gives."""
    model = _language_model(name)
    options: dict[str, Any] = {
        "dynamic": {}, "static": {"cache_implementation": "static"}, "none": {"use_cache": False},
        "prompt lookup": {"prompt_lookup_num_tokens": 2},
    }[cache]  # fmt: skip
    with swap(model, operator, layers=[0, 2]):
        done = _generated(model, **options)
        with torch.no_grad():
            whole = model(input_ids=done.sequences[:, :-1], output_attentions=True).attentions
        close = weight_tolerance(
            model,
            lambda: (
                torch.stack(model(input_ids=done.sequences[:, :-1], output_attentions=True).attentions)
                .detach()
                .nan_to_num()
            ),
        )
    assert len(done.attentions) == 6
    for step, attentions in enumerate(done.attentions):
        assert len(attentions) == 3
        for ours, theirs in zip(attentions, whole, strict=True):
            row, seen = 7 + step, 8 + step
            last, expected = ours[:, :, -1], theirs[:, :, row]
            if theirs.isnan().all():
                assert last[..., :seen].isnan().all()
                continue
            assert torch.allclose(last[..., :seen], expected[..., :seen], rtol=0, atol=close)
            assert (last[..., seen:] == 0).all()


@pytest.mark.parametrize("operator", ["softmax", "symmetric", "clamped", "rpc", "scaled"])
def test_gradients_flow_through_the_weights_that_are_returned(operator: str) -> None:
    model, inputs = _eager("llama"), FAMILIES["llama"].inputs()
    with swap(model, operator, layers=[0, 2]):

        def gradients(*, ask: bool) -> tuple[list[Tensor], Any]:
            model.zero_grad()
            output = model(**inputs, output_attentions=ask)
            for weights in output.attentions or ():
                weights.retain_grad()
            output[0][inputs["attention_mask"].bool()].sin().sum().backward()
            return [p.grad.clone() for p in model.parameters() if p.grad is not None], output.attentions

        expected, none = gradients(ask=False)
        ours, attentions = gradients(ask=True)
        close = weight_tolerance(
            model, lambda: torch.cat([g.flatten() / g.abs().max().clamp_min(1e-9) for g in gradients(ask=False)[0]])
        )
    assert not none
    assert len(attentions) == 3
    assert all(weights.grad is not None and weights.grad.abs().max() > 0 for weights in attentions)
    assert len(ours) == len(expected)
    for a, b in zip(ours, expected, strict=True):
        assert float((a - b).abs().max() / b.abs().max().clamp_min(1e-9)) <= close


def test_without_eager_attention_there_are_no_weights_of_any_layer() -> None:
    """transformers' sdpa returns none, so an entry of the swapped layer alone would be at another layer's place."""
    model, inputs = FAMILIES["llama"].make(), FAMILIES["llama"].inputs()
    model.set_attn_implementation("sdpa")
    with swap(model, "softmax", layers=1), torch.no_grad():
        assert model(**inputs, output_attentions=True).attentions == ()


def test_registered_operators_return_weights() -> None:
    model, inputs = _eager("bert"), FAMILIES["bert"].inputs()
    plain = _attentions(model, inputs)["attentions"]
    register_huggingface()
    model.set_attn_implementation("clearhead-softmax")
    ours = _attentions(model, inputs)["attentions"]
    close = weight_tolerance(model, lambda: torch.stack(_attentions(model, inputs)["attentions"]))
    assert len(ours) == len(plain) == 3
    assert max(float((a - b).abs().max()) for a, b in zip(ours, plain, strict=True)) <= close
    with torch.no_grad():
        assert not model(**inputs).attentions


def test_weights_are_computed_only_if_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    own = Softmax.weights_and_values
    monkeypatch.setattr(
        Softmax, "weights_and_values", lambda *args, **kwargs: counted.append(1) or own(*args, **kwargs)
    )
    model, inputs = _eager("gpt2"), FAMILIES["gpt2"].inputs()
    with swap(model, "softmax", layers=[0, 1]), torch.no_grad():
        model(**inputs, output_hidden_states=True)
        assert counted == []
        model(**inputs, output_attentions=True)
        assert len(counted) == 2


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("batched", [True, False])
def test_torch_attention_returns_weights_in_its_own_layout(average: bool, batch_first: bool, batched: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(24, 4, batch_first=batch_first, add_bias_kv=True, add_zero_attn=True).eval()
    x, y = torch.randn(13, 7, 24), torch.randn(13, 7, 24) if batch_first else torch.randn(11, 7, 24)
    if not batched:
        x, y = x[0], y[1]
    module.requires_grad_(False)
    expected, weights = module(x, y, y, average_attn_weights=average)
    with swap(module, "softmax"):
        out, ours = module(x, y, y, average_attn_weights=average)
        nothing = module(x, y, y, need_weights=False)[1]
    assert nothing is None
    assert torch.allclose(out, expected, atol=tolerance(torch.float32) * float(expected.abs().max()))
    assert ours.shape == weights.shape
    assert torch.allclose(ours, weights, atol=tolerance(torch.float32))
    with pytest.warns(SwapWarning, match="attention weights"), swap(module, uniform):
        none = module(x, y, y, average_attn_weights=average)[1]
    assert none.shape == weights.shape
    assert none.isnan().all()
