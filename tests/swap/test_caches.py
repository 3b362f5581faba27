"""Generation with a cache equals generation without, for operators within one sequence, or raises an error."""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead import register_huggingface, swap
from clearhead._swap.operator import apply_operator
from clearhead.interfaces import Call
from clearhead.numerics.precision import tolerance
from clearhead.operators.named import RPC, ClampedKeys, Softmax, Symmetric
from clearhead.operators.requirements import requirements_of
from tests.interfaces.zoo import _GPT2, _GROUPED, _size
from tests.noise import rounding_tolerance, weight_tolerance
from tests.once import once
from tests.operators.paths import forced
from tests.swap.operators import TwoSteps, named, uniform

pytestmark = pytest.mark.filterwarnings("ignore::clearhead.SwapWarning")

OPERATORS = [
    Softmax(),
    uniform,
    Symmetric(),
    TwoSteps(queries="given"),
    RPC(),
    ClampedKeys(queries="given", strength=0.1),
    ClampedKeys(strength=0.1),
]
NEW = 5


def _model(name: str) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    made = {
        "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**_GPT2)),
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**_GROUPED)),
        "mistral": lambda: transformers.MistralForCausalLM(
            transformers.MistralConfig(**_size(num_key_value_heads=2, sliding_window=7))
        ),
    }
    return made[name]().eval()


