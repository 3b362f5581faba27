"""Steps of scaled attention with a cache: rows of earlier tokens are computed once, and never used if stale."""

import copy
import importlib
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead import swap
from clearhead._swap.operator import PastRows, apply_operator
from clearhead.interfaces import Call
from clearhead.numerics.precision import tolerance
from clearhead.operators import AlphaSymmetric, LearnedScaling, Scaled, scaled_attention
from clearhead.operators.requirements import CHILD_NAME, requirements_of
from tests.noise import weight_tolerance
from tests.swap.test_caches import NEW, _model, _prompt

HEADS, TOKENS = 5, 11
ALPHA = torch.tensor([0.7, -0.4, 1.3, 0.5])


@pytest.fixture(params=["gpt2", "llama"])
def model(request: pytest.FixtureRequest) -> Iterator[nn.Module]:
    """A model with scaled attention in all layers, in double precision, alpha far from zero."""
    model = _model(request.param).double()
    with swap(model, Scaled(num_heads=4, per_head=True)):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if f".{CHILD_NAME}." in name:
                    parameter.copy_(ALPHA)
        yield model


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of queries of each fused attention call."""
    softmax, counts = importlib.import_module("clearhead.operators.softmax"), []
    attend = softmax.fused_attention

    def noted(q: Tensor, *operands: Any, **options: Any) -> Tensor:
        counts.append(q.shape[-2])
        return attend(q, *operands, **options)

    monkeypatch.setattr(softmax, "fused_attention", noted)
    return counts


def _generate(model: nn.Module, prompt: dict[str, Tensor], **options: Any) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    done = model.generate(
        **prompt, max_new_tokens=NEW, min_new_tokens=NEW, return_dict_in_generate=True, output_logits=True, **options
    )
    return done.sequences, torch.stack(done.logits)


@pytest.mark.parametrize(
    ("padded", "options"),
    [
        (False, {}),
        (True, {}),
        (True, {"do_sample": True}),
        (True, {"num_beams": 3}),
        (True, {"cache_implementation": "static", "disable_compile": True}),
    ],
    ids=["greedy", "padded left", "sampling", "beam search", "static cache"],
)
def test_generation_with_a_cache_is_generation_without(model: nn.Module, padded: bool, options: dict[str, Any]) -> None:
    prompt = _prompt(padded=padded)
    without = {
        name: value for name, value in options.items() if name not in ("cache_implementation", "disable_compile")
    }

    def recomputed() -> Tensor:
        return _generate(model, prompt, use_cache=False, **without)[1]

    tokens, logits = _generate(model, prompt, use_cache=False, **without)
    cached_tokens, cached_logits = _generate(model, prompt, use_cache=True, **options)
    assert torch.equal(tokens, cached_tokens)
    assert float((logits - cached_logits).abs().max()) <= weight_tolerance(model, recomputed)


def test_generation_in_single_precision(model: nn.Module) -> None:
    model.float()
    prompt = _prompt(padded=True)
    tokens, logits = _generate(model, prompt, use_cache=False)
    close = weight_tolerance(model, lambda: _generate(model, prompt, use_cache=False)[1])
    cached_tokens, cached_logits = _generate(model, prompt, use_cache=True)
    assert torch.equal(tokens, cached_tokens)
    assert float((logits - cached_logits).abs().max()) <= close


def test_a_step_computes_the_rows_of_new_tokens_only(model: nn.Module, rows: list[int]) -> None:
    """Each layer attends twice: once for the prompt's rows, in the first step, and then for the new token alone."""
    prompt = _prompt(padded=True)
    layers = sum(name.endswith(f"{CHILD_NAME}.s") for name, _ in model.named_parameters())
    _generate(model, prompt, use_cache=True)
    length = prompt["input_ids"].shape[1]
    assert rows == [length] * 2 * layers + [length + 1, 1] * layers + [1] * 2 * layers * (NEW - 2)


