"""Models on devices, offloaded, divided and compiled in parts are audited as plain ones, or refused."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn

from clearhead._capture import capture
from clearhead.audit.options import AuditOptions
from clearhead.audit.part import Pass
from clearhead.audit.passes import measure
from clearhead.audit.record import AuditRecord
from clearhead.audit.run import audit
from clearhead.audit.workers import OneProcess
from clearhead.heads import Heads
from clearhead.interfaces import AttentionNotSeenError
from clearhead.interfaces.placement import full_weights, input_device
from clearhead.theories.catalogue import find_theories
from tests.once import once

THEORIES = ("kernel-pca", "coding-rate", "attention-sinks")


def bert(seed: int = 0) -> transformers.BertModel:
    """Return two random layers of two heads."""
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=41, hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=7,
        initializer_range=0.5, max_position_embeddings=16,
    )  # fmt: skip
    return transformers.BertModel(config).eval()


def batches() -> list[dict[str, Tensor]]:
    """Return two batches of two inputs."""
    generator = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(1, 41, (2, 9), generator=generator)} for _ in range(2)]


def audited(model: nn.Module, **options: Any) -> AuditRecord:
    """Return the audit with a baseline of one model."""
    return audit(model, batches(), theories=THEORIES, baseline=bert(seed=3), **options)


@pytest.fixture(scope="module")
def plain() -> AuditRecord:
    """Return the audit of the model as it is."""
    return audited(bert())


def assert_same(record: AuditRecord, plain: AuditRecord) -> None:
    """Assert that the findings and the checksums of the weights are those of the model as it is."""
    assert repr(record.findings) == repr(plain.findings)
    assert record.manifest is not None
    assert plain.manifest is not None
    assert record.manifest.weights == plain.manifest.weights


@pytest.mark.parametrize("to_disk", [False, True])
def test_a_model_that_accelerate_offloads(to_disk: bool, plain: AuditRecord, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate, which offloads models, is not installed here")
    if to_disk:
        model = accelerate.disk_offload(bert(), tmp_path, execution_device="cpu")
    else:
        model = accelerate.cpu_offload(bert(), execution_device="cpu")
    assert all(parameter.is_meta for parameter in model.parameters())
    assert input_device(model) == torch.device("cpu")
    assert_same(audited(model), plain)


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """Make a group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@once
def test_a_model_that_fsdp_divides(plain: AuditRecord, process_group: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = bert(), init_device_mesh("cpu", (1,))
    for layer in model.encoder.layer:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    kept: list[Heads] = []
    with capture(model, keep=kept.append, residual_stream=True), torch.no_grad():
        model(**batches()[0])
    own = dict(full_weights(model))
    for number, heads in enumerate(kept):
        stream = heads.residual_stream
        assert heads.values_from and heads.output_weight is not None and stream and stream.norm  # noqa: PT018
        weights = {
            "self.value": heads.values_from.weight.transpose(1, 2),
            "output.dense": heads.output_weight.flatten(0, 1).mT,
            "output.LayerNorm": stream.norm.weight,
        }
        # First of all: the numbers of a storage that FSDP has freed cannot even be printed.
        freed = [name for name, weight in weights.items() if weight.untyped_storage().size() == 0]
        assert freed == []
        for name, weight in weights.items():
            expected = own[f"encoder.layer.{number}.attention.{name}.weight"]
            assert torch.equal(weight.reshape(expected.shape), expected)
    assert_same(audited(model), plain)


@once
def test_heads_that_are_divided_among_processes_are_refused() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        model, mesh = bert(), init_device_mesh("cpu", (2,))
        plan = {name: ColwiseParallel() for name in ("query", "key", "value")}
        parallelize_module(model.encoder.layer[0].attention.self, mesh, plan)
        message = r"encoder\.layer\.0\.attention\.self .*divided"
        with pytest.raises(AttentionNotSeenError, match=message), capture(model), torch.no_grad():
            model(**batches()[0])
    finally:
        dist.destroy_process_group()


@once
@pytest.mark.parametrize("part", ["layer", "attention"])
def test_compiled_parts_of_a_model_run_uncompiled(part: str, plain: AuditRecord) -> None:
    """Otherwise torch compiles the measuring code: a minute instead of a second."""
    from torch._dynamo.utils import counters

    counters.clear()
    model = bert()
    for layer in model.encoder.layer:
        (layer if part == "layer" else layer.attention.self).compile()
    assert_same(audited(model), plain)
    assert counters["frames"]["total"] == 0


class OnDevice(Tensor):
    """A tensor that counts how often it is moved, and cannot be read where it is, as on an accelerator."""

    moves: Counter[int]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.to, Tensor.cpu):
            cls.moves[id(args[0])] += 1
            return args[0].as_subclass(Tensor)
        if func in (Tensor.numpy, Tensor.item, Tensor.tolist, Tensor.__array__):
            raise AssertionError(f"{func.__name__} waits for the device")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_every_captured_tensor_is_moved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A theory that moves a captured tensor by itself would move it again."""
    OnDevice.moves = Counter()
    device_heads: list[Heads] = []
    move = Heads.to

    def counted(self: Heads, device: torch.device) -> Heads:
        if not device_heads:
            for name in ("q", "k", "v", "out"):
                object.__setattr__(self, name, getattr(self, name).as_subclass(OnDevice))
            device_heads.append(self)
        return move(self, device)

    monkeypatch.setattr(Heads, "to", counted)
    theories = find_theories()
    with torch.no_grad():
        measure(
            bert(), batches()[:1], Pass(theories=theories), OneProcess(theories), AuditOptions(), sizes=[],
            checked=[f"encoder.layer.{i}.attention.self" for i in range(2)],
        )  # fmt: skip
    assert [OnDevice.moves[id(getattr(device_heads[0], name))] for name in ("q", "k", "v", "out")] == [1, 1, 1, 1]
    assert len(OnDevice.moves) == 4


def test_a_tensor_that_several_fields_hold_is_moved_once() -> None:
    kept: list[Heads] = []
    model = bert()
    with capture(model, keep=kept.append, residual_stream=True), torch.no_grad():
        model(**batches()[0])
    heads = kept[0]
    assert heads.queries_from is not None
    moved = heads.to(torch.device("meta"))
    assert moved.queries_from is not None
    assert moved.keys_from is not None
    assert moved.residual_stream is not None
    assert moved.residual_stream.norm is not None
    assert moved.queries_from.x is moved.keys_from.x
    for tensor in (moved.q, moved.queries_from.weight, moved.residual_stream.before, moved.residual_stream.norm.weight):
        assert tensor.is_meta
    assert heads.to(torch.device("cpu")).q is heads.q
    assert moved.queries_from.weight is not moved.keys_from.weight


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_model_on_cuda(device: str, plain: AuditRecord) -> None:
    """Draws do not depend on the device, and values agree to the model's rounding."""
    record = audited(bert().cuda(), device=device)
    for finding, other in zip(record.findings, plain.findings, strict=True):
        assert (finding.layer, finding.head, finding.inputs) == (other.layer, other.head, other.inputs)
        assert finding.value == pytest.approx(other.value, rel=1e-3, abs=1e-3, nan_ok=True)
