"""Several captures, threads and copies at once: each records its own model's calls, without side effects."""

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clearhead import capture, swap
from clearhead._capture import capture_gradients
from clearhead.audit.fidelity import recomputed, replaced
from clearhead.heads import Heads
from clearhead.interfaces import AttentionSpec
from tests.capture.models import layers, loss_of, tokens
from tests.interfaces.zoo import FAMILIES
from tests.swap.models import IDENTITY, MODELS, run, same, trace

pytestmark = pytest.mark.filterwarnings(
    "ignore::clearhead.SwapWarning", "ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor is True"
)

INTERFACES = [*MODELS, "mpnet", "timm eva"]
"""At least one model of every interface."""


def _equal(ours: list[Heads], theirs: list[Heads]) -> bool:
    same_calls = [(call.layer, call.name) for call in ours] == [(call.layer, call.name) for call in theirs]
    return same_calls and all(
        torch.equal(getattr(a, part), getattr(b, part))
        for a, b in zip(ours, theirs, strict=True)
        for part in ("q", "k", "v", "out")
    )


@pytest.mark.parametrize("name", INTERFACES)
def test_a_capture_inside_a_capture_records_the_same(name: str) -> None:
    model, inputs = IDENTITY[name].make(), IDENTITY[name].inputs()
    alone, before = run(model, inputs), trace(model)
    with torch.no_grad(), capture(model) as outer:
        first = run(model, inputs)
        with capture(model) as inner:
            second = run(model, inputs)
        third = run(model, inputs)
    assert same(alone, first)
    assert same(alone, second)
    assert same(alone, third)
    calls = IDENTITY[name].calls
    assert (len(outer.heads), len(inner.heads)) == (3 * calls, calls)
    assert _equal(outer.heads[calls : 2 * calls], inner.heads)
    assert all(call.values_from is not None for call in (*inner.heads, *outer.heads))
    assert trace(model) == before


def test_a_capture_of_a_part_and_of_the_whole() -> None:
    model = layers(3)
    with torch.no_grad(), capture(model) as whole, capture(model[1]) as part:
        model(tokens())
    assert [call.name for call in whole.heads] == ["0", "1", "2"]
    assert [call.name for call in part.heads] == ["(model)"]
    assert torch.equal(part.heads[0].q, whole.heads[1].q)


@pytest.mark.parametrize("name", ["bert", "timm eva", "own vision transformer", "torch encoder"])
def test_nested_residual_streams_are_those_of_one_capture(name: str) -> None:
    model, inputs = IDENTITY[name].make(), IDENTITY[name].inputs()
    inputs.pop("src_key_padding_mask", None)
    with torch.no_grad():
        with capture(model, residual_stream=True) as single:
            model(**inputs)
        with capture(model, residual_stream=True) as outer, capture(model, residual_stream=True) as inner:
            model(**inputs)
    for ours in (outer, inner):
        for call, truth in zip(ours.heads, single.heads, strict=True):
            assert torch.equal(call.residual_stream.between, truth.residual_stream.between)
            assert torch.equal(call.residual_stream.after, truth.residual_stream.after)


def test_a_replacement_inside_a_capture_is_recorded_and_gradients_nest() -> None:
    model = layers(2)
    with torch.no_grad(), replaced(model, lambda heads: 2 * recomputed(heads)), capture(model) as captured:
        model(tokens())
    assert torch.allclose(captured.heads[0].out, 2 * recomputed(captured.heads[0]))
    with capture(model) as plain, capture_gradients(model) as captured:
        captured.differentiate(loss_of(model(tokens())))
    assert len(plain.heads) == len(captured.heads) == 2
    assert captured.heads[1].out_gradient is not None


def test_a_measurement_may_capture_another_model() -> None:
    model, other = layers(2), layers(3)
    counts: list[int] = []

    def look(_: Heads) -> None:
        with capture(other) as inner:
            other(tokens())
        functional.scaled_dot_product_attention(*[torch.randn(2, 3, 5, 7)] * 3)
        model(tokens())
        counts.append(len(inner.heads))

    with torch.no_grad(), capture(model) as outer, capture(model, keep=look):
        model(tokens())
    assert counts == [3, 3]
    assert len(outer.heads) == 2


