"""Audits whose theories are measured in worker processes equal the plain audit, to the last bit."""

import copy
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from clearhead.audit import checkpoint as checkpoints
from clearhead.audit import workers as processes
from clearhead.audit.checkpoint import Checkpoint
from clearhead.audit.measuring import measure_part
from clearhead.audit.options import AuditOptions, Baseline
from clearhead.audit.part import Pass
from clearhead.audit.record import AuditRecord
from clearhead.audit.run import audit
from clearhead.audit.shards import audit_shard, merge_shards
from clearhead.audit.workers import MOST_WORKERS, WAITING_CALLS, Workers, usable_workers
from clearhead.errors import InputError, NotEnoughMemoryError
from clearhead.heads import Heads
from clearhead.report.json_file import audit_as_json
from clearhead.theories.accumulator import Accumulator
from clearhead.theories.catalogue import find_theories
from clearhead.theories.max_margin.on_heads import measurement as on_heads

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")

INPUTS, BATCH, LAYERS = 14, 3, 3
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """Return three random layers with large scores, so that the attention of some heads is saturated."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=41, hidden_size=10, num_hidden_layers=LAYERS, num_attention_heads=2, intermediate_size=7,
        initializer_range=3.0, max_position_embeddings=16,
    )  # fmt: skip
    return transformers.BertModel(config).eval()


def batches() -> list[dict[str, Tensor]]:
    """Return inputs of different lengths, padded."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 41, (INPUTS, 11), generator=generator)
    mask = (torch.arange(11) < torch.randint(7, 12, (INPUTS, 1), generator=generator)).long()
    return [{"input_ids": i, "attention_mask": m} for i, m in zip(ids.split(BATCH), mask.split(BATCH), strict=True)]


@pytest.fixture(scope="module")
def plain(model: nn.Module) -> AuditRecord:
    """Return the audit in one process, with baselines."""
    return audit(model, batches())


def numbers(record: AuditRecord) -> dict[str, Any]:
    """Return everything of a record but times, with all digits."""
    values = audit_as_json(record)
    for key in ("timing", "created"):
        values.pop(key)
    return {**values, "samples": [sample.values.tobytes() for sample in record.samples]}


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Fail if a process of the workers is left."""
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [2, 7])
def test_every_bit_equals_the_plain_audit(model: nn.Module, plain: AuditRecord, workers: int) -> None:
    record = audit(model, batches(), workers=workers)
    assert repr(numbers(record)) == repr(numbers(plain))
    assert {f.layer for f in record.findings} == set(range(LAYERS))
    assert record.timing.forward > 0
    assert all(seconds > 0 for seconds in record.timing.theory.values())


def test_theories_are_measured_in_other_processes(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above: without workers the same patch fails in this process."""
    here = os.getpid()
    original = Accumulator.collect

    def elsewhere(self: Accumulator, *args: Any, **options: Any) -> None:
        if os.getpid() == here:
            raise InputError("measured in the main process")
        original(self, *args, **options)

    monkeypatch.setattr(Accumulator, "collect", elsewhere)
    options: dict[str, Any] = {"theories": "attention-sinks", "baseline": None}
    assert audit(model, batches(), workers=2, **options).findings
    with pytest.raises(InputError, match="measured in the main process"):
        audit(model, batches(), workers=1, **options)
    with pytest.raises(InputError, match="measured in the main process"):  # one layer needs no process
        audit(model, batches(), workers=2, layers=[1], **options)


def test_the_model_leaves_half_of_the_threads_to_workers(model: nn.Module) -> None:
    """While theories are measured; the check before has all threads."""
    seen: list[int] = []
    hook = model.register_forward_pre_hook(lambda module, arguments: seen.append(torch.get_num_threads()))
    threads = torch.get_num_threads()
    torch.set_num_threads(6)
    try:
        for workers, expected in ((2, {3, 6}), (1, {6})):
            seen.clear()
            audit(model, batches(), workers=workers, theories="attention-sinks", baseline=None)
            assert set(seen) == expected
            assert seen[0] == torch.get_num_threads() == 6
    finally:
        torch.set_num_threads(threads)
        hook.remove()


def test_the_model_before_training_uses_all_threads(model: nn.Module) -> None:
    """Few theories are measured on it, so workers wait for it."""
    before, seen = copy.deepcopy(model), []
    before.register_forward_pre_hook(lambda module, arguments: seen.append(torch.get_num_threads()))
    threads = torch.get_num_threads()
    torch.set_num_threads(6)
    try:
        audit(model, batches(), workers=2, theories="attention-sinks", baseline=before)
    finally:
        torch.set_num_threads(threads)
    assert set(seen) == {6}


def test_what_predictions_were_made_of_stays_in_the_workers(model: nn.Module) -> None:
    """It may take more memory than everything else that an audit keeps."""

    def kept(workers: int) -> bool:
        options = AuditOptions(theories=("max-margin",), baseline=Baseline.NONE, workers=workers)
        part = measure_part(model, batches(), options, checkpoint=Checkpoint(None))
        return any(layer["kept"] for layer in part.passes[0].state()["layers"]["max-margin"])

    assert kept(workers=1)
    assert not kept(workers=2)


