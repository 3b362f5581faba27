"""Captured tensors reproduce the model's attention, for every supported family."""

import pytest
import torch
from torch.nn import functional

from clearhead._capture import capture
from clearhead.audit.fidelity import check_fidelity, recompute_error
from clearhead.heads import Heads
from clearhead.numerics.precision import tolerance
from clearhead.operators.softmax import slow_softmax_attention
from tests.interfaces.zoo import EITHER_IMPLEMENTATION, FAMILIES, Family

CASES = [*((name, None) for name in FAMILIES), *((name, "eager") for name in EITHER_IMPLEMENTATION)]


def _captured(family: Family, implementation: str | None) -> list[Heads]:
    model, inputs = family.make(), family.inputs()
    if implementation:
        model.set_attn_implementation(implementation)
    with torch.no_grad(), capture(model) as captured:
        model(**inputs)
    return captured.heads


def _slow_error(heads: Heads, **changed: object) -> float:
    """Return the difference between the reference on captured tensors and the layer's output."""
    given = {
        "mask": heads.mask,
        "bias": heads.bias,
        "scale": heads.scale,
        "softcap": heads.softcap,
        "sinks": heads.sinks,
    } | changed
    difference = (slow_softmax_attention(heads.q, heads.k, heads.v, **given) - heads.out).abs()
    if heads.rows is not None:
        difference = torch.where(heads.rows, difference, 0)
    return float(difference.max() / heads.v.abs().max())


@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_recomputed_attention_equals_the_layers_output(name: str, implementation: str | None) -> None:
    family = FAMILIES[name]
    captured = _captured(family, implementation)
    assert len(captured) == family.calls
    assert [heads.layer for heads in captured] == list(range(family.calls))
    assert {heads.q.shape[1] for heads in captured} == set(family.heads)
    for heads in captured:
        allowed = 4 * tolerance(heads.q.dtype, terms=heads.k.shape[-2] + heads.q.shape[-1])
        assert _slow_error(heads) <= allowed
        assert recompute_error(heads) <= allowed


@pytest.mark.parametrize("name", FAMILIES)
def test_control_each_captured_field_affects_the_recomputed_output(name: str) -> None:
    """Control: the test above must fail if any captured field is left out."""
    parts = {"scale": 1.7, "mask": None, "bias": None, "softcap": None, "sinks": None}
    shown = dict.fromkeys(parts, False)
    present = dict.fromkeys(parts, False)
    for heads in _captured(FAMILIES[name], None):
        for part, other in parts.items():
            if getattr(heads, part) is not None:
                present[part] = True
                shown[part] |= _slow_error(heads, **{part: other}) > 1e-3
    assert shown == present
    assert present["mask"] == (FAMILIES[name].padded or name in ("whisper", "t5"))


def test_special_fields_are_captured_where_the_family_has_them() -> None:
    assert all(heads.softcap == 5.0 for heads in _captured(FAMILIES["gemma2"], None))
    assert all(heads.sinks is not None for heads in _captured(FAMILIES["gpt-oss"], None))
    assert all(heads.groups == 2 for heads in _captured(FAMILIES["llama"], None))
    assert any(heads.bias is not None for heads in _captured(FAMILIES["t5"], None))
    assert all(heads.scale == 1.0 for heads in _captured(FAMILIES["t5"], None))
    assert any(heads.q.shape[-2] != heads.k.shape[-2] for heads in _captured(FAMILIES["t5"], None))
    assert all(heads.bias is not None for heads in _captured(FAMILIES["mpnet"], None))
    swin = _captured(FAMILIES["swin"], None)
    assert [heads.windows for heads in swin] == [16, 16, 4, 4]


@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_the_models_output_is_bit_identical(name: str, implementation: str | None) -> None:
    model, inputs = FAMILIES[name].make(), FAMILIES[name].inputs()
    if implementation:
        model.set_attn_implementation(implementation)
    with torch.no_grad():
        fidelity = check_fidelity(model, lambda: model(**inputs))
    assert fidelity.output_difference == 0.0
    # The tolerance comes from the model; replacing its attention must change the output far more.
    assert fidelity.swap_error <= fidelity.tolerance < fidelity.control_change / 30


def test_unfused_timm_attention_is_captured() -> None:
    family = FAMILIES["timm vit"]
    model = family.make()
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    with torch.no_grad():
        fidelity = check_fidelity(model, lambda: model(**family.inputs()))
    assert {layer.interface for layer in fidelity.layers} == {"timm class"}
    assert len(fidelity.layers) == family.calls


def test_half_precision_models_are_captured() -> None:
    family = FAMILIES["bert"]
    model = family.make().to(torch.bfloat16)
    with torch.no_grad():
        fidelity = check_fidelity(model, lambda: model(**family.inputs()))
    assert fidelity.output_difference == 0.0
    assert fidelity.recompute_error <= tolerance(torch.bfloat16)


def test_generation_with_a_cache_is_unchanged_and_captured() -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=67, n_embd=24, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2, pad_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    prompt = torch.randint(5, 60, (2, 5))
    alone = model.generate(prompt, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    with capture(model) as captured:
        while_capturing = model.generate(prompt, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert torch.equal(alone, while_capturing)
    assert captured.passes == 4
    assert [(heads.layer, heads.q.shape[-2]) for heads in captured.heads] == [(0, 5), (1, 5), *[(0, 1), (1, 1)] * 3]
    assert max(recompute_error(heads) for heads in captured.heads) <= tolerance(torch.float32)


@pytest.mark.parametrize("name", ["bert", "mpnet", "timm vit", "diffusers dit"])
@pytest.mark.parametrize("raises", [False, True])
def test_the_model_is_unchanged_afterwards(name: str, raises: bool) -> None:
    import transformers.modeling_utils

    family = FAMILIES[name]
    model, inputs = family.make(), family.inputs()

    def trace() -> object:
        hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), sorted(m.__dict__)) for m in model.modules()]
        registry = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
        config = model.config.to_dict() if name == "bert" else None
        return hooks, sorted(vars(registry)), functional.scaled_dot_product_attention, config

    before = trace()
    last = list(model.modules())[-1]
    if raises:
        handle = last.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("broken on purpose")))
        with pytest.raises(RuntimeError, match="broken on purpose"), torch.no_grad(), capture(model):
            model(**inputs)
        handle.remove()
    else:
        with torch.no_grad(), capture(model):
            model(**inputs)
            assert trace() != before
    assert trace() == before