def _together(*tasks: Callable[[], Any]) -> None:
    errors: list[BaseException] = []

    def work(task: Callable[[], Any]) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize("name", ["bert", "timm vit", "timm eva", "torch encoder", "own vision transformer", "mpnet"])
def test_two_threads_capture_two_models_at_the_same_time(name: str) -> None:
    # Created here, because transformers' lazy imports are not thread-safe.
    models = [IDENTITY[name].make() for _ in range(2)]
    inputs, calls = IDENTITY[name].inputs(), IDENTITY[name].calls
    with torch.no_grad(), capture(models[0]) as alone:
        run(models[0], inputs)
    barrier = threading.Barrier(2, timeout=60)
    recorded: list[list[Heads]] = [[], []]

    def work(number: int) -> None:
        with torch.no_grad(), capture(models[number], keep=recorded[number].append):
            barrier.wait()  # both captures are open
            for _ in range(3):
                run(models[number], inputs)
            barrier.wait()

    _together(lambda: work(0), lambda: work(1))
    for heads in recorded:
        assert len(heads) == 3 * calls
        assert _equal(heads[-calls:], alone.heads)


def _run_in_a_thread(model: nn.Module, inputs: dict[str, Any]) -> list[Tensor]:
    """Run the model in another thread. Its last bits may be others: torch's number of threads is that of a thread."""
    results: list[list[Tensor]] = []
    _together(lambda: results.append(run(model, inputs)))
    return results[0]


@pytest.mark.parametrize("name", ["bert", "timm eva", "torch encoder", "own vision transformer", "mpnet"])
def test_calls_that_another_thread_makes_on_the_same_model_are_not_recorded(name: str) -> None:
    model, inputs = IDENTITY[name].make(), IDENTITY[name].inputs()
    alone = _run_in_a_thread(model, inputs)
    with torch.no_grad(), capture(model) as captured:
        other = _run_in_a_thread(model, inputs)
        assert captured.heads == []
        assert captured.passes == 0
        run(model, inputs)
    assert len(captured.heads) == IDENTITY[name].calls
    assert same(other, alone)
    with torch.no_grad(), capture(model) as captured:
        _together(lambda: run(model, inputs))
    assert (captured.heads, captured.passes, captured.unseen) == ([], 0, ())


def test_calls_of_a_thread_with_the_number_of_the_captures_own_are_not_recorded() -> None:
    model = layers(2)
    opened = capture(model)
    number: list[int] = []
    captured: list[Any] = []

    def enter() -> None:
        captured.append(opened.__enter__())
        number.append(threading.get_ident())

    _together(enter)
    again: list[bool] = []

    def call() -> None:
        again.append(threading.get_ident() == number[0])
        with torch.no_grad():
            model(tokens())

    for _ in range(200):  # the system gives the number of a thread that has ended to a new one
        _together(call)
        if again[-1]:
            break
    opened.__exit__(None, None, None)
    assert any(again)
    assert (captured[0].heads, captured[0].passes) == ([], 0)


@pytest.mark.parametrize("padded", [False, True])
def test_a_thread_that_runs_the_model_while_a_call_is_recorded_stays_on_torchs_fused_path(padded: bool) -> None:
    from tests.swap.models import encoder_inputs

    model, inputs = MODELS["torch encoder"].make(), encoder_inputs(padded=padded)
    alone, elsewhere = run(model, inputs), _run_in_a_thread(model, inputs)
    fused = torch._transformer_encoder_layer_fwd
    threads: list[int] = []
    others: list[list[Tensor]] = []

    def count(*args: Any, **kwargs: Any) -> Tensor:
        threads.append(threading.get_ident())
        return fused(*args, **kwargs)

    def look(_: Heads) -> None:
        others.append(_run_in_a_thread(model, inputs))

    torch._transformer_encoder_layer_fwd = count
    try:
        with torch.no_grad(), capture(model, keep=look) as captured:
            mine = run(model, inputs)
    finally:
        torch._transformer_encoder_layer_fwd = fused
    assert captured.passes == 1
    assert len(captured.layers) == len(others) == 3
    assert sum(thread != threading.get_ident() for thread in threads) == 3 * 3
    assert same(mine, alone)
    assert all(same(output, elsewhere) for output in others)


