"""`clearhead attack`: tables, files, paired differences, resuming, and data and models of other layouts."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from clearhead.operators.named import RPC
from clearhead_lab.data.image_sets import digits
from clearhead_lab.models.native import save_native
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from tests.as_shipped.warm import WarmCommand

SETTINGS = {"image_size": 8, "patch_size": 4, "channels": 1, "classes": 10, "width": 12, "layers": 1, "heads": 2}


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmCommand]:
    command = WarmCommand(tmp_path_factory.mktemp("warm"))
    yield command
    command.close()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a small model trained on digits, and one with RPC-Attention that is not trained."""
    folder = tmp_path_factory.mktemp("attack")
    model = VisionTransformer(VisionTransformerConfig(**SETTINGS), generator=torch.Generator().manual_seed(0))
    stored = digits()
    images, labels = stored.train_images.float() / 255, stored.train_labels
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    save_native(model, folder / "vit")
    save_native(VisionTransformer(VisionTransformerConfig(**SETTINGS, attention=RPC(iterations=2))), folder / "rpc")
    return folder


ATTACK = ("attack", "vit", "--data", "digits", "--inputs", "40", "--eps", "0.1", "--attack", "fgsm", "--attack", "pgd")


def test_an_attack_prints_a_table_and_writes_its_files(here: Path, warm: WarmCommand) -> None:
    shown = warm(*ATTACK, here=here)
    assert (shown.returncode, shown.stderr) == (0, "")
    for text in ("FGSM", "PGD-20", "worst", "clean", "PASS", "clearhead-attack/index.html"):
        assert text in shown.stdout
    written = json.loads((here / "clearhead-attack" / "attack.json").read_text())
    assert written["budgets"][0]["eps"] == 0.1
    assert written["data"] == "digits"
    assert len(written["labels"]) == 40
    page = (here / "clearhead-attack" / "index.html").read_text()
    assert f"{100 * written['budgets'][0]['worst']['accuracy']:.1f}%" in page
    times = {path: path.stat().st_mtime_ns for path in (here / "clearhead-attack" / "parts").iterdir()}
    printed = warm(*ATTACK, "--json", here=here)
    assert json.loads(printed.stdout)["budgets"] == written["budgets"]
    assert {path: path.stat().st_mtime_ns for path in times} == times  # nothing was attacked again


@pytest.mark.parametrize("columns", [44, 80, 140])
def test_the_table_fits_the_terminal(here: Path, warm: WarmCommand, columns: int) -> None:
    shown = warm(*ATTACK, here=here, columns=columns)
    lines = [line for line in shown.stdout.splitlines() if "clearhead-attack" not in line]
    assert max(map(len, lines)) <= columns


def test_two_models_are_compared_image_by_image(here: Path, warm: WarmCommand) -> None:
    warm(*ATTACK, here=here)
    same = warm(*ATTACK, "--out", "same", "--against", "clearhead-attack", "--json", here=here)
    differences = json.loads(same.stdout)["differences"]
    assert {entry["difference"] for entry in differences} == {0}
    other = warm("attack", "rpc", *ATTACK[2:], "--twin", "vit", "--out", "other", "--against", "same", here=here)
    assert other.returncode == 0
    assert "optimisation loop" in other.stdout
    assert "same" in other.stdout
    longer = warm(*ATTACK[:5], "50", *ATTACK[6:], "--out", "longer", "--against", "same", here=here)
    assert longer.returncode == 2
    assert "different images" in longer.stderr


def test_a_folder_of_hugging_face_has_its_normalisation(here: Path, warm: WarmCommand) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=7, image_size=8, patch_size=4,
        num_labels=3,
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(here / "hf")
    transformers.ViTImageProcessor(
        size={"height": 8, "width": 8}, image_mean=[0.25] * 3, image_std=[0.5] * 3
    ).save_pretrained(here / "hf")
    rng = np.random.default_rng(0)
    images = {f"x_{split}": rng.integers(0, 256, (9, 8, 8, 3), dtype=np.uint8) for split in ("train", "test")}
    np.savez(here / "images.npz", **images, y_train=np.arange(9) % 3, y_test=np.arange(9) % 3)
    command = ("attack", "hf", "--data", "images.npz", "--attack", "fgsm", "--out", "of-hf", "--json")
    shown = warm(*command, here=here)
    assert shown.returncode == 0
    assert "mean [0.25, 0.25, 0.25], std [0.5, 0.5, 0.5]" in json.loads(shown.stdout)["settings"]["normalisation"]
    np.savez(here / "labels.npz", **images, y_train=np.arange(9), y_test=np.arange(9))
    wrong = warm("attack", "hf", "--data", "labels.npz", "--out", "of-labels", here=here)
    assert wrong.returncode == 2
    assert re.search("expected labels from 0 to 2", wrong.stderr)
    assert not (here / "of-labels" / "attack.json").exists()


