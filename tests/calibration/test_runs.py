"""A calibration counts what the audit says, continues where it stopped, and reports power and false positives."""

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from clearhead.audit.baseline import BASELINE_DRAWS
from clearhead.audit.findings import Verdict
from clearhead.audit.options import AuditOptions
from clearhead.calibration import runs
from clearhead.calibration.planted_model import PlantedModel, Shape
from clearhead.calibration.planting import PLANTS
from clearhead.calibration.random_models import FAMILIES, RandomModels, families, shape_of
from clearhead.calibration.results import Calibration, Count, PlantedCounts, RandomCounts
from clearhead.calibration.runs import CalibrationRequest, calibrate
from clearhead.cli.calibrate_command import planted_table
from clearhead.errors import InputError
from clearhead.stored_json import DamagedFileError, read_json, write_json
from clearhead.theories.theory import Claim, Role
from tests.audit.synthetic_findings import finding
from tests.once import once

SMALL = Shape(layers=2, heads=4, head_dim=3, width=13, tokens=11, inputs=12)
PUBLISHED = Claim(
    theory="t", statistic="as published", statement="", formula="", citation="", predicted=None, role=Role.PUBLISHED
)


def request(*theories: str, **options) -> CalibrationRequest:
    return CalibrationRequest(
        **{"options": AuditOptions(theories=theories), "repeats": 2, "models": 0, "shape": SMALL} | options
    )


@once
@pytest.mark.parametrize("key", [key for key in PLANTS if key != "max-margin"])
def test_full_strength_is_detected_and_zero_strength_is_not(key):
    shape = dataclasses.replace(SMALL, inputs=18)
    calibration = calibrate(request(key, shape=shape, strengths=(0.0, 1.0)), [])
    assert calibration.detected(key, 1.0) == Count(2, 2)
    assert calibration.detected(key, 0.0) == Count(0, 2)
    assert calibration.at(key, 1.0).other_heads == 6


@once
def test_max_margin_head_of_full_strength_is_supported_and_one_of_zero_strength_is_not_called(monkeypatch):
    """A group has six inputs, so its heads need more of them than those of other theories."""
    monkeypatch.setattr(runs, "VARIANTS", {})
    shape = dataclasses.replace(SMALL, inputs=36, head_dim=7, tokens=7)
    calibration = calibrate(request("max-margin", shape=shape, strengths=(0.0, 1.0)), [])
    assert calibration.at("max-margin", 1.0).count("margin ratio", (Verdict.SUPPORTED,)) == Count(2, 2)
    assert calibration.detected("max-margin", 0.0) == Count(0, 2)
    assert [calibration.at("max-margin", strength).other_called for strength in (0.0, 1.0)] == [0, 0]


def test_variants_are_planted_at_full_strength_and_have_rows_of_their_own(monkeypatch, tmp_path):
    strengths = []

    def plant(shape, strength, planted, generator):
        strengths.append(strength)
        return PLANTS["symmetry"](shape, strength / 2, planted, generator)

    monkeypatch.setattr(runs, "VARIANTS", {"symmetry": {"at half": plant}})
    path = tmp_path / "calibration.json"
    calibration = calibrate(request("symmetry", strengths=(0.0, 1.0)), [], path=path)
    assert strengths == [1.0]
    assert [(name, counts.heads) for name, counts in calibration.rows("symmetry")] == [
        ("0", 2), ("1", 2), ("1, at half", 2),
    ]  # fmt: skip
    assert Calibration.read(path) == calibration
    assert calibration.strengths("symmetry") == [0, 1]
    assert not calibrate(request("symmetry", strengths=(0.5,)), []).variants
    table = {field.title: field.cells for field in planted_table(calibration)}
    assert table["strength"] == ["0", "1", "1, at half"]


@pytest.fixture
def random_models() -> list[RandomModels]:
    """Planted models without planted heads, under two names."""

    def draw(seed: int) -> PlantedModel:
        return PLANTS["symmetry"](SMALL, 0.0, 0, torch.Generator().manual_seed(seed)).model

    def batches(seed: int):
        return PLANTS["symmetry"](SMALL, 0.0, 0, torch.Generator().manual_seed(seed)).batches

    return [RandomModels(name=name, draw=draw, batches=batches) for name in ("first", "second")]


