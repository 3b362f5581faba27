"""Computations that do not fit into memory raise a one-line error with the bytes and the remedy; others run."""

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from clearhead import operators as ops
from clearhead._capture.gradients import capture_gradients
from clearhead.errors import ClearheadError, NotEnoughMemoryError
from clearhead.numerics import memory
from clearhead.numerics.memory import free_memory, run_within_memory
from tests.interfaces.zoo import FAMILIES

CPU = torch.device("cpu")
N, HEADS, WIDTH = 11, 2, 3


def _run(compute: Callable[[], object], needed: int = 0) -> object:
    return run_within_memory(compute, task="a test", remedy="use less", device=CPU, needed=needed)


def test_more_than_the_free_memory_is_refused_before_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 3 * 10**9)
    assert _run(lambda: "fits", needed=3 * 10**9) == "fits"
    words = r"^a test would run out of memory\. It needs at least 3\.1 GB of memory, and 3\.0 GB are free; use less$"
    with pytest.raises(NotEnoughMemoryError, match=words) as caught:
        _run(lambda: pytest.fail("it was computed"), needed=3_100_000_000)
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, ClearheadError)


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (
            lambda: torch.empty(2**50, dtype=torch.int8),
            r"It tried to allocate 1125899\.9 GB \(DefaultCPUAllocator: can.t allocate memory\); use less$",
        ),
        (lambda: [0] * 2**60, "ran out of memory. It tried to allocate more; use less$"),
    ],
    ids=["torch", "Python"],
)
def test_the_allocators_error_becomes_ours(compute: Callable[[], object], words: str) -> None:
    with pytest.raises(NotEnoughMemoryError, match=r"^a test ran out of memory") as caught:
        _run(compute)
    assert caught.match(words)
    assert "\n" not in str(caught.value)


def _cuda() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB.")


def _refused() -> None:
    _run(lambda: None, needed=2**62)


@pytest.mark.parametrize(
    ("compute", "kind"),
    [(_cuda, torch.OutOfMemoryError), (lambda: torch.empty(2**50), RuntimeError), (_refused, MemoryError)],
    ids=["CUDA", "CPU", "refused"],
)
def test_loops_that_try_smaller_batches_recognise_the_error(compute: Callable[[], object], kind: type) -> None:
    """accelerate's batch-size finder looks for a RuntimeError with one argument and the allocator's words."""
    from accelerate.utils.memory import find_executable_batch_size

    tried = []

    @find_executable_batch_size(starting_batch_size=8)
    def train(batch_size: int) -> int:
        tried.append(batch_size)
        if batch_size > 2:
            _run(compute)
        return batch_size

    assert train() == 2
    assert tried[0] == 8
    with pytest.raises(kind) as caught:
        _run(compute)
    assert isinstance(caught.value, NotEnoughMemoryError)
    assert "\n" not in str(caught.value)


def test_a_full_gpu_in_the_backward_pass_is_no_loss_that_cannot_be_differentiated() -> None:
    class Full(torch.autograd.Function):
        @staticmethod
        def forward(context: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(context: object, *gradients: Tensor) -> None:
            _cuda()

    model = FAMILIES["bert"].make()
    with capture_gradients(model) as captured, pytest.raises(torch.OutOfMemoryError):
        captured.differentiate(Full.apply(model(**FAMILIES["bert"].inputs())[0]).sum())


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match=r"size mismatch|must match"):
        _run(lambda: torch.zeros(2) + torch.zeros(3))


def test_the_limit_of_a_control_group_counts_and_its_file_cache_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:  8000 kB\nSwapFree: 1000 kB\n")
    (tmp_path / "memory.stat").write_text("anon 1000000\nfile 3000000\n")
    monkeypatch.setattr(memory, "_MEMINFO", meminfo)
    monkeypatch.setattr(memory, "_CGROUPS", ((tmp_path, "memory.max", "anon"), (tmp_path / "none", "x", "rss")))
    assert free_memory() == 9000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory() == 9000 * 1024
    (tmp_path / "memory.max").write_text("5000000\n")
    assert free_memory() == 4_000_000
    meminfo.unlink()
    assert free_memory() is None


CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()
WINDOW = CAUSAL.triu(-2)
"""Operators that recognise a causal mask store no matrix for it; of a sliding window they do."""
CALLS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], object], str, int]] = {
    "softcap": (lambda q, k, v: ops.softmax_attention(q, k, v, softcap=1.0), "fewer tokens or heads", 2 * HEADS * 4),
    "sinks": (lambda q, k, v: ops.softmax_attention(q, k, v, sinks=q[0, :, 0, 0]), "fewer tokens", 2 * HEADS * 4),
    "mask": (lambda q, k, v: ops.softmax_attention(q, k, v, mask=CAUSAL), r"a mask \(\.\.\., 1, m\)", 4),
    "dot product": (
        lambda q, k, v: ops.general_attention(q, k, v, similarity=ops.dot_product()), r"gaussian\(\)", 2 * HEADS * 4,
    ),
    "RPC": (lambda q, k, v: ops.rpc_attention(None, k, v, mask=WINDOW), 'KeyMu.scope="head"', 4),
    "clamped keys": (lambda q, k, v: ops.clamped_key_attention(q, k, v, mask=WINDOW), 'KeyMu.scope="head"', 4),
    "trace": (lambda q, k, v: ops.trace_pursuit(None, k, v), "rpc_attention, which stores none", 2 * HEADS * 4),
    "S": (
        lambda q, k, v: ops.scaled_attention(q, k, v, s=ops.SMatrix(torch.eye(N)), mask=CAUSAL), "fewer inputs", 4,
    ),
    "spectrum": (lambda q, k, v: ops.kernel_pca_spectrum(k), "kernel_pca with a number of axes", 2 * HEADS * 8),
    "kernel PCA": (lambda q, k, v: ops.kernel_pca(k, axes=2), 'solver="matrix_free"', 2 * 8),
    "causal kernel PCA": (
        lambda q, k, v: ops.kernel_pca_attention(q, k, axes=2, mask=CAUSAL), r"a mask \(\.\.\., 1, m\)", 2 * HEADS * 8,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_every_operator_that_stores_a_matrix_says_its_bytes_and_a_remedy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, remedy, bytes_by_score = CALLS[name]
    operands = torch.randn(3, 1, HEADS, N, WIDTH, generator=torch.Generator().manual_seed(5)).unbind()
    needed = bytes_by_score * N * N
    monkeypatch.setattr(memory, "SMALL", 0)
    monkeypatch.setattr(memory, "free_memory", lambda: needed - 1)
    with pytest.raises(NotEnoughMemoryError, match=rf"needs at least 0 MB of memory.*; .*{remedy}"):
        call(*operands)
    monkeypatch.setattr(memory, "free_memory", lambda: 10**6)
    call(*operands)


KEPT_AFTER_FREEING = """
import os, sys, torch
from clearhead.numerics import memory
from clearhead.numerics.memory import return_freed_memory


def used():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

count, returned = int(sys.argv[1]), sys.argv[2]
if returned == "yes":
    memory.SMALL_PROCESS = 0
before = used()
blocks = [torch.ones(2**16) for _ in range(count)]
del blocks[:-1]
if returned != "no":
    return_freed_memory()
print(used() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is glibc's")
def test_freed_memory_returns_to_the_system_if_it_is_much() -> None:
    """All but the last of blocks of 256 kB are freed: of 150 MB or, for the last pair, of 50 MB."""
    kept = {
        (blocks, returned): int(
            subprocess.check_output([sys.executable, "-c", KEPT_AFTER_FREEING, str(blocks), returned], text=True)
        )
        for blocks in (600, 200)
        for returned in ("yes", "no", "small")
    }
    assert kept[600, "yes"] < 20e6 < 140e6 < kept[600, "no"]
    assert kept[600, "small"] > 140e6, "a small process"
    assert min(kept[200, "yes"], kept[200, "no"]) > 40e6