def _prompt(*, padded: bool) -> dict[str, Tensor]:
    ids = torch.randint(5, 60, (3, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :3], mask[1, :1] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def _generated(model: nn.Module, prompt: dict[str, Tensor], **options: Any) -> tuple[Tensor, Tensor]:
    done = model.generate(
        **prompt, **options, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    return done.sequences, torch.stack(done.logits)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("operator", OPERATORS, ids=named)
@pytest.mark.parametrize("padded", [pytest.param(False, marks=once), True])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_generation_with_a_cache_is_generation_without(
    name: str, operator: Any, padded: bool, implementation: str
) -> None:
    model, prompt = _model(name), _prompt(padded=padded)
    model.set_attn_implementation(implementation)
    alone, _ = _generated(model, prompt)
    with swap(model, operator):
        tokens, logits = _generated(model, prompt, use_cache=False)
        close = weight_tolerance(model, lambda: _generated(model, prompt, use_cache=False)[1])
        for cache in ({}, {"cache_implementation": "static", "disable_compile": True}):
            cached_tokens, cached_logits = _generated(model, prompt, use_cache=True, **cache)
            assert torch.equal(tokens, cached_tokens)
            assert float((logits - cached_logits).abs().max()) <= close
    assert torch.equal(tokens, alone) == isinstance(operator, Softmax)
    assert torch.equal(_generated(model, prompt)[0], alone)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("operator", [Symmetric(), ClampedKeys(strength=0.1), TwoSteps(queries="given")], ids=named)
@pytest.mark.parametrize("padded", [False, True])
def test_a_prompt_in_chunks_is_the_prompt_in_one(name: str, operator: Any, padded: bool) -> None:
    import transformers

    model, prompt = _model(name), _prompt(padded=padded)
    ids, mask = prompt["input_ids"], prompt["attention_mask"]
    places = (mask.cumsum(dim=-1) - 1).clamp(min=0)
    with torch.no_grad(), swap(model, operator):

        def at_once() -> Tensor:
            return (
                mask[..., None] * model(input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False).logits
            )

        close = weight_tolerance(model, at_once)
        whole = at_once()
        cache = transformers.DynamicCache()
        chunks = [
            model(
                input_ids=ids[:, start:stop], attention_mask=mask[:, :stop], position_ids=places[:, start:stop],
                past_key_values=cache,
            ).logits
            for start, stop in ((0, 2), (2, 5), (5, 6), (6, 7))
        ]  # fmt: skip
    assert float((whole - torch.cat(chunks, dim=1) * mask[..., None]).abs().max()) <= close


def _call(**operands: Any) -> Call:
    return Call(name="layer", module=nn.Identity(), interface="", **operands)


def test_control_the_operator_depends_on_past_queries() -> None:
    """Control: with only the last token's keys, as for an operator that ignores caches, the second step differs."""
    q, k, v = torch.randn(3, 2, 5, 11, 7, generator=torch.Generator().manual_seed(2)).unbind()
    causal = torch.ones(11, 11, dtype=torch.bool).tril()

    def last(k: Tensor, v: Tensor) -> Tensor:
        return TwoSteps()(k, k, v, mask=causal)[..., -1:, :]

    whole = last(k, v)
    step = Call(
        name="layer", module=nn.Identity(), interface="", q=q[..., -1:, :], k=k, v=v, scale=7**-0.5, causal=True
    )
    answered = apply_operator(TwoSteps(), requirements_of(TwoSteps()), step)
    assert float((whole - answered).abs().max()) <= rounding_tolerance(last, k, v)
    smooth = v - 0.5 * Softmax()(k, k, v)
    assert float((whole - Softmax()(k[..., -1:, :], k, smooth)).abs().max()) > 1e-2


@pytest.mark.parametrize(
    ("operator", "computed"),
    [(Symmetric(), 2), (ClampedKeys(), 2), (ClampedKeys(queries="given"), 2), (RPC(iterations=1), 11), (RPC(), 11)],
    ids=lambda x: named(x) if not isinstance(x, int) else "",
)
def test_a_step_computes_only_the_last_rows_if_the_operator_can(
    operator: Any, computed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pursuits need the outputs of all tokens that a token sees, so they compute all rows in every step."""
    softmax, rows = importlib.import_module("clearhead.operators.softmax"), []
    attend = softmax.fused_attention

    def noted(q: Tensor, *operands: Any, **options: Any) -> Tensor:
        rows.append(q.shape[-2])
        return attend(q, *operands, **options)

    monkeypatch.setattr(softmax, "fused_attention", noted)
    q, k, v = torch.randn(3, 2, 5, 11, 7, generator=torch.Generator().manual_seed(2)).unbind()
    keys = torch.arange(11) != 4
    mask = torch.ones(11, 11, dtype=torch.bool).tril() & keys
    step = _call(q=q[..., -2:, :], k=k, v=v, scale=7**-0.5, causal=True, mask=mask[-2:])
    last = apply_operator(operator, requirements_of(operator), step)
    assert set(rows) == {computed}
    whole = operator(q, k, v, mask=mask, scale=7**-0.5)[..., -2:, :]
    assert float((whole - last).abs().max()) <= 16 * tolerance(torch.float32)
    other = operator(q, k, v, mask=keys, scale=7**-0.5)[..., -2:, :]
    assert float((other - last).abs().max()) > 1e-2


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("padded", [False, True])
def test_prompts_and_steps_of_a_swapped_model_run_on_the_causal_kernel(
    name: str, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pursuit, flags = importlib.import_module("clearhead.operators.pursuit"), []
    run = pursuit.pursuit_in_kernel

    def noted(*operands: Any) -> tuple[Tensor, ...]:
        flags.append(operands[-2])
        return run(*operands)

    monkeypatch.setattr(pursuit, "pursuit_in_kernel", noted)
    model, prompt = _model(name), _prompt(padded=padded)
    with forced("kernel"), torch.no_grad(), swap(model, RPC()) as swapped:
        _generated(model, prompt, use_cache=True)
    assert len(flags) == sum(swapped.calls.values()) == NEW * len(swapped.layers)
    assert all(flags)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_an_operator_that_needs_past_queries_raises_an_error(name: str) -> None:
    model, prompt = _model(name), _prompt(padded=True)
    with swap(model, TwoSteps(first="given")):
        without, _ = _generated(model, prompt, use_cache=False)
        assert without.shape[1] == 7 + NEW
        with pytest.raises(ValueError, match=r'use_cache=False.*queries="keys"'):
            _generated(model, prompt, use_cache=True)


def test_a_window_that_loses_keys_is_refused() -> None:
    model, prompt = _model("mistral"), _prompt(padded=False)
    with swap(model, TwoSteps()):
        assert _generated(model, prompt, use_cache=False)[0].shape[1] == 7 + NEW
        with pytest.raises(ValueError, match="sliding window of 7"):
            _generated(model, prompt, use_cache=True)
    with swap(model, "softmax"):
        assert torch.equal(_generated(model, prompt)[0], _generated(model, prompt, use_cache=False)[0])


def test_masks_that_are_not_causal_are_refused() -> None:
    q, k = torch.randn(1, 1, 2, 7), torch.randn(1, 1, 5, 7)
    window = torch.tensor([[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]], dtype=torch.bool)
    across = torch.ones(2, 5, dtype=torch.bool)
    for mask in (window, across):
        call = Call(
            name="layer",
            module=nn.Identity(),
            interface="",
            q=q,
            k=k,
            v=k,
            scale=1.0,
            mask=mask[None, None],
            causal=True,
        )
        with pytest.raises(ValueError, match="mask of 2 queries over 5 keys"):
            apply_operator(Symmetric(), requirements_of(Symmetric()), call)
    nowhere = Call(
        name="layer",
        module=nn.Identity(),
        interface="",
        q=q,
        k=k,
        v=k,
        scale=1.0,
        mask=torch.zeros(1, 1, 2, 5, dtype=torch.bool),
        causal=True,
    )
    assert not apply_operator(Symmetric(), requirements_of(Symmetric()), nowhere).any()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_registered_attention_names_generate_the_same_text(name: str) -> None:
    model, prompt = _model(name), _prompt(padded=True)
    register_huggingface()
    with swap(model, "symmetric"):
        expected, _ = _generated(model, prompt, use_cache=False)
    model.set_attn_implementation("clearhead-symmetric")
    for cached in (False, True):
        assert torch.equal(_generated(model, prompt, use_cache=cached)[0], expected)