def test_interrupted_calibration_continues_and_ends_with_the_same_counts(tmp_path, random_models):
    wanted = request("symmetry", strengths=(0.5, 1.0), repeats=4, models=3)
    complete = calibrate(wanted, random_models)
    path = tmp_path / "calibration.json"

    def interrupt(what: str, done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(wanted, random_models, path=path, progress=interrupt)
    partial = Calibration.read(path)
    assert partial != complete
    assert partial.at("symmetry", 0.5) == complete.at("symmetry", 0.5)
    steps = []
    continued = calibrate(wanted, random_models, path=path, progress=lambda what, done, total: steps.append(total))
    assert continued == complete == Calibration.read(path)
    assert max(steps) == 4
    assert [complete.random[family]["symmetry"].audited for family in ("first", "second")] == [2, 1]


def test_other_settings_are_refused_and_more_repeats_are_added(tmp_path):
    path = tmp_path / "calibration.json"
    wanted = request("symmetry", strengths=(1.0,))
    calibrate(wanted, [], path=path)
    more = calibrate(dataclasses.replace(wanted, repeats=3), [], path=path)
    assert more.detected("symmetry", 1.0) == Count(3, 3)
    for changed in (
        dataclasses.replace(wanted, options=wanted.options.changed({"seed": 1})),
        dataclasses.replace(wanted, model="another"),
        dataclasses.replace(wanted, shape=dataclasses.replace(SMALL, tokens=13)),
    ):
        with pytest.raises(InputError, match="choose another folder with --out"):
            calibrate(changed, [], path=path)
    dataclasses.replace(Calibration.read(path), version="0.0.1").write(path)
    with pytest.raises(InputError, match="with another seed, model or version"):
        calibrate(wanted, [], path=path)


def test_further_repeats_plant_other_heads(monkeypatch):
    models = []
    nothing = SimpleNamespace(findings=())
    monkeypatch.setattr(runs, "audit_with", lambda options, model, *_, **__: (models.append(model), nothing)[1])
    calibrate(request("symmetry", strengths=(0.5, 1.0), repeats=3), [])
    values = [model.layers[0].value.weight for model in models]
    assert len(values) == 4
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(values, 2))


def test_random_models_are_counted_by_family_with_their_own_seeds(random_models):
    seeds = []

    def recording(family: RandomModels) -> RandomModels:
        return dataclasses.replace(family, draw=lambda seed: (seeds.append(seed), family.draw(seed))[1])

    families = [recording(family) for family in random_models]
    calibration = calibrate(request("symmetry", "attention-sinks", strengths=(), models=3), families)
    assert len(seeds) == len(set(seeds)) == 3 * (1 + BASELINE_DRAWS)
    assert calibration.random["first"]["symmetry"].models == 2
    assert calibration.random_counts("symmetry").heads == 3 * 8


def test_statistics_as_published_are_kept_for_every_random_model(random_models, tmp_path):
    path = tmp_path / "calibration.json"
    wanted = request("attention-sinks", strengths=(), models=2)
    calibrate(wanted, random_models, path=path)
    calibration = calibrate(dataclasses.replace(wanted, models=3), random_models, path=path)
    assert [len(calibration.random[f]["attention-sinks"].published["sink rate"]) for f in ("first", "second")] == [2, 1]
    level = calibration.published("attention-sinks")["sink rate"]
    assert level.models == 3
    assert 0 <= level.low <= level.median <= level.high <= 1
    assert set(calibration.published("attention-sinks")) == {"sink rate"}, "claims that are judged have verdicts"
    assert calibration.published("symmetry") == {}


def test_level_of_random_models_is_the_median_over_heads_and_then_over_models():
    def model(*values: float) -> RandomCounts:
        counts = RandomCounts()
        counts.add([], [dataclasses.replace(finding(value=value), claim=PUBLISHED) for value in values])
        return counts

    first, second = model(1, 2, 9), model(4, 5, float("nan"), 6)
    third = model(8)
    first.merge(second)
    calibration = made({}, {"a": first, "b": third})
    level = calibration.published("t")["as published"]
    assert (level.median, level.models) == (5, 3)
    assert (level.low, level.high) == pytest.approx((2.3, 7.7))


def test_calibration_without_statistics_as_published_is_read(tmp_path):
    path = tmp_path / "calibration.json"
    made({"1": 20}, {"a": RandomCounts(audited=2, models=2, heads=8)}).write(path)
    content = read_json(path)
    del content["random"]["a"]["t"]["published"]
    write_json(path, content)
    assert Calibration.read(path).published("t") == {}


