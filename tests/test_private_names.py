"""Each private name that Clearhead relies on does what it is used for; a new version that changes one fails here."""

import pathlib
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from clearhead import private_names
from clearhead.numerics.lapack import ARGUMENTS, LETTER, _signature, _types


class _Mode(TorchFunctionMode):
    def __torch_function__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        return func(*args, **(kwargs or {}))


class _Dispatch(private_names.DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_transforms_of_torch_func_are_noticed() -> None:
    states = []

    def function(x: torch.Tensor) -> torch.Tensor:
        states.append(private_names.functorch_active())
        return x.square().sum()

    x = torch.ones(3)
    function(x)
    torch.vmap(function)(x)
    torch.func.grad(function)(x)
    assert states == [False, True, True]
    assert not private_names.functorch_active()


def test_batched_gradients_are_noticed() -> None:
    x = torch.ones(3, requires_grad=True)
    states = []
    y = x * 2
    y.register_hook(lambda gradient: states.append(private_names.is_batched_gradient(gradient)))
    torch.autograd.grad(y, x, torch.ones(3), retain_graph=True)
    torch.autograd.grad(y, x, torch.ones(4, 3), is_grads_batched=True)
    assert states == [False, True]


def test_forward_mode_is_noticed() -> None:
    assert not private_names.forward_mode_active()
    with torch.autograd.forward_ad.dual_level():
        assert private_names.forward_mode_active()
    assert not private_names.forward_mode_active()


def test_tracing_is_noticed() -> None:
    states = []

    def function(x: torch.Tensor) -> torch.Tensor:
        states.append(private_names.jit_tracing())
        return x + 1

    torch.jit.trace(function, torch.ones(2), check_trace=False)
    assert True in states
    assert not private_names.jit_tracing()


def test_a_marked_function_is_a_constant_to_the_compiler() -> None:
    calls = []

    def reads_a_file() -> bool:
        calls.append(1)
        return len(open("/dev/null").read()) == 0  # noqa: PTH123  what the compiler cannot trace

    private_names.mark_constant(reads_a_file)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1 if reads_a_file() else x, backend="eager", fullgraph=True)
    assert compiled(torch.zeros(2)).tolist() == [1, 1]
    before = len(calls)
    compiled(torch.zeros(2))
    assert len(calls) == before


def test_importing_clearhead_does_not_import_the_compiler() -> None:
    code = "import sys, clearhead.operators; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_scipys_lapack_has_the_routines_with_the_types_that_are_called() -> None:
    capsules = private_names.lapack_capsules()
    for kind in LETTER.values():
        for routine, types in ARGUMENTS.items():
            assert _types(_signature(capsules[kind + routine]), kind) == types


def test_a_compiled_model_keeps_its_model_under_the_name() -> None:
    model = nn.Linear(3, 3)
    assert getattr(torch.compile(model), private_names.COMPILED_MODEL) is model
    assert not hasattr(model, private_names.COMPILED_MODEL)


def test_transformers_collecting_attention_weights_is_noticed() -> None:
    import transformers

    config = transformers.BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, vocab_size=5)
    model = transformers.BertModel(config)
    noticed = []
    hook = model.encoder.layer[0].register_forward_hook(
        lambda *_: noticed.append(private_names.hf_collects_attentions())
    )
    for options in ({}, {"output_attentions": True}, {"output_hidden_states": True}):
        model(torch.ones(1, 3, dtype=torch.long), **options)
    hook.remove()
    assert noticed == [False, True, False]
    assert not private_names.hf_collects_attentions()


def test_a_config_of_transformers_has_its_implementation_under_the_name() -> None:
    import transformers

    model = transformers.BertModel(transformers.BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1))
    for name in ("eager", "sdpa"):
        model.set_attn_implementation(name)
        assert getattr(model.config, private_names.HF_IMPLEMENTATION) == name


def test_function_modes_are_listed_outermost_first() -> None:
    assert private_names.current_function_mode() is None
    with _Mode() as outer, _Mode() as inner:
        assert private_names.current_function_mode() is inner
        assert private_names.function_modes() == [outer, inner]
    assert private_names.function_modes() == []


def test_dispatch_modes_see_operations_and_can_be_popped() -> None:
    with _Dispatch() as mode:
        assert private_names.current_dispatch_mode() is mode
        torch.ones(2) + 1
        with private_names.pop_dispatch_mode():
            assert private_names.current_dispatch_mode() is None
            torch.ones(2) * 2
    assert any("add" in name for name in mode.names)
    assert not any("mul" in name for name in mode.names)


def test_storages_are_identified_and_weakly_referenced() -> None:
    x = torch.ones(4, 3)
    assert private_names.storage_address(x[1:]) == private_names.storage_address(x.T)
    assert private_names.storage_address(x) != private_names.storage_address(x.clone())
    reference = private_names.StorageWeakRef(x.untyped_storage())
    assert not reference.expired()
    del x
    assert reference.expired()


def test_writes_in_place_are_counted() -> None:
    x = torch.ones(3)
    before = private_names.tensor_version(x)
    x.add_(1)
    assert private_names.tensor_version(x) == before + 1
    with torch.inference_mode():
        made = torch.ones(3)
    with pytest.raises(RuntimeError):
        private_names.tensor_version(made)


def test_private_names_are_used_in_one_file_only() -> None:
    root = pathlib.Path(private_names.__file__).parent
    names = ("_get_current_function_mode", "_python_dispatch", "._cdata", "._version", "torch._C.", "_current_level")
    using = {
        (path.name, name)
        for path in root.rglob("*.py")
        for name in names
        if path.name != "private_names.py" and name in path.read_text()
    }
    assert using == set()
