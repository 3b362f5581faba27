"""The evaluation under attacks: its numbers, sanity lines on planted models, resuming, and what it refuses."""

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead_lab
from clearhead.errors import InputError
from clearhead.numerics.moments import wilson_interval
from clearhead.operators.named import RPC, Symmetric
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from clearhead_lab.robustness import evaluation
from clearhead_lab.robustness.attacks import fgsm
from clearhead_lab.robustness.classifier import PixelClassifier
from clearhead_lab.robustness.evaluation import attack
from clearhead_lab.robustness.record import Robustness
from clearhead_lab.robustness.results import AttackResult
from clearhead_lab.robustness.suites import ATTACKS, SUITES, Attack, select_attacks
from tests.once import once

EPS = 0.1


class Changed(nn.Module):
    """A model after a change of its pixels and its scores."""

    def __init__(self, model: nn.Module, pixels: Any = None, scores: Any = None) -> None:
        super().__init__()
        self.model = model
        self.pixels, self.scores = pixels or (lambda x: x), scores or (lambda x: x)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.scores(self.model(self.pixels(pixels)))


def _statuses(record: Robustness) -> dict[str, str]:
    return {line.name: line.status for line in record.sanity}


@pytest.fixture(scope="session")
def record(undefended: nn.Module, twin: nn.Module, test_digits: tuple[Tensor, Tensor]) -> Robustness:
    return attack(undefended, *test_digits, eps=[EPS, 0.02], twin=twin, batch_size=40, name="undefended", data="digits")


def test_an_undefended_model_passes_every_line(record: Robustness) -> None:
    assert not record.flagged
    not_run = [line.name for line in record.sanity if line.status == "not run"]
    assert not_run == ["gradients through iterations not weaker than a surrogate's"]
    assert len(record.sanity) == len(evaluation.CHECKS)


def test_checks_use_the_budget_at_which_attacks_differ(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor]
) -> None:
    """At a budget of .6 no image survives, and attacks cannot be compared."""
    found = attack(undefended, *test_digits, eps=[0.0, EPS, 0.6], attacks=["fgsm", "pgd"])
    assert found.worst(0.6).value == 0 < found.worst(EPS).value < found.worst(0.0).value
    lines = {line.name: line.text for line in found.sanity}
    assert lines["more steps never help the defender"].startswith("accuracy at 0.1 ")
    assert lines["iterative not weaker than single step"].startswith("at 0.1 ")


def test_accuracies_are_those_of_the_attacked_images(
    record: Robustness, undefended: nn.Module, test_digits: tuple[Tensor, Tensor]
) -> None:
    images, labels = test_digits
    clean = undefended(images).argmax(dim=-1) == labels
    assert record.clean_accuracy().value == pytest.approx(float(clean.double().mean()), abs=1e-12)
    assert record.clean_accuracy().value > 0.8
    assert record.budgets == (0.02, EPS)
    for eps in record.budgets:
        right = undefended(fgsm(undefended, images, labels, eps=eps)).argmax(dim=-1) == labels
        assert record.accuracy("fgsm", eps).value == pytest.approx(float((right & clean).double().mean()), abs=1e-12)
        assert record.worst(eps).value <= min(record.accuracy(name, eps).value for name in ("fgsm", "pgd"))
    wrong = {index for index, right in enumerate(clean.tolist()) if not right}
    for result in record.results:
        assert {index for index, predicted in enumerate(result.predicted) if predicted == -1} == {
            index for index in wrong if index < len(result.predicted)
        }
    assert wrong
    assert record.worst(EPS).value < record.worst(0.02).value < record.clean_accuracy().value
    assert record.accuracy("spsa", EPS).images == 64
    assert all(0 < result.largest_change <= result.eps + 1e-6 for result in record.results)


