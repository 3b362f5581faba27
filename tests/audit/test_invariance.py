"""Batch size, order and padding of the inputs, threads and dtype do not change what an audit finds.

Tolerances are measured: each statistic may change by ten times what noise in the last bit of the weights does to it
(`tests.noise`), in float32 for batches, order, padding and threads, in bfloat16 for the dtype. Where no statistic is
ill-conditioned it is half of the digits, as in a comparison. In another order every input gets other random draws. The
values of kernel PCA, the coding rate and attention sinks do not depend on draws, their controls do. Those of max margin
are of groups of inputs with drawn queries, and stay within their intervals. The kind of "no evidence" may change where
a head is at the limit of power, so kinds are not compared.
"""

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence

import pytest
import torch
import transformers
from torch import Tensor, nn

from clearhead.audit.findings import Verdict
from clearhead.audit.record import AuditRecord
from clearhead.audit.run import audit
from clearhead.numerics.precision import machine_epsilon, tolerance
from clearhead.theories.theory import Role
from tests.noise import MULTIPLE, noisy_weights, with_one_bit_noise
from tests.once import once

HEADS, WIDTH, VOCABULARY, FIRST = 3, 5, 67, 1
SINK, SATURATED = 0, 1
"""Heads of the audited layer: one attends to the first token, one has large scores."""
LAYER, INPUTS, GROUPED = 1, 8, 12
"""Number of inputs, and that for max margin, which needs two groups."""
NOISE_DRAWS = 2
THEORIES = ("kernel-pca", "coding-rate", "attention-sinks")

Batch = dict[str, Tensor]


def bert(seed: int = 0) -> transformers.BertModel:
    """Return two random layers."""
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=HEADS * WIDTH, num_hidden_layers=2, num_attention_heads=HEADS,
        intermediate_size=17, initializer_range=0.3, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.BertModel(config).eval()


def gpt2(seed: int = 0) -> transformers.GPT2Model:
    """Return two random causal layers."""
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=HEADS * WIDTH, n_layer=2, n_head=HEADS, n_positions=32, initializer_range=0.3,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return transformers.GPT2Model(config).eval()


def planted(inputs: Sequence[Tensor]) -> transformers.BertModel:
    """Return `bert` with a head that attends to the first token, and one with large scores."""
    model = bert()
    with torch.no_grad():
        first, *others = model(input_ids=inputs[0][None], output_hidden_states=True).hidden_states[LAYER][0]
        apart = first - torch.stack(others).mean(0)
        attention = model.encoder.layer[LAYER].attention.self
        sink, saturated = (slice(head * WIDTH, (head + 1) * WIDTH) for head in (SINK, SATURATED))
        along = torch.eye(WIDTH)[0]
        attention.query.weight[sink], attention.query.bias[sink] = 0, 30 * along
        attention.key.weight[sink] = torch.outer(along, apart / (apart @ first))
        attention.query.weight[saturated] *= 40
    return model


@pytest.fixture(scope="module")
def inputs() -> list[Tensor]:
    """Return sequences of different lengths that begin with the same token."""
    generator = torch.Generator().manual_seed(1)
    lengths = [11 + i % 6 for i in range(GROUPED)]
    return [
        torch.cat([torch.tensor([FIRST]), torch.randint(3, VOCABULARY, (length,), generator=generator)])
        for length in lengths
    ]


def batches(inputs: Sequence[Tensor], size: int = 7, *, left: bool = False) -> list[Batch]:
    """Pad at the right or at the left; a token keeps its position."""
    result = []
    for start in range(0, len(inputs), size):
        rows = inputs[start : start + size]
        longest = max(map(len, rows))
        batch = {name: torch.zeros(len(rows), longest, dtype=torch.long) for name in
                 ("input_ids", "attention_mask", "position_ids")}  # fmt: skip
        for index, row in enumerate(rows):
            place = slice(longest - len(row), longest) if left else slice(0, len(row))
            batch["input_ids"][index, place] = row
            batch["attention_mask"][index, place] = 1
            batch["position_ids"][index, place] = torch.arange(len(row))
        result.append(batch)
    return result


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def audited(model: nn.Module, data: Sequence[Batch], *, baseline: bool = True) -> AuditRecord:
    draws = [bert(seed) for seed in range(1, 6)] if baseline else None
    return audit(model, data, theories=THEORIES, layers=[LAYER], baseline=draws)


@pytest.fixture(scope="module")
def model(inputs: list[Tensor]) -> transformers.BertModel:
    return planted(inputs)


@pytest.fixture(scope="module")
def reference(model: transformers.BertModel, inputs: list[Tensor]) -> AuditRecord:
    return audited(model, batches(inputs[:INPUTS]))


Tolerances = dict[str, float]


def largest_changes(records: Sequence[AuditRecord], reference: AuditRecord) -> Tolerances:
    """Return the tolerance of each statistic: a multiple of its largest change in any head and record."""
    changes: Tolerances = {}
    for record in records:
        for ours, theirs in zip(reference.findings, record.findings, strict=True):
            if not math.isnan(ours.value):
                rounding = tolerance(torch.float32) * abs(ours.value)
                change = max(rounding, MULTIPLE * abs(theirs.value - ours.value))
                changes[ours.claim.statistic] = max(change, changes.get(ours.claim.statistic, 0.0))
    return changes


def half_of_the_digits(reference: AuditRecord) -> Tolerances:
    """Return the tolerance of each statistic for which a comparison of two audits calls them equal up to rounding."""
    largest: Tolerances = {}
    for finding in reference.findings:
        if not math.isnan(finding.value):
            statistic = finding.claim.statistic
            largest[statistic] = max(abs(finding.value), largest.get(statistic, 0.0))
    digits = machine_epsilon(torch.float32) ** 0.5
    return {statistic: max(digits * size, tolerance(torch.float32)) for statistic, size in largest.items()}


