"""The comparison of attention variants: from images to a table, and nothing computed twice."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from clearhead.operators.named import RPC, ClampedKeys, Softmax, Symmetric
from clearhead_lab.data.image_sets import ImageSet, digits
from clearhead_lab.experiments.experiment import Experiment, Outcome, Request
from clearhead_lab.experiments.robustness import attention_variants as robustness
from clearhead_lab.experiments.robustness import runs as robustness_runs
from clearhead_lab.experiments.robustness.attention_variants import (
    DIGITS_DESIGN,
    FASHION_DESIGN,
    ROBUSTNESS,
    STEP_TIME,
    measure,
)
from clearhead_lab.experiments.robustness.report import CLEAN, as_report
from clearhead_lab.experiments.robustness.runs import clamped_shares
from clearhead_lab.experiments.robustness.variants import VARIANTS, Variant, configs_of
from clearhead_lab.models.native import load_native, save_native
from clearhead_lab.models.vit import VisionTransformer
from clearhead_lab.robustness.corruptions import CORRUPTIONS, NOISES, corrupt
from clearhead_lab.training import run as training_run
from clearhead_lab.training.evaluation import measure_accuracy
from clearhead_lab.training.loop import DivergedError, Stepper
from clearhead_lab.training.tasks import Classification

DESIGN = dataclasses.replace(
    DIGITS_DESIGN,
    file=dataclasses.replace(
        DIGITS_DESIGN.file, model={**DIGITS_DESIGN.file.model, "width": 12, "heads": 3, "mlp_width": 13}
    ),
    corrupted=37,
    rounds=2,
    seeds=2,
)
TWO = (
    Variant(name="softmax", meaning="plain", attention=lambda config: Softmax()),
    Variant(name="symmetric", meaning="by keys", attention=lambda config: Symmetric(), baselines=()),
)


def _few(images: ImageSet, n: int = 320) -> ImageSet:
    return dataclasses.replace(images, train_images=images.train_images[:n], train_labels=images.train_labels[:n])


def _run(out: Path, **changes: Any) -> Outcome:
    return _experiment(_few(digits())).run(Request(out=out, **{"epochs": 2, **changes}))


def _experiment(images: ImageSet) -> Experiment:
    return Experiment(
        name="here", title="", reproduces="", cost="",
        measure=lambda request, folder: measure(images, DESIGN, request, folder, TWO),
        report=lambda results, request: as_report(*results),
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    out = tmp_path_factory.mktemp("runs")
    return out, _run(out)


def test_each_run_stores_its_model_and_its_counts(done: tuple[Path, Outcome]) -> None:
    out, outcome = done
    runs = {(run["variant"], run["seed"]): run for run in outcome.facts["runs"]}
    assert list(runs) == [("softmax", 0), ("symmetric", 0), ("softmax", 1), ("symmetric", 1)]
    images = digits()
    for (variant, seed), run in runs.items():
        model = load_native(out / "here" / f"{variant}-{seed}" / "model")
        assert type(model.config.attention) is {"softmax": Softmax, "symmetric": Symmetric}[variant]
        assert run["clean"] == measure_accuracy(model, images.test_images, images.test_labels).right
        assert run["parameters"] == sum(p.numel() for p in model.parameters())
        assert set(run["by_corruption"]) == {corruption.name for corruption in CORRUPTIONS}
        assert all(len(right) == 5 and max(right) <= 37 for right in run["by_corruption"].values())
        assert (run["images"], run["corrupted"], len(run["seconds"])) == (360, 37, 2)
        worse = corrupt(images.test_images[:37], NOISES[0], severity=4, seed=0)
        right = measure_accuracy(model, worse, images.test_labels[:37]).right
        assert run["by_corruption"][NOISES[0].name][3] == right
    assert runs["softmax", 0]["parameters"] - runs["symmetric", 0]["parameters"] == 2 * (12 * 12 + 12)
    assert runs["softmax", 0]["clean"] > 360 / 10
    json.dumps(outcome.facts, allow_nan=False)


def test_finished_work_is_not_repeated(done: tuple[Path, Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    out, outcome = done
    swept: list[int] = []
    real = robustness_runs.sweep

    def counted(*args: Any, **options: Any) -> Any:
        swept.append(1)
        return real(*args, **options)

    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("timed again")

    monkeypatch.setattr(robustness_runs, "sweep", counted)
    monkeypatch.setattr(robustness, "measure_step_times", refuse)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("checkpoint.safetensors")}
    again = _run(out)
    assert (swept, again.facts) == ([], outcome.facts)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("checkpoint.safetensors")} == before
    counts = out / "here" / "symmetric-1" / "measured.json"
    for other in ("{", (out / "here" / "symmetric-0" / "measured.json").read_text()):
        swept.clear()
        counts.write_text(other)
        assert (_run(out).facts, swept) == (outcome.facts, [1])


def test_more_seeds_keep_the_first_ones(done: tuple[Path, Outcome]) -> None:
    out, outcome = done
    more = _run(out, seeds=3)
    assert more.facts["runs"][:4] == outcome.facts["runs"]
    assert [run["seed"] for run in more.facts["runs"][4:]] == [2, 2]
    assert "--epochs 2 --seeds 3`" in (out / "here" / "table.md").read_text()


def test_another_recipe_is_refused_and_changes_nothing(done: tuple[Path, Outcome]) -> None:
    out, _ = done
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"belongs to a run with other settings \(epochs, warmup\)") as error:
        _run(out, epochs=3)
    assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_results_of_other_images_are_not_reused(done: tuple[Path, Outcome]) -> None:
    out, _ = done
    images = _few(digits())
    turned = dataclasses.replace(images, train_images=images.train_images.flip(-1))
    with pytest.raises(ValueError, match=r"belongs to a run with other settings \(data\)"):
        _experiment(turned).run(Request(out=out, epochs=2))


def test_a_run_that_diverges_is_reported_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = training_run.train
    starts = []

    def fragile(model: VisionTransformer, *args: Any, **options: Any) -> Any:
        starts.append(model.head.weight.detach().clone())
        if isinstance(model.config.attention, Symmetric) and options["recipe"].seed == 1:
            raise DivergedError("the loss is nan at step 3")
        return real(model, *args, **options)

    monkeypatch.setattr(training_run, "train", fragile)
    outcome = _run(tmp_path, epochs=1)
    assert [run["reason"] for run in outcome.facts["runs"]] == ["", "", "", "the loss is nan at step 3"]
    assert outcome.facts["estimates"][CLEAN]["symmetric"]["count"] == 1
    assert outcome.facts["differences"] == []
    assert (
        "## Not trained\n\n- symmetric, seed 1: the loss is nan at step 3" in (tmp_path / "here/table.md").read_text()
    )
    assert "symmetric, seed 1: the loss is nan at step 3" in outcome.remarks
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


def test_variants_differ_in_attention_alone_and_name_their_baselines() -> None:
    names = [variant.name for variant in VARIANTS]
    assert names[:2] == ["softmax", "symmetric"]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)
    assert {baseline for variant in VARIANTS for baseline in variant.baselines} <= set(names)
    plain = FASHION_DESIGN.config(image_size=28, channels=1, classes=10)
    configs = configs_of(plain, VARIANTS)
    assert len({str(config.attention) for config in configs.values()}) == len(names)
    assert all(dataclasses.replace(config, attention=Softmax()) == plain for config in configs.values())


def test_every_variant_trains_saves_and_starts_alike(tmp_path: Path) -> None:
    images = digits()
    plain = DESIGN.config(image_size=8, channels=1, classes=10)
    starts, recipe = {}, DESIGN.file.recipe
    softmax = VisionTransformer(plain, generator=torch.Generator().manual_seed(5))
    for name, config in configs_of(plain, VARIANTS).items():
        model = VisionTransformer(config, generator=torch.Generator().manual_seed(5))
        starts[name] = {key: weight.clone() for key, weight in model.state_dict().items()}
        step = Stepper(model, recipe, Classification(recipe))
        pixels, labels = images.train_images[:29].float() / 255, images.train_labels[:29]
        if name.startswith("scaled"):
            with torch.no_grad():
                assert torch.equal(model(pixels), softmax(pixels))  # S starts at zero
        losses = [step(pixels, labels, learning_rate=3e-3) for _ in range(11)]
        assert losses[-1] < losses[0]
        save_native(model, tmp_path / name)
        again = load_native(tmp_path / name)
        assert again.config == config
        with torch.no_grad():
            assert torch.equal(again(pixels), model(pixels))
    for start in starts.values():
        shared = start.keys() & starts["softmax"].keys()
        assert shared >= starts["symmetric"].keys()
        assert all(torch.equal(start[key], starts["softmax"][key]) for key in shared)


def test_entries_beyond_the_bound_are_counted_by_layer() -> None:
    strict = ClampedKeys(strength=1.0)
    plain = dataclasses.replace(
        DESIGN.config(image_size=8, channels=1, classes=10), attention=(Softmax(), RPC(strength=1.0))
    )
    model = VisionTransformer(plain, generator=torch.Generator().manual_seed(0))
    pixels = digits().test_images[:7].float() / 255
    none, share = clamped_shares(model, pixels)
    with torch.no_grad():
        seen = {}
        model.blocks[1].attention.key.register_forward_hook(lambda module, args, out: seen.update(k=out))
        model(pixels)
    keys = seen["k"].unflatten(-1, (3, 4)).transpose(1, 2)
    # lambda mu with mu = C / (4 d mean |k|), C of all heads
    bound = 12 / (4 * 4 * keys.abs().mean(dim=(-2, -1), keepdim=True))
    assert (none, share) == (None, pytest.approx(float((keys.abs() > bound).double().mean())))
    assert 0 < share < 1
    assert model.training
    alike = VisionTransformer(dataclasses.replace(plain, attention=(Softmax(), strict)))
    alike.load_state_dict(model.state_dict())
    assert clamped_shares(alike, pixels) == [None, share]


def test_times_measured_alone_are_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robustness, "VARIANTS", TWO)
    file = dataclasses.replace(DESIGN.file, model={**DESIGN.file.model, "patch_size": 14})
    monkeypatch.setattr(robustness, "FASHION_DESIGN", dataclasses.replace(DESIGN, file=file))
    request = Request(out=tmp_path)
    first = STEP_TIME.run(request)
    assert re.match(r"slowest is \w+, \d+\.\d\d times the time of softmax", first.headline)
    stored = json.loads((tmp_path / "rpc-step-time" / "step-time.json").read_text())
    design = robustness.FASHION_DESIGN
    configs = configs_of(design.config(image_size=28, channels=1, classes=10), TWO)
    times = robustness.find_times(configs, design, request, ROBUSTNESS.folder(tmp_path))
    assert {name: list(seconds) for name, seconds in times.seconds.items()} == stored["result"]
    assert not ROBUSTNESS.folder(tmp_path).exists()
    again = STEP_TIME.run(request)
    assert json.loads((tmp_path / "rpc-step-time" / "step-time.json").read_text())["result"] != stored["result"]
    assert again.files == first.files


def test_the_page_states_the_constants_and_the_plan() -> None:
    page = (Path(__file__).parents[4] / "docs" / "experiments" / "rpc-robustness.md").read_text()
    for corruption in CORRUPTIONS:
        assert f"| {corruption.name} | {', '.join(f'{amount:g}' for amount in corruption.amounts)} |" in page
    words, file, model = " ".join(page.split()), FASHION_DESIGN.file, FASHION_DESIGN.file.model
    sizes = f"width {model['width']}, {model['layers']} layers, {model['heads']} heads"
    assert f"{sizes}, {file.recipe.epochs} epochs" in words
    assert f"the first {file.data.take:,} training images, AdamW in batches of {file.recipe.batch_size}" in words
    assert f"on the first {FASHION_DESIGN.corrupted:,} under eight corruptions" in words


def test_images_that_are_not_square_are_refused(tmp_path: Path) -> None:
    images = digits()
    cut = dataclasses.replace(
        images, train_images=images.train_images[..., :6], test_images=images.test_images[..., :6]
    )
    with pytest.raises(ValueError, match="expected square images; digits has 8 x 6"):
        _experiment(cut).run(Request(out=tmp_path))
    assert list(tmp_path.iterdir()) == []