def test_robust_accuracy_is_the_worst_over_attacks_and_smaller_budgets() -> None:
    def result(name: str, eps: float, *predicted: int) -> AttackResult:
        return AttackResult(attack=name, title=name, eps=eps, predicted=predicted, largest_change=eps)

    made = Robustness(
        model="m", data="d", suite="fast", protocol="pixels", budgets=(0.1, 0.2), labels=(0, 1, 2, 0, 1),
        clean=(0, 1, 2, 0, 0),
        results=(
            result("a", 0.1, 0, 1, 0, 0, -1), result("b", 0.1, 1, 1),
            result("a", 0.2, 0, 1, 2, 1, -1), result("b", 0.2, 0, 1),
        ),
    )  # fmt: skip
    assert made.clean_accuracy().value == 0.8
    assert made.accuracy("a", 0.1).value == 0.6
    assert made.accuracy("b", 0.1).value == 0.5
    assert made.worst(0.1).value == 0.4  # images 1 and 3
    assert made.worst(0.2).value == 0.2  # image 1: what fooled the model at .1 counts at .2
    assert Robustness.from_dict(json.loads(json.dumps({**made.to_dict(), "settings": {"attacks": {
        "a": {"title": "a"}, "b": {"title": "b"}}}}))).worst(0.2) == made.worst(0.2)  # fmt: skip
    with pytest.raises(InputError, match=r"no c at 0\.1"):
        made.accuracy("c", 0.1)


@pytest.mark.parametrize(
    ("defence", "flagged"),
    [
        ({"pixels": lambda x: (x * 8).round() / 8 + 0 * x}, {"gradients are informative", "binarisation test"}),
        ({"scores": lambda x: x * 1e4}, {"gradients are informative", "unbounded attack reaches 0"}),
        ({"pixels": lambda x: x + 0.3 * torch.randn_like(x)}, {"budget 0 equals clean"}),
    ],
    ids=["quantised", "saturated", "stochastic"],
)
def test_masked_gradients_are_flagged(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor], defence: dict[str, Any], flagged: set[str]
) -> None:
    torch.manual_seed(0)
    masked = attack(Changed(undefended, **defence), *test_digits, eps=EPS)
    assert flagged <= {line.name for line in masked.flagged}