@pytest.fixture(scope="module")
def rounding(model: transformers.BertModel, inputs: list[Tensor], reference: AuditRecord) -> Tolerances:
    """Return the tolerances of float32."""
    records = []
    for seed in range(NOISE_DRAWS):
        with noisy_weights(model, seed=seed):
            records.append(audited(model, batches(inputs[:INPUTS]), baseline=False))
    return largest_changes(records, reference)


def verdicts(record: AuditRecord, roles: Sequence[Role]) -> dict[tuple[str, int], Verdict]:
    return {(f.claim.statistic, f.head): f.verdict for f in record.findings if f.claim.role in roles}


def assert_values(record: AuditRecord, reference: AuditRecord, allowed: Tolerances) -> None:
    """Values differ by at most the tolerance of their statistic."""
    for ours, theirs in zip(record.findings, reference.findings, strict=True):
        assert math.isnan(ours.value) is math.isnan(theirs.value), ours.claim.statistic
        if not math.isnan(ours.value):
            assert abs(ours.value - theirs.value) <= allowed[ours.claim.statistic], ours.claim.statistic


JUDGED = (Role.PRIMARY, Role.SECONDARY)


def test_the_planted_head_has_another_verdict(reference: AuditRecord) -> None:
    """The comparisons below have something to find."""
    found = verdicts(reference, [Role.PRIMARY])
    assert found["attention on the first token", SINK] is Verdict.SUPPORTED
    assert found["attention on the first token", 2] is Verdict.NO_EVIDENCE


@once
@pytest.mark.parametrize(("size", "left", "count"), [(1, False, 1), (32, True, 1), (7, False, 2)])
def test_batches_padding_and_threads_change_nothing(
    size: int, left: bool, count: int, model: nn.Module, inputs: list[Tensor], reference: AuditRecord,
    rounding: Tolerances,
) -> None:  # fmt: skip
    with threads(count):
        record = audited(model, batches(inputs[:INPUTS], size, left=left))
    assert verdicts(record, JUDGED) == verdicts(reference, JUDGED)
    assert_values(record, reference, rounding)


@once
def test_padding_that_is_read_is_found(
    model: nn.Module, inputs: list[Tensor], reference: AuditRecord, rounding: Tolerances
) -> None:
    """The control: the tolerances do not cover a real change."""
    read = [{**batch, "attention_mask": torch.ones_like(batch["input_ids"])} for batch in batches(inputs[:INPUTS])]
    record = audited(model, read, baseline=False)
    with pytest.raises(AssertionError):
        assert_values(record, reference, rounding)


@once
def test_the_order_of_inputs_changes_no_value(
    model: nn.Module, inputs: list[Tensor], reference: AuditRecord, rounding: Tolerances
) -> None:
    record = audited(model, batches(shuffled(inputs[:INPUTS])))
    assert verdicts(record, [Role.PRIMARY]) == verdicts(reference, [Role.PRIMARY])
    assert_values(record, reference, rounding)


def shuffled(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [inputs[i] for i in torch.randperm(len(inputs), generator=torch.Generator().manual_seed(2))]


@once
def test_bfloat16_changes_values_by_its_rounding(
    model: nn.Module, inputs: list[Tensor], reference: AuditRecord
) -> None:
    generator, data = torch.Generator().manual_seed(0), batches(inputs[:INPUTS])
    noisy = []
    for _ in range(NOISE_DRAWS):
        other = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.copy_(with_one_bit_noise(parameter.bfloat16(), generator))
        noisy.append(audited(other, data, baseline=False))
    record = audited(copy.deepcopy(model).bfloat16(), data)
    assert verdicts(record, [Role.PRIMARY]) == verdicts(reference, [Role.PRIMARY])
    assert_values(record, reference, largest_changes(noisy, reference))


@once
def test_groups_of_inputs_depend_on_the_order_only(model: nn.Module, inputs: list[Tensor]) -> None:
    """Max margin: batches and padding change nothing, and another order of the inputs gives other groups of them."""

    def measured(data: Sequence[Batch]) -> AuditRecord:
        return audit(model, data, theories=["max-margin"], layers=[LAYER])

    reference = measured(batches(inputs))
    padded, reordered = measured(batches(inputs, 5, left=True)), measured(batches(shuffled(inputs)))
    assert len(set(verdicts(reference, [Role.PRIMARY]).values())) > 1
    assert_values(padded, reference, half_of_the_digits(reference))
    assert verdicts(padded, JUDGED) == verdicts(reference, JUDGED)
    assert verdicts(reordered, [Role.PRIMARY]) == verdicts(reference, [Role.PRIMARY])
    ours, theirs = (
        next(f.interval for f in record.findings if f.claim.statistic == "margin ratio" and f.head == SATURATED)
        for record in (reordered, reference)
    )
    assert ours != theirs
    assert ours.low <= theirs.high
    assert theirs.low <= ours.high


@once
def test_padding_of_a_causal_model_changes_nothing(inputs: list[Tensor]) -> None:
    model, data = gpt2(), inputs[:INPUTS]

    def measured(data: Sequence[Batch]) -> AuditRecord:
        draws = [gpt2(seed) for seed in (1, 2, 3)]
        return audit(model, data, theories=["attention-sinks", "coding-rate"], layers=[LAYER], baseline=draws)

    reference, record = measured(batches(data)), measured(batches(data, left=True))
    assert verdicts(record, JUDGED) == verdicts(reference, JUDGED)
    assert_values(record, reference, half_of_the_digits(reference))