def test_theory_that_is_added_later_gets_the_same_random_models(tmp_path, random_models):
    wanted = request("symmetry", strengths=(), models=2)
    further = dataclasses.replace(wanted, options=AuditOptions(theories=("symmetry", "attention-sinks")))
    both = calibrate(further, random_models)
    path = tmp_path / "calibration.json"
    calibrate(wanted, random_models, path=path)
    # The theory of the first run is named again, and not measured again.
    added = calibrate(further, random_models, path=path)
    assert added == both


@once
def test_four_families_draw_other_weights_and_inputs_for_every_seed():
    drawn = families()
    assert tuple(family.name for family in drawn) == FAMILIES
    for family in drawn:
        one, other, again = (family.draw(seed) for seed in (1, 2, 1))
        states = [torch.cat([p.flatten() for p in model.parameters()]) for model in (one, other, again)]
        assert torch.equal(states[0], states[2])
        assert not torch.equal(states[0], states[1])
        first, second = ([next(iter(batch.values())) for batch in family.batches(seed)] for seed in (1, 2))
        assert sum(map(len, first)) == 18
        assert not torch.equal(first[0], second[0])
        with torch.no_grad():
            one(**family.batches(1)[0])


def counts(detected: int, heads: int = 20) -> PlantedCounts:
    verdicts = {"value": {"supported": detected, "no evidence": heads - detected}, "other": {"supported": heads}}
    return PlantedCounts(heads=heads, verdicts=verdicts)


def made(powers: dict[str, int], random: dict[str, RandomCounts] | None = None) -> Calibration:
    return Calibration(
        settings={},
        version="1",
        primary={"t": "value"},
        planted={"t": {strength: counts(detected) for strength, detected in powers.items()}},
        random={family: {"t": values} for family, values in (random or {}).items()},
    )


def test_sentence_has_power_and_false_positives_of_the_primary_claim():
    random = {
        "a": RandomCounts(models=150, called_models=1, heads=1200, called_heads=2),
        "b": RandomCounts(models=50, called_models=0, heads=400),
    }
    calibration = made({"0": 1, "0.5": 13, "1": 20}, random)
    assert calibration.sentence("t") == (
        "a head that follows the theory exactly is detected 20/20; half strength 13/20; random models flagged 1/200"
    )
    assert made({"1": 19}).sentence("t") == "a head that follows the theory exactly is detected 19/20"
    partly = made({"1": 19})
    partly.planted["t"]["1"].verdicts["value"] = {"supported": 4, "partly supported": 15, "no evidence": 1}
    assert partly.sentence("t") == "a head that follows the theory exactly is detected 19/20 (supported 4/20)"
    assert made({}, random).sentence("t") == "random models flagged 1/200"
    assert made({}).sentence("t") == ""


@pytest.mark.parametrize(
    ("powers", "smallest"),
    [
        ({"0": 0, "0.5": 16, "1": 20}, 0.5),
        ({"0": 0, "0.5": 15, "1": 20}, 1.0),
        ({"0": 0, "0.25": 20, "0.5": 3, "1": 20}, 1.0),  # not monotonic: no strength below 0.5 can be relied on
        ({"0": 20, "1": 20}, 1.0),
        ({"0": 0, "1": 3}, None),
        ({}, None),
    ],
)
def test_detectable_strength_is_the_smallest_from_which_on_power_is_high(powers, smallest):
    assert made(powers).detectable("t") == smallest


def test_random_counts_leave_out_heads_without_a_test():
    findings = [
        dataclasses.replace(finding(), verdict=verdict)
        for verdict in (Verdict.SUPPORTED, Verdict.NO_EVIDENCE, Verdict.NOT_APPLICABLE, Verdict.TRUE_BY_CONSTRUCTION)
    ]
    values = RandomCounts()
    values.add(findings)
    values.add(findings[2:])
    assert values == RandomCounts(audited=2, models=1, called_models=1, heads=2, called_heads=1)


@pytest.mark.parametrize("content", ['{"a": 1}', "{", ""])
def test_damaged_file_is_refused(tmp_path: Path, content):
    path = tmp_path / "calibration.json"
    path.write_text(content)
    with pytest.raises(DamagedFileError):
        Calibration.read(path)


def test_shape_of_a_model_has_its_sizes_and_the_length_of_its_inputs():
    planted = PLANTS["symmetry"](SMALL, 0.0, 0, torch.Generator())
    assert shape_of(planted.model, planted.batches) == SMALL