def test_a_black_box_attack_that_beats_gradients_is_flagged(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor]
) -> None:
    """Gradients of this model lead away from adversarial images; its scores are those of the undefended one."""

    class Misleading(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:
            return -gradient

    masked = Changed(undefended, pixels=Misleading.apply)
    record = attack(masked, *test_digits, eps=EPS, twin=undefended)
    statuses = _statuses(record)
    assert statuses["white box not weaker than black box"] == "FLAG"
    assert statuses["transfer not stronger than white box"] == "FLAG"
    assert statuses["binarisation test"] == "FLAG"
    assert record.worst(EPS).value < record.accuracy("pgd", EPS).value


def test_a_model_that_ignores_its_images_has_chance_accuracy_at_every_budget(
    test_digits: tuple[Tensor, Tensor],
) -> None:
    images, labels = test_digits[0], torch.arange(97) % 10
    scores = torch.randn(10, generator=torch.Generator().manual_seed(7))
    found = attack(Changed(nn.Flatten(), scores=lambda x: scores + 0 * x[:, :10]), images, labels, eps=[0.0, 0.01, 0.3])
    share = float((labels == scores.argmax()).double().mean())
    assert [found.worst(eps).value for eps in found.budgets] == [share] * 3
    assert abs(share - 0.1) < 0.01
    assert _statuses(found)["gradients are informative"] == "FLAG"


def test_random_weights_are_right_by_chance_and_never_more_under_attack(test_digits: tuple[Tensor, Tensor]) -> None:
    generator = torch.Generator().manual_seed(5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=generator)
    images, labels = test_digits[0], torch.randint(10, (97,), generator=generator)
    found = attack(model, images, labels, eps=[0.0, 0.01, 0.3])
    interval = wilson_interval(round(97 * found.clean_accuracy().value), 97, level=0.999)
    assert interval.low <= 0.1 <= interval.high
    assert found.worst(0.0).value == found.clean_accuracy().value > found.worst(0.3).value
    assert found.worst(0.01).value <= found.clean_accuracy().value


def test_an_interrupted_evaluation_continues(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = attack(undefended, *test_digits, eps=EPS, batch_size=30)
    real, calls = evaluation._attack_batch, []

    def fragile(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(evaluation, "_attack_batch", fragile)
    with pytest.raises(KeyboardInterrupt):
        attack(undefended, *test_digits, eps=EPS, batch_size=30, folder=tmp_path)
    continued = attack(undefended, *test_digits, eps=EPS, batch_size=30, folder=tmp_path)
    assert len(calls) == 6 + 6  # 4 + 4 + 3 batches, of which 5 were finished
    assert continued.to_dict() == whole.to_dict()
    attack(undefended, *test_digits, eps=EPS, batch_size=30, folder=tmp_path)
    assert len(calls) == 12
    attack(undefended, *test_digits, eps=EPS, batch_size=30, folder=tmp_path, seed=1)
    assert len(calls) == 12 + 11  # other draws


def test_parts_of_a_model_with_the_same_weights_are_not_used(tmp_path: Path) -> None:
    """The operators differ, the weights do not."""
    settings = {"image_size": 8, "patch_size": 4, "channels": 1, "classes": 5, "width": 12, "layers": 1, "heads": 2}
    models = [
        VisionTransformer(
            VisionTransformerConfig(**settings, attention=operator), generator=torch.Generator().manual_seed(0)
        )
        for operator in (Symmetric(), RPC(iterations=4, strength=4.0))
    ]
    images = torch.rand(11, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        labels = models[0](images).argmax(dim=-1)
    kept, alone = (
        [attack(model, images, labels, eps=0.2, attacks=["fgsm"], folder=folder).to_dict() for model in models]
        for folder in (tmp_path, None)
    )
    assert kept == alone
    assert kept[0]["settings"]["weights"] == kept[1]["settings"]["weights"]
    assert kept[0]["predictions"] != kept[1]["predictions"]


def test_the_model_gets_its_mode_back_and_the_record_says_so(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor]
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
    model.train()
    model[0].eval()
    found = attack(model, *test_digits, eps=0.0, attacks=["fgsm"])
    assert [module.training for module in model] == [False, True, True]
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert any("training mode" in note for note in found.notes)
    assert _statuses(found)["budget 0 equals clean"] == "PASS"  # dropout was off
    assert not any("training mode" in note for note in attack(undefended, *test_digits, attacks=["fgsm"]).notes)


@pytest.mark.parametrize("wrap", [dict, SimpleNamespace], ids=["dictionary", "Hugging Face's output"])
def test_outputs_with_logits(undefended: nn.Module, test_digits: tuple[Tensor, Tensor], wrap: Any) -> None:
    plain, wrapped = (
        attack(Changed(undefended, scores=scores), *test_digits, eps=EPS, attacks=["fgsm"])
        for scores in (None, lambda x: wrap(logits=x))
    )
    assert wrapped.results == plain.results


def test_budgets_are_in_pixels_whatever_the_normalisation(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor]
) -> None:
    mean, std = [0.3], [0.2]
    normalised = Changed(undefended, pixels=lambda x: x * 0.2 + 0.3)
    plain = attack(undefended, *test_digits, eps=EPS, attacks=["fgsm", "pgd"])
    for model in (
        attack(normalised, *test_digits, eps=EPS, attacks=["fgsm", "pgd"], mean=mean, std=std),
        attack(PixelClassifier(normalised, mean=mean, std=std), *test_digits, eps=EPS, attacks=["fgsm", "pgd"]),
    ):
        assert [model.accuracy(name, EPS).value for name in ("fgsm", "pgd")] == pytest.approx(
            [plain.accuracy(name, EPS).value for name in ("fgsm", "pgd")], abs=2.1 / 97
        )


def test_the_papers_protocol_is_weaker_in_pixels(undefended: nn.Module, test_digits: tuple[Tensor, Tensor]) -> None:
    """On inputs divided by .2 a budget is a fifth of what it says. Predictions serve as labels; nothing is clipped."""
    normalised = Changed(undefended, pixels=lambda x: x * 0.2 + 0.3)
    options: dict[str, Any] = {"mean": [0.3], "std": [0.2], "attacks": ["fgsm", "pgd"]}
    paper = attack(normalised, *test_digits, eps=EPS, protocol="paper", **options)
    pixels, fifth = (attack(normalised, *test_digits, eps=eps, **options) for eps in (EPS, EPS / 5))
    assert pixels.accuracy("pgd", EPS).value < paper.accuracy("pgd", EPS).value
    assert paper.accuracy("fgsm", EPS).value == pytest.approx(fifth.accuracy("fgsm", EPS / 5).value, abs=0.1)
    assert not paper.sanity
    assert any("0.2/255 in pixels" in note for note in paper.notes)
    with pytest.raises(InputError, match="no square"):
        attack(normalised, *test_digits, protocol="paper", attacks=["square"])


def test_paired_differences(undefended: nn.Module, twin: nn.Module, test_digits: tuple[Tensor, Tensor]) -> None:
    one, other = (attack(model, *test_digits, eps=EPS, attacks=["fgsm"]) for model in (undefended, twin))
    found = {difference.measure: difference for difference in one.differences(other)}
    assert set(found) == {"clean", "FGSM", "worst"}
    assert found["FGSM"].estimate.value == pytest.approx(
        one.accuracy("fgsm", EPS).value - other.accuracy("fgsm", EPS).value
    )
    same = one.differences(one)
    assert all(d.estimate.value == 0 and not d.differs for d in same)
    assert all(d.estimate.interval.low < 0 < d.estimate.interval.high for d in same)
    images, labels = test_digits
    with pytest.raises(InputError, match="different images"):
        one.differences(attack(twin, images.flip(0), labels.flip(0), eps=EPS, attacks=["fgsm"]))
    with pytest.raises(InputError, match="different images"):
        one.with_baseline(attack(twin, images.flip(0), labels.flip(0), eps=EPS, attacks=["fgsm"]))


def test_the_papers_protocol_attacks_predictions(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = test_digits
    wrong = (labels + 1) % 10  # so that labels and predictions differ
    given: list[int] = []

    def note(scores: Any, images: Tensor, labels: Tensor, **options: Any) -> Tensor:
        given.extend(labels.tolist())
        return images

    chosen = {"noted": Attack(title="noted", run=note)}
    monkeypatch.setattr("clearhead_lab.robustness.evaluation.select_attacks", lambda *_, **__: chosen)
    attack(undefended, images, wrong, eps=EPS, protocol="paper")
    assert given == undefended(images).argmax(dim=-1).tolist() != wrong.tolist()


def test_finished_parts_of_another_protocol_are_not_used(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def brighten(scores: Any, images: Tensor, labels: Tensor, *, bounds: Any = None, **options: Any) -> Tensor:
        return _brighten(scores, images, labels, **options)

    chosen = {"brighter": Attack(title="brighter", run=brighten)}  # with the same settings in both
    monkeypatch.setattr("clearhead_lab.robustness.evaluation.select_attacks", lambda *_, **__: chosen)

    def predictions(protocol: Any, folder: Path) -> Any:
        options: Any = {"mean": [0.5], "std": [0.5], "eps": 0.5, "folder": folder}
        record = attack(undefended, *test_digits, protocol=protocol, **options)
        return record.results[0].predicted

    in_pixels = predictions("pixels", tmp_path / "shared")
    assert predictions("paper", tmp_path / "shared") == predictions("paper", tmp_path / "own") != in_pixels


@once  # annotations refuse some of these before the function does
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.full((97,), 10)}, "expected labels from 0 to 9"),
        ({"labels": torch.full((97,), -1)}, "expected labels from 0 to 9"),
        ({"labels": torch.zeros(96, dtype=torch.long)}, "expected 97 integer labels"),
        ({"labels": torch.zeros(97)}, "expected 97 integer labels"),
        ({"images": torch.full((97, 1, 8, 8), 1.5)}, "expected pixels from 0 to 1"),
        ({"images": torch.full((97, 1, 8, 8), math.nan)}, "expected pixels from 0 to 1"),
        ({"images": torch.zeros(97, 1, 8, 8, dtype=torch.uint8)}, "of floats from 0 to 1"),
        ({"images": torch.zeros(0, 1, 8, 8), "labels": torch.zeros(0, dtype=torch.long)}, "of floats from 0 to 1"),
        ({"eps": -0.1}, "expected budgets eps from 0 to 1"),
        ({"eps": 8.0}, "expected budgets eps from 0 to 1"),
        ({"eps": math.nan}, "expected budgets eps from 0 to 1"),
        ({"eps": []}, "expected budgets eps from 0 to 1"),
        ({"attacks": ["pgdd"]}, "no attack 'pgdd'; choose among apgd-ce"),
        ({"suite": "huge"}, "no suite 'huge'; choose among fast, standard, full"),
        ({"protocol": "other"}, "choose pixels or paper"),
        ({"batch_size": 0}, "batch_size of at least 1"),
        ({"std": [0.0]}, "standard deviations above zero"),
        ({"model": 3}, "torch.nn.Module or a PixelClassifier"),
        ({"model": nn.Flatten(0)}, "expected scores of shape"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    undefended: nn.Module, test_digits: tuple[Tensor, Tensor], change: dict[str, Any], message: str
) -> None:
    arguments = {"model": undefended, "images": test_digits[0], "labels": test_digits[1], **change}
    with pytest.raises(InputError, match=message) as error:
        attack(**arguments)
    assert "\n" not in str(error.value)


def test_scores_that_are_not_finite_are_refused(undefended: nn.Module, test_digits: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(InputError, match="not finite"):
        attack(Changed(undefended, scores=lambda x: x / 0), *test_digits)


def test_suites_grow(undefended: nn.Module) -> None:
    names = {suite: set(SUITES[suite].attacks) for suite in SUITES}
    assert names["fast"] < names["standard"]
    assert {"autoattack", "cw", "hopskipjump"} <= names["full"]
    assert select_attacks("fast", ("autoattack",)) == {"autoattack": SUITES["full"].attacks["autoattack"]}
    assert select_attacks("full", ("pgd",))["pgd"].title == "PGD-100x10"


def _brighten(scores: Any, images: Tensor, labels: Tensor, *, eps: float, generator: Any, by: float = 1.0) -> Tensor:
    return (images + by * eps).clamp(0, 1)


def test_attacks_of_others_are_named_or_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ATTACKS, "_registered", {})
    brighter = Attack(title="brighter", run=_brighten)
    ATTACKS.register("bright", brighter)
    assert select_attacks("fast", ("bright", brighter)) == {"bright": brighter, "brighter": brighter}
    with pytest.raises(InputError, match="a name that no suite has"):
        ATTACKS.register("pgd", brighter)
    with pytest.raises(InputError, match=r"choose among .*bright"):
        select_attacks("fast", ("dark",))
    with pytest.raises(InputError, match="names files"):
        select_attacks("fast", (Attack(title="../elsewhere", run=_brighten),))


def test_an_attack_that_leaves_its_budget_is_refused(undefended: nn.Module, test_digits: tuple[Tensor, Tensor]) -> None:
    images, labels = (part[:20] for part in test_digits)
    within, beyond = (Attack(title="brighter", run=_brighten, settings={"by": by}) for by in (1.0, 1.5))
    kept = attack(undefended, images, labels, eps=EPS, attacks=[within])
    assert [result.attack for result in kept.results] == ["brighter"]
    with pytest.raises(InputError, match="left its budget"):
        attack(undefended, images, labels, eps=EPS, attacks=[beyond])


def test_the_public_function_is_this_one() -> None:
    assert clearhead_lab.attack is attack
    assert clearhead_lab.Robustness is Robustness


def test_records_convert(record: Robustness) -> None:
    table = record.to_pandas()
    assert set(table["attack"]) == {"clean", "fgsm", "pgd", "spsa", "worst"}
    assert float(table[(table["attack"] == "worst") & (table["eps"] == EPS)]["accuracy"].iloc[0]) == (
        record.worst(EPS).value
    )
    stored = json.loads(json.dumps(record.to_dict()))
    again = Robustness.from_dict(stored)
    assert dataclasses.replace(again, examples=record.examples, example_attack=record.example_attack).to_dict() == (
        record.to_dict()
    )
    assert all(difference.estimate.value == 0 for difference in again.differences(record))
    with pytest.raises(InputError, match="the record of an attack cannot be read"):
        Robustness.from_dict({"budgets": []})


def test_examples_are_within_the_budget(record: Robustness) -> None:
    assert len(record.examples) == 6
    for example in record.examples:
        assert float((example.attacked - example.image).abs().max()) <= EPS + 1e-6
        assert example.before == example.label
    assert any(example.after != example.label for example in record.examples)
