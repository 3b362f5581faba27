"""Threads and processes: bit-identical results for the same number of threads, and no side effects."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from clearhead.kernels.calls import Schedule, attend, attend_backward, pursue, pursue_backward
from clearhead.kernels.library import Kernel
from clearhead.numerics.precision import tolerance
from tests.once import once

# Three heads on two threads: each thread takes one, and both share the third, which is long enough.
HEADS, TOKENS, WIDTH = 3, 307, 11
SCHEDULE = Schedule(iterations=3, pull=2.0, scale=0.3, visible=None)
SECONDS = 60.0


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def inputs(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    made = torch.randn(3, 1, HEADS, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))
    return made[0], made[1], made[2]


def all_four(compiled: Kernel, seed: int) -> list[np.ndarray]:
    """Return the results of the four calls on random inputs, as arrays, since torch's threads do not survive a fork."""
    k, v, gradient = inputs(seed)
    t = torch.full((1, HEADS, TOKENS), 0.7)
    attended = attend(compiled, k, v, visible=None, scale=0.3)
    pursued = pursue(compiled, k, v, t, SCHEDULE, for_gradient=True)
    made = [
        attended.out,
        *attend_backward(compiled, gradient, k, v, attended, visible=None, scale=0.3),
        pursued.out,
        *pursue_backward(compiled, gradient, k, v, t, SCHEDULE, pursued),
    ]
    return [x.numpy() for x in made]


def same_bits(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_results_are_bit_identical_for_the_same_number_of_threads(compiled: Kernel, number: int) -> None:
    with threads(number):
        first = all_four(compiled, 1)
        for _ in range(5):
            all_four(compiled, 2)  # other numbers use the same memory in between
            assert same_bits(all_four(compiled, 1), first)


def test_other_numbers_of_threads_differ_only_by_rounding(compiled: Kernel) -> None:
    alone = all_four(compiled, 1)
    with threads(2):
        together = all_four(compiled, 1)
    for x, y in zip(alone, together, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance(torch.float32, terms=TOKENS) * abs(x).max())
    if compiled.openmp:  # one head was shared by both threads
        assert not same_bits(alone, together)


@pytest.mark.parametrize("number", [1, 2])
def test_several_threads_can_call_the_kernel_at_once(compiled: Kernel, number: int) -> None:
    def called(seed: int) -> list[np.ndarray]:
        torch.set_num_threads(number)  # torch keeps it for each thread
        return all_four(compiled, seed)

    with threads(number):
        alone = [all_four(compiled, seed) for seed in range(5)]
        with ThreadPoolExecutor(4) as pool:
            together = [*pool.map(called, [*range(5)] * 6)]
    assert not same_bits(alone[0], alone[1])
    for at, made in enumerate(together):
        assert same_bits(made, alone[at % 5])


def in_a_fork(work: Callable[[], object], *, seconds: float = SECONDS) -> bool:
    """Return whether a fork finished the call in time. A fork that hangs is killed."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


@needs_fork
def test_a_fork_after_use_computes_on_one_thread(compiled: Kernel) -> None:
    alone = all_four(compiled, 1)
    with threads(2):
        before = all_four(compiled, 1)
        assert in_a_fork(lambda: same_bits(all_four(compiled, 1), alone))
        assert same_bits(all_four(compiled, 1), before)  # the parent still has its threads
    assert not in_a_fork(lambda: same_bits(all_four(compiled, 2), alone))


@needs_fork
def test_a_fork_of_a_fork_computes_on_one_thread(compiled: Kernel) -> None:
    alone = all_four(compiled, 1)
    with threads(2):
        all_four(compiled, 1)
        # The inner fork ends first, otherwise it would not be killed.
        assert in_a_fork(lambda: in_a_fork(lambda: same_bits(all_four(compiled, 1), alone), seconds=SECONDS / 2))


@once
@needs_fork
def test_a_fork_can_load_the_kernel_after_its_parent_used_threads() -> None:
    """Run in a new process, because the kernel is loaded in this one."""
    text = (
        "import torch; from clearhead.kernels import calls; from clearhead.kernels.library import kernel\n"
        "from tests.kernels.test_processes import all_four, in_a_fork\n"
        "torch.set_num_threads(2)\n"
        "torch.randn(257, 257, 7).exp().sum()\n"
        "assert in_a_fork(lambda: kernel() is None or all_four(kernel(), 1))\n"
        "print('done')"
    )
    assert in_a_process(text) == "done"


def in_a_process(text: str) -> str:
    command, root = [sys.executable, "-c", text], Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def small_products() -> int:
    """Count the nonzero entries among many denormal products, computed on all of torch's threads."""
    return int((torch.full((200_003,), 1e-38) * 1e-2).count_nonzero())


@pytest.mark.parametrize("number", [1, 2])
def test_loading_the_kernel_keeps_denormal_numbers(compiled: Kernel, number: int) -> None:
    with threads(number):
        assert small_products() == 200_003
        all_four(compiled, 1)
        assert small_products() == 200_003
        assert np.float32(1e-38) * np.float32(1e-2) > 0


def test_control_flushing_denormal_numbers_is_detected(compiled: Kernel) -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not lose them")
    try:
        all_four(compiled, 1)
        assert small_products() == 0  # an explicit setting stays
    finally:
        torch.set_flush_denormal(False)


@once
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells how much memory there is")
def test_running_out_of_memory_raises_memory_error(compiled: Kernel) -> None:
    text = f"""
import pathlib, resource, torch
from clearhead.kernels.calls import attend
from clearhead.kernels.library import kernel
k = torch.zeros(1, 1, 300_007, 1)
small = torch.ones(1, 1, {TOKENS}, 3)
attend(kernel(), small, small, visible=None, scale=1.0)
used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 24), resource.RLIM_INFINITY))
try:
    attend(kernel(), k, k, visible=None, scale=1.0)
except MemoryError as error:
    print(error)
assert attend(kernel(), small, small, visible=None, scale=1.0).out.isclose(small).all()
"""
    message = in_a_process(text)
    assert message.startswith("attention over 300007 tokens ran out of memory. ")
    assert message.endswith("; pass fewer tokens at once")
