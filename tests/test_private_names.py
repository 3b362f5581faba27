"""Each private name that Clearhead relies on does what it is used for; a new version that changes one fails here."""

import subprocess
import sys

import torch

from clearhead import private_names
from clearhead.numerics.lapack import ARGUMENTS, LETTER, _signature, _types


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
