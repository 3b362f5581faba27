"""Messages between processes: tensors arrive with their numbers, strides, places and shared memory."""

import gc
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clearhead.audit.transfer import ALIGNMENT, Channel
from clearhead.heads import Heads, LinearMap

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory without a name is Linux's")


def channels() -> tuple[Channel, Channel]:
    """Return both ends of a connection."""
    ours, theirs = multiprocessing.Pipe()
    return Channel(ours), Channel(theirs)


def sent(value: Any) -> Any:
    """Return the value after it was sent."""
    ours, theirs = channels()
    ours.send(value)
    return theirs.receive()


def size_of(value: Any) -> int:
    """Return the bytes that are sent of the tensors."""
    ours, _theirs = channels()
    return ours.send(value)


def blocks() -> int:
    """Return the number of mapped blocks of memory, which both ends map."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:clearhead")


def strided() -> dict[str, Tensor]:
    """Return tensors of every kind that models make."""
    fused = torch.arange(2 * 5 * 18, dtype=torch.float32).reshape(2, 5, 18)
    return {
        "fused": fused[..., 6:12].unflatten(-1, (3, 2)).transpose(1, 2),
        "expanded": torch.rand(1, 1, 1, 7) .gt(0.5).expand(3, 2, 5, 7),
        "half": torch.rand(3, 5).to(torch.bfloat16)[:, 1:3],
        "double": torch.rand(7, dtype=torch.float64)[3:],
        "empty": torch.empty(0, 3),
        "number": torch.tensor(2.5),
        "long": torch.arange(11)[::2],
    }  # fmt: skip


@pytest.mark.parametrize("name", list(strided()))
def test_numbers_and_strides_arrive(name: str) -> None:
    tensor = strided()[name]
    got = sent([tensor])[0]
    assert (got.dtype, got.shape, got.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert torch.equal(got, tensor)


def test_places_within_a_block_arrive() -> None:
    """Products of vectors round by where the vectors begin."""
    whole = torch.arange(97, dtype=torch.float32)
    for start in (1, 3, 16, 53):
        got = sent(whole[start:])
        assert got.data_ptr() % ALIGNMENT == whole[start:].data_ptr() % ALIGNMENT
        assert torch.equal(got, whole[start:])


def test_tensors_that_share_memory_share_it_again_and_are_sent_once() -> None:
    fused = torch.rand(5, 30_000)
    q, k = fused[:, :10_000], fused[:, 5_000:25_000]
    assert size_of((q, k)) < fused.nbytes + 2_000
    got_q, got_k = sent((fused[:, :10], fused[:, 5:25]))
    got_q[2, 7] = -1.0
    assert got_k[2, 2] == -1.0


def test_only_what_is_used_of_a_large_memory_is_sent() -> None:
    """Weights may be views of one file in memory."""
    weights = torch.rand(10**6)
    assert size_of([weights[5:25], weights[-7:]]) < 2_000
    first, last = sent([weights[5:25], weights[-7:]])
    assert torch.equal(first, weights[5:25])
    assert torch.equal(last, weights[-7:])


def test_changes_after_sending_do_not_arrive() -> None:
    ours, theirs = channels()
    tensor = torch.zeros(3)
    ours.send(tensor)
    tensor += 1
    assert theirs.receive().tolist() == [0, 0, 0]


def test_memory_and_descriptors_last_as_long_as_tensors() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    mapped_before, before = blocks(), descriptors()
    got = [sent({"a": torch.ones(10_000), "b": torch.ones(3)}) for _ in range(3)]
    kept = [message["b"][1:] for message in got]
    assert blocks() == mapped_before + 3
    del got
    assert blocks() == mapped_before + 3
    assert all(x.tolist() == [1, 1] for x in kept)
    kept.clear()
    assert blocks() == mapped_before
    assert descriptors() == before


def test_memory_is_used_again_once_no_tensor_is_left_on_it() -> None:
    ours, theirs = channels()
    before, places = blocks(), set()
    for number in range(5):
        ours.send(torch.full((1_000 - number,), float(number)))
        got = theirs.receive()
        assert got.eq(number).all()
        places.add(got.data_ptr())
        del got
        theirs.send(None)
        ours.receive()
    assert len(places) == 1
    assert blocks() == before + 2  # one block, in the maps of both ends


def test_memory_with_a_tensor_on_it_is_not_used_again() -> None:
    ours, theirs = channels()
    kept = []
    for number in range(4):
        ours.send([torch.full((1_000,), float(number)), torch.zeros(7)])
        kept.append(theirs.receive()[0][10:20] if number % 2 else theirs.receive()[1][3])
        theirs.send(None)
        ours.receive()
    assert [float(x.max()) for x in kept] == [0, 1, 0, 3]
    kept.clear()
    for end, other in ((theirs, ours), (ours, theirs)):  # says that all are free, and uses one
        end.send(None)
        other.receive()
    before = blocks()
    ours.send(torch.ones(1_000))
    assert blocks() == before


def test_memory_is_free_only_when_the_other_process_says_so() -> None:
    """A second message before the answer to the first must not change the first."""
    ours, theirs = channels()
    ours.send(torch.zeros(1_000))
    ours.send(torch.ones(1_000))
    first, second = theirs.receive(), theirs.receive()
    assert first.eq(0).all()
    assert second.eq(1).all()


def test_memory_that_is_too_small_is_dropped() -> None:
    """The memory of a longer batch replaces that of shorter ones."""
    ours, theirs = channels()
    before = blocks()
    for size in (1_000, 2_000, 4_000):
        ours.send(torch.ones(size))
        assert theirs.receive().sum() == size
        theirs.send(None)
        ours.receive()
    assert blocks() == before + 2


def test_an_attention_call_arrives() -> None:
    x, weight = torch.rand(2, 5, 4, requires_grad=True), torch.rand(3, 4, 2)
    q = torch.rand(2, 3, 5, 2)
    heads = Heads(
        layer=1, name="attention", q=q, k=q, v=q, out=q, scale=0.5, values_from=LinearMap(x=x, weight=weight)
    )  # fmt: skip
    got = sent(heads)
    assert (got.layer, got.name, got.scale, got.mask) == (1, "attention", 0.5, None)
    assert got.q.data_ptr() == got.k.data_ptr()
    assert torch.equal(got.values_from.x, x)
    assert not got.values_from.x.requires_grad


def test_a_closed_pipe_is_the_end() -> None:
    ours, theirs = multiprocessing.Pipe()
    ours.close()
    with pytest.raises(EOFError):
        Channel(theirs).receive()