def _alternating(model: nn.Module, *, crop: bool) -> tuple[Tensor, Tensor]:
    """Return the last logits of two sequences that take turns, with caches and without; the first is cropped once."""
    import transformers

    first, second = (torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(i)) for i in (4, 5))
    caches = transformers.DynamicCache(), transformers.DynamicCache()
    steps, whole = [], []
    with torch.no_grad():
        for stop in range(5, 10):
            for ids, cache in zip((first, second), caches, strict=True):
                start = cache.get_seq_length()
                steps.append(model(input_ids=ids[:, start:stop], past_key_values=cache).logits[:, -1])
                whole.append(model(input_ids=ids[:, :stop], use_cache=False).logits[:, -1])
            if crop and stop == 7:
                caches[0].crop(-4)
                first[:, 3] += 1
    return torch.stack(steps), torch.stack(whole)


@pytest.mark.parametrize("crop", [False, True])
def test_sequences_that_take_turns_and_a_cropped_one(model: nn.Module, crop: bool) -> None:
    steps, whole = _alternating(model, crop=crop)
    assert float((steps - whole).abs().max()) <= weight_tolerance(model, lambda: _alternating(model, crop=crop)[1])


def test_control_stale_rows_are_noticed(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: if the rows of an earlier step were used without comparing keys and values, the results would differ."""

    def unchecked(stored: Any, k: Tensor, v: Tensor, keys: Tensor, scale: float | None) -> int:
        return min(stored.k.shape[-2], k.shape[-2]) if stored.k.shape[:-2] == k.shape[:-2] else 0

    prompt = _prompt(padded=True)
    expected = _generate(model, prompt, use_cache=False, num_beams=3)
    monkeypatch.setattr("clearhead._swap.operator._Stored.equal_length", unchecked)
    steps, whole = _alternating(model, crop=False)
    assert float((steps - whole).abs().max()) > 1e-3
    beams = _generate(model, prompt, use_cache=True, num_beams=3)
    assert not torch.equal(beams[0], expected[0]) or float((beams[1] - expected[1]).abs().max()) > 1e-3


def _operands(seed: int = 2) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 2, HEADS, TOKENS, 7, generator=generator, dtype=torch.float64).unbind()


def _operator() -> LearnedScaling:
    operator = Scaled(num_heads=HEADS, per_head=True).build().double()
    with torch.no_grad():
        operator.s.copy_(torch.linspace(-0.7, 1.5, HEADS))
    return operator


def _step(q: Tensor, k: Tensor, v: Tensor, stop: int, *, keys: Tensor | None = None, scale: float = 0.3) -> Call:
    """Return the call of the token before `stop`, with the tokens up to it in the cache."""
    mask = None if keys is None else keys[..., None, :stop]
    return Call(
        name="layer", module=nn.Identity(), interface="", causal=True, scale=scale,
        q=q[..., stop - 1 : stop, :], k=k[..., :stop, :], v=v[..., :stop, :], mask=mask,
    )  # fmt: skip


def _whole(operator: LearnedScaling, q: Tensor, k: Tensor, v: Tensor, stop: int, keys: Any, scale: float) -> Tensor:
    mask = torch.ones(stop, stop, dtype=torch.bool).tril()
    mask = mask if keys is None else mask & keys[..., None, :stop]
    q, k, v = (x[..., :stop, :] for x in (q, k, v))
    return scaled_attention(q, k, v, s=AlphaSymmetric(operator.s), mask=mask, scale=scale)[..., -1:, :]


def _later(seed: int) -> dict[str, Any]:
    """Return operands of which nothing that came before holds, by what is different."""
    q, k, v = _operands()
    hidden = torch.ones(2, 1, TOKENS, dtype=torch.bool)
    hidden[1, :, 3] = False
    other_k, other_v = k.clone(), v.clone()
    other_k[1, 2, 4, 3] += 1
    other_v[0, 1, 2, 5] += 1
    return {
        "nothing": ((q, k, v), {}),
        "one key": ((q, other_k, v), {}),
        "one value": ((q, k, other_v), {}),
        "hidden key": ((q, k, v), {"keys": hidden}),
        "scale": ((q, k, v), {"scale": 0.4}),
        "order of the batch": ((q, k.flip(0), v.flip(0)), {}),
        "number of inputs": ((q[:1], k[:1], v[:1]), {}),
        "dtype": ((q.float(), k.float(), v.float()), {}),
        "other sequence": (_operands(seed), {}),
    }


@pytest.mark.parametrize("change", _later(7))
def test_a_step_after_a_change_computes_all_rows(change: str, rows: list[int]) -> None:
    operator, past, needs = _operator(), PastRows(), requirements_of(Scaled())
    with torch.no_grad():
        for stop in (8, 9):
            apply_operator(operator, needs, _step(*_operands(), stop), past)
        operands, options = _later(7)[change]
        operator.to(operands[0].dtype)
        rows.clear()
        last = apply_operator(operator, needs, _step(*operands, 10, **options), past)
        computed = list(rows)
        whole = _whole(operator, *operands, 10, options.get("keys"), options.get("scale", 0.3))
    assert computed == ([1, 1] if change == "nothing" else [10, 1])
    assert float((last - whole).abs().max()) <= 16 * tolerance(operands[0].dtype)


@pytest.mark.parametrize("which", [1, 2], ids=["keys", "values"])
def test_a_cache_that_is_overwritten_in_place_is_noticed(which: int) -> None:
    operator, past, needs = _operator(), PastRows(), requirements_of(Scaled())
    q, k, v = _operands()
    with torch.no_grad():
        apply_operator(operator, needs, _step(q, k, v, 9), past)
        (q, k, v)[which][0, 1, 2] += 1
        last = apply_operator(operator, needs, _step(q, k, v, 10), past)
        whole = _whole(operator, q, k, v, 10, None, 0.3)
    assert float((last - whole).abs().max()) <= 16 * tolerance(torch.float64)


def test_gradients_of_a_step_are_those_of_all_rows() -> None:
    operator, past, needs = _operator(), PastRows(), requirements_of(Scaled())
    with torch.no_grad():
        apply_operator(operator, needs, _step(*_operands(), 9), past)
    operands = [x.clone().requires_grad_() for x in _operands()]
    step = apply_operator(operator, needs, _step(*operands, 10), past)
    whole = _whole(operator, *operands, 10, None, 0.3)
    inputs = [*operands, operator.s]
    for ours, theirs in zip(
        torch.autograd.grad(step.sin().sum(), inputs), torch.autograd.grad(whole.sin().sum(), inputs), strict=True
    ):
        assert float((ours - theirs).abs().max()) <= 64 * tolerance(torch.float64)


def _stored(model: nn.Module) -> list[Any]:
    attachments = [module.__dict__.get("_clearhead_attention") for module in model.modules()]
    return [handler.past._stored for x in attachments if x is not None for handler in x.handlers]


def test_rows_are_dropped_on_undo_and_not_copied() -> None:
    model = _model("llama")
    applied = swap(model, Scaled())
    _generate(model, _prompt(padded=False), use_cache=True)
    assert _stored(model)
    assert all(stored is not None for stored in _stored(model))
    handlers = list(applied._handlers)
    assert _stored(copy.deepcopy(model)) == [None] * len(handlers)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert _stored(torch.load(file, weights_only=False)) == [None] * len(handlers)
    applied.undo()
    assert all(handler.past._stored is None for handler in handlers)


def test_a_matrix_is_resized_in_every_step_so_all_rows_are_computed() -> None:
    settings = Scaled(form="matrix", num_tokens=13, num_heads=HEADS, resize="line")
    operator, past, needs = settings.build().double(), PastRows(), requirements_of(settings)
    torch.nn.init.normal_(operator.s, generator=torch.Generator().manual_seed(1))
    q, k, v = _operands()
    causal = torch.ones(10, 10, dtype=torch.bool).tril()
    with torch.no_grad():
        apply_operator(operator, needs, _step(q, k, v, 9), past)
        last = apply_operator(operator, needs, _step(q, k, v, 10), past)
        whole = operator(q[..., :10, :], k[..., :10, :], v[..., :10, :], mask=causal, scale=0.3)[..., -1:, :]
    assert past._stored is None
    assert float((last - whole).abs().max()) <= 16 * tolerance(torch.float64)