def test_corruption_error_calibration_and_other_classes(here: Path, warm: WarmCommand) -> None:
    rng = np.random.default_rng(0)
    noise = {f"x_{split}": rng.integers(0, 256, (23, 8, 8), dtype=np.uint8) for split in ("train", "test")}
    np.savez(here / "noise.npz", **noise, y_train=np.zeros(23, int), y_test=np.zeros(23, int))
    command = (*ATTACK[2:8], "--attack", "fgsm", "--suite", "standard")
    first = warm("attack", "rpc", *command, "--out", "baseline", here=here)
    assert (first.returncode, first.stderr) == (0, "")
    options = ("--out", "compared", "--against", "baseline", "--ood", "noise.npz")
    shown = warm("attack", "vit", *command, *options, here=here, columns=200)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert re.search(r"^mCE +\d+\.\d% of the errors of rpc, mean over 8 corruptions", shown.stdout, re.MULTILINE)
    assert re.search(r"^confidence +calibration error \d+\.\d%", shown.stdout, re.MULTILINE)
    assert re.search(r"^detection .* for 23 images of noise.* random scores have 36\.5%$", shown.stdout, re.MULTILINE)
    written = json.loads((here / "compared" / "attack.json").read_text())
    error, found = written["mean_corruption_error"], written["detection"]
    baseline = json.loads((here / "baseline" / "attack.json").read_text())
    ratios = [
        100 * (5 - sum(written["corruptions"][name])) / (5 - sum(baseline["corruptions"][name]))
        for name in baseline["corruptions"]
    ]
    assert error["mean"] == pytest.approx(sum(ratios) / 8)
    assert error["mean"] < 100  # the other model is not trained
    assert f"{error['mean']:.1f}%" in (here / "compared" / "index.html").read_text()
    assert (found["images"], found["chance"]) == (23, pytest.approx(23 / 63))
    assert 0 <= written["calibration_error"] <= 1
    assert set(written["definitions"]) == {"calibration_error", "detection", "mean_corruption_error"}
    printed = json.loads(warm("attack", "vit", *command, *options, "--json", here=here).stdout)
    assert printed["mean_corruption_error"] == error
    assert printed["detection"] == found
    fast = warm(*ATTACK, "--out", "fast", "--against", "baseline", here=here, columns=200)
    assert fast.returncode == 0
    assert re.search(r"^mCE +none against rpc: vit has no corruptions: attack it with", fast.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ood", "nowhere"), "nowhere does not exist"),
        (("--ood", "images.npz"), "expected out-of-distribution images (m, 1, 8, 8)"),
        (("--attack", "magic"), "there is no attack 'magic'; choose among apgd-ce"),
        (("--data", "nowhere"), "nowhere does not exist"),
        (("--std", "0"), "standard deviations above zero"),
        (("--eps", "1e400"), "--eps is 1e400; budgets are from 0 to 1"),
        (("--eps", "nan/1"), "--eps is nan/1; budgets are from 0 to 1"),
        (("--eps", "1/1e-400"), "give a number such as 8/255"),
        (("--mean", ".1,.2,.3,.4,.5"), "the mean has 5 numbers and images have 1 channels"),
        (("--mean", "1e400"), "finite"),
        (("--protocol", "paper", "--attack", "square"), "the paper's protocol has no square"),
    ],
)
def test_bad_options_end_in_one_line(here: Path, warm: WarmCommand, arguments: tuple[str, ...], message: str) -> None:
    colours = np.zeros((3, 8, 8, 3), np.uint8)
    np.savez(here / "images.npz", x_train=colours, x_test=colours, y_train=np.arange(3), y_test=np.arange(3))
    shown = warm("attack", "vit", "--data", "digits", "--out", "bad", *arguments, here=here)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert message in shown.stderr
    assert len(shown.stderr.strip().splitlines()) == 1