@pytest.mark.parametrize("name", INTERFACES)
def test_a_swap_that_first_runs_inside_a_capture_leaves_nothing(name: str) -> None:
    model, inputs = IDENTITY[name].make(), IDENTITY[name].inputs()
    alone, before = run(model, inputs), trace(model)
    done = swap(model, "softmax")
    with torch.no_grad(), capture(model) as captured:
        run(model, inputs)
    assert len(captured.heads) == IDENTITY[name].calls
    done.undo()
    assert trace(model) == before
    assert same(run(model, inputs), alone)


def test_a_swap_undone_inside_a_capture_ends_at_once() -> None:
    model, inputs = MODELS["llama"].make(), MODELS["llama"].inputs()
    alone, before = run(model, inputs), trace(model)
    done = swap(model, "symmetric")
    with torch.no_grad(), capture(model) as captured:
        swapped = run(model, inputs)
        done.undo()
        assert same(run(model, inputs), alone)
    assert not same(swapped, alone)
    assert len(captured.heads) == 6
    assert trace(model) == before


SPEC = AttentionSpec(module="MPNetSelfAttention", q="q", k="k", v="v", out="o", heads="num_attention_heads")


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@pytest.mark.parametrize("name", INTERFACES)
def test_a_copy_made_inside_a_capture_computes_with_its_own_weights(name: str, how: str) -> None:
    model, inputs = IDENTITY[name].make(), IDENTITY[name].inputs()
    alone = run(model, inputs)
    with torch.no_grad(), capture(model) as captured:
        twin = copy.deepcopy(model) if how == "deepcopy" else pickle.loads(pickle.dumps(model))  # noqa: S301
        assert same(run(twin, inputs), alone)
        assert captured.heads == []
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5)
    assert same(run(model, inputs), alone)
    assert not same(run(twin, inputs), alone)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    changed = run(twin, inputs)
    assert not same(changed, run(model, inputs))
    with torch.no_grad(), capture(twin) as again:
        assert same(run(twin, inputs), changed)
    assert len(again.heads) == IDENTITY[name].calls
    with swap(twin, "softmax") as done:
        run(twin, inputs)
    assert sum(done.calls.values()) == IDENTITY[name].calls
    assert same(run(twin, inputs), changed)


def test_torch_and_transformers_stay_untouched_inside_a_capture() -> None:
    import transformers.modeling_utils

    family = FAMILIES["bert"]
    model = family.make()
    registry = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    names = (functional.scaled_dot_product_attention, functional.linear, torch.addmm)

    def state() -> tuple[Any, ...]:
        configs = {id(module): id(module.config) for module in model.modules() if hasattr(module, "config")}
        return sorted(vars(registry)), model.config.to_dict(), configs

    before = state()
    with torch.no_grad(), capture(model), swap(layers(1), "softmax"):
        assert (functional.scaled_dot_product_attention, functional.linear, torch.addmm) == names
        assert state() == before
        model(**family.inputs())


class Encoders(nn.Module):
    """torch's encoder, which uses nested tensors for padded inputs on its fused path, after a linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.map = MODELS["torch encoder"].make(), nn.Linear(24, 24)

    def forward(self, **inputs: Tensor) -> Tensor:
        inputs["src"] = self.map(inputs["src"])
        output: Tensor = self.map(self.encoder(**inputs))
        return output


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_torchs_fused_path_is_taken_inside_a_capture_too(padded: bool, stream: bool) -> None:
    from tests.swap.models import encoder_inputs

    model, inputs = Encoders().eval(), encoder_inputs(padded=padded)
    fused = torch._transformer_encoder_layer_fwd
    counts = {"alone": 0, "captured": 0}

    def counted(key: str) -> list[Tensor]:
        def count(*args: Any, **kwargs: Any) -> Tensor:
            counts[key] += 1
            return fused(*args, **kwargs)

        torch._transformer_encoder_layer_fwd = count
        try:
            return run(model, inputs)
        finally:
            torch._transformer_encoder_layer_fwd = fused

    alone = counted("alone")
    with torch.no_grad(), capture(model, residual_stream=stream) as captured:
        while_capturing = counted("captured")
    assert counts == {"alone": 3, "captured": 3}
    assert same(alone, while_capturing)
    assert [call.values_from is not None for call in captured.heads] == [True] * 3