def test_workers_compute_predictions(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the main process need not wait for them at the end."""
    here = os.getpid()
    predict = on_heads.predict_head

    def elsewhere(*args: Any, **options: Any) -> Any:
        if os.getpid() == here:
            raise InputError("predicted in the main process")
        return predict(*args, **options)

    monkeypatch.setattr(on_heads, "predict_head", elsewhere)
    options: dict[str, Any] = {"theories": "max-margin", "baseline": None}
    record = audit(model, batches(), workers=2, **options)
    assert any(finding.deviation is not None for finding in record.findings)
    with pytest.raises(InputError, match="predicted in the main process"):
        audit(model, batches(), workers=1, **options)


@pytest.mark.parametrize("second", [1, 3])
def test_an_interrupted_audit_goes_on_with_another_number_of_workers(
    model: nn.Module, plain: AuditRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: int
) -> None:
    monkeypatch.setattr(checkpoints, "PAUSE", 0.0)
    monkeypatch.setattr(checkpoints, "SHARE", 1e9)
    file = tmp_path / "sums.safetensors"

    def interrupted(stop: str, after: int) -> Callable[[str, int], None]:
        def progress(phase: str, done: int) -> None:
            if phase == stop and done >= after:
                raise KeyboardInterrupt

        return progress

    for progress in (interrupted("measure", 7), interrupted("baseline", 6)):
        with pytest.raises(KeyboardInterrupt):
            audit(model, batches(), workers=2, checkpoint=file, progress=progress)
        assert file.exists()
    record = audit(model, batches(), workers=second, checkpoint=file)
    assert repr(numbers(record)) == repr(numbers(plain))
    assert not file.exists()


def test_gradients_reach_the_workers(model: nn.Module) -> None:
    def loss(output: Any, batch: Any) -> Tensor:
        value: Tensor = output.last_hidden_state.square().mean()
        return value

    options: dict[str, Any] = {"theories": "max-margin", "claims": "all", "loss": loss, "baseline": None}
    one, two = (audit(model, batches()[:2], workers=workers, **options) for workers in (1, 2))
    assert repr(numbers(one)) == repr(numbers(two))


def test_shards_with_workers_equal_shards_without(model: nn.Module, tmp_path: Path) -> None:
    options: dict[str, Any] = {"theories": ("max-margin", "coding-rate")}
    for workers in (1, 2):
        for number in (1, 2):
            audit_shard(
                model, batches(), shard=f"{number}/2", folder=tmp_path / str(workers), workers=workers, **options
            )
    one, two = (merge_shards(tmp_path / str(workers)) for workers in (1, 2))
    assert repr(numbers(one)) == repr(numbers(two))


class _OddError(Exception):
    """An exception that cannot be pickled and loaded again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (InputError("the head is odd; give another"), InputError, "the head is odd; give another"),
        (ZeroDivisionError("in a theory"), ZeroDivisionError, "in a theory"),
        (_OddError("a", "b"), RuntimeError, "_OddError: ab"),
    ],
)
def test_errors_of_theories_reach_the_caller(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], text: str
) -> None:
    def fail(self: Accumulator, by_input: Any, **options: Any) -> None:
        if self.layer == 1:
            raise error

    monkeypatch.setattr(Accumulator, "collect", fail)
    with pytest.raises(kind, match=text) as raised:
        audit(model, batches(), workers=2, baseline=None)
    notes = "".join(getattr(raised.value, "__notes__", []))
    assert ("in a worker process" in notes) == (kind is ZeroDivisionError)


def test_a_killed_worker_is_an_error_that_says_what_to_do(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(self: Accumulator, by_input: Any, **options: Any) -> None:
        if self.layer == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(Accumulator, "collect", die)
    with pytest.raises(NotEnoughMemoryError, match=r"-9.*--workers 1"):
        audit(model, batches(), workers=2, baseline=None)


@pytest.mark.parametrize(("most", "waiting"), [(0, 1), (1, 1), (2**30, WAITING_CALLS)])
def test_few_calls_wait_for_a_slow_worker(monkeypatch: pytest.MonkeyPatch, most: int, waiting: int) -> None:
    """One is measured and one waits, whatever its size; a few further ones if they take little memory."""
    monkeypatch.setattr(processes, "WAITING_BYTES", most)
    gate = multiprocessing.get_context("fork").Event()
    monkeypatch.setattr(Accumulator, "collect", lambda self, by_input, **options: gate.wait())
    [theory] = find_theories(["attention-sinks"])
    pass_ = Pass(theories=[theory])
    q = torch.rand(3, 2, 499, 31)
    heads = Heads(layer=0, name="attention", q=q, k=q, v=q, out=q, scale=0.5)
    with Workers(1, [theory]) as workers:
        workers.begin(pass_)
        for _ in range(1 + waiting):
            workers.feed(heads, inputs=3, ahead=0)
        further = threading.Thread(target=workers.feed, args=(heads,), kwargs={"inputs": 3, "ahead": 0})
        further.start()
        further.join(timeout=0.5)
        assert further.is_alive()
        gate.set()
        further.join(timeout=60)
        assert not further.is_alive()


def test_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    assert usable_workers(None, CPU) == min(threads, MOST_WORKERS)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert usable_workers(None, CPU) == MOST_WORKERS
    assert usable_workers(None, torch.device("cuda")) == 1
    assert usable_workers(5, CPU) == 5
    assert usable_workers(1, torch.device("cuda")) == 1
    with pytest.raises(InputError, match="not 0"):
        usable_workers(0, CPU)
    with pytest.raises(InputError, match="device cuda"):
        usable_workers(2, torch.device("cuda"))
    monkeypatch.setattr(sys, "platform", "darwin")
    assert usable_workers(None, CPU) == 1
    with pytest.raises(InputError, match="fork"):
        usable_workers(2, CPU)
