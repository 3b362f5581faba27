"""A package outside the repository: the files of docs/howto/extend, installed by pip into a folder of its own.

A second package has units of the same names and units that cannot be loaded. They are reported with its name, and stop
nothing.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import clearhead as ch
from clearhead.errors import InputError
from tests.once import once

pytestmark = once

EXAMPLES = Path(__file__).parents[2] / "docs" / "howto" / "extend"
GROUPS = tomllib.loads((EXAMPLES / "pyproject.toml").read_text())["project"]["entry-points"]
MODEL = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.maps = nn.Linear(12, 36, bias=False)
        self.maps.weight.data.normal_(0, 0.5, generator=torch.Generator().manual_seed(seed))
        self.out = nn.Linear(12, 12)

    def attend(self, q, k, v):
        return self.out(((q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1) @ v).transpose(1, 2).flatten(2))

    def forward(self, x):
        q, k, v = (part.reshape(len(x), -1, 3, 4).transpose(1, 2) for part in self.maps(x).chunk(3, dim=-1))
        return x + self.attend(q, k, v)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding.from_pretrained(torch.randn(128, 12, generator=torch.Generator().manual_seed(0)))
        self.layers = nn.Sequential(Attention(1), Attention(2))

    def forward(self, input_ids):
        return self.layers(self.words(input_ids))

class Tokenizer:
    pad_token = " "

    def __call__(self, texts, *, max_length, **options):
        rows = [[ord(c) % 128 for c in text[:max_length].ljust(24)] for text in texts]
        return {"input_ids": torch.tensor([row[:24] for row in rows])}

def load():
    return Model(), Tokenizer()

def classifier():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""
SCRIPT = """
import json, warnings
from pathlib import Path
import torch
import clearhead as ch, clearhead_lab
import my_model, my_operator, my_attack

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", ch.PackageWarning)
    model, batch = my_model.Model().eval(), {"input_ids": torch.arange(26).view(2, 13)}
    alone = model(**batch)
    with ch.capture(model) as captured:
        before = model(**batch)
    record = ch.audit(model, [batch], theories=["own-token"])
    ch.swap(model, my_operator.Sharper(factor=3.0), layers=[1])
    swapped = model(**batch)
    ch.save_swaps(model, "saved")
    loaded = my_model.Model().eval()
    ch.load_swaps(loaded, "saved")
    images, labels = torch.rand(6, 1, 8, 8), torch.tensor([1, 2, 3, 4, 5, 6])
    attacked = [
        clearhead_lab.attack(my_model.classifier(), images, labels, eps=0.1, attacks=[one])
        for one in ("brighter", my_attack.ATTACK)
    ]
print(json.dumps({
    "interface": sorted({heads.interface for heads in captured.heads}),
    "heads": [list(heads.q.shape) for heads in captured.heads],
    "theory": [[theory.key, theory.package] for theory in record.theories],
    "findings": len(record.findings),
    "saved": json.loads(Path("saved/clearhead-swap.json").read_text()),
    "same": torch.equal(alone, before),
    "changed": not torch.equal(before, swapped),
    "restored": torch.equal(loaded(**batch), swapped),
    "attacks": [[result.attack for result in one.results] for one in attacked],
    "warnings": sorted({str(warning.message) for warning in caught if warning.category is ch.PackageWarning}),
}))
"""


def _pip_install(package: Path, site: Path) -> None:
    """Install a package as its author would, from a copy, without the network, into a folder."""
    copy = shutil.copytree(package, site.parent / f"{site.name}-{package.name}")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(site)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(copy)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr


def _list(site: Path, name: str, groups: dict[str, dict[str, str]]) -> None:
    """Let a package have these entry points, without a build."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in units.items()) for group, units in groups.items()]
    (info / "entry_points.txt").write_text("".join(lines))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages: the examples as `mine`, and `theirs`, with the same names and one that is broken."""
    folder = tmp_path_factory.mktemp("site")
    _pip_install(EXAMPLES, folder)
    (folder / "my_model.py").write_text(MODEL)
    (folder / "broken.py").write_text("import no_such_module\n")
    _list(
        folder,
        "theirs",
        {group: dict.fromkeys((*units, "worst"), "broken:UNIT") for group, units in GROUPS.items()},
    )
    return folder


def _python(site: Path, arguments: Sequence[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_each_unit_of_a_package_works_in_python(site: Path, tmp_path: Path) -> None:
    done = _python(site, ["-c", SCRIPT], tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["interface"] == ["attend-method"]
    assert found["heads"] == [[2, 3, 13, 4]] * 2
    assert found["theory"] == [["own-token", "mine"]]
    assert found["findings"] == 6
    swaps = [{"operator": {"operator": "sharper", "factor": 3.0}, "layers": ["layers.1"]}]
    assert found["saved"]["swaps"] == swaps
    assert (found["same"], found["changed"], found["restored"]) == (True, True, True)
    assert found["attacks"] == [["brighter"], ["brighter"]]
    for name in ("theory own-token", "operator sharper", "interface attend-method", "attack brighter"):
        assert f"the {name} of theirs is not used: mine has one of that name" in found["warnings"]
    assert any("the interface worst of theirs cannot be loaded" in line for line in found["warnings"])
    with pytest.raises(InputError, match="expected an operator among softmax"):  # where the package is not installed
        ch.load_swaps(torch.nn.TransformerEncoderLayer(12, 3, 24), tmp_path / "saved")


def test_each_unit_of_a_package_works_on_the_command_line(site: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# Notes\n\nA first passage of words.\n\nA second, other passage.\n\nA third.\n")
    arguments = ["my_model:load", "--text", "notes.md", "--theory", "own-token", "--out", "report", "--workers", "1"]
    audit = _python(site, ["-m", "clearhead", "audit", *arguments], tmp_path)
    assert audit.returncode == 0, audit.stderr
    assert "the reader worst of theirs cannot be loaded" in audit.stderr
    assert "own token" in audit.stdout
    assert "3 inputs" in audit.stdout
    verdicts = _python(site, ["-m", "clearhead", "verdicts", "report"], tmp_path)
    assert (verdicts.returncode, sum(int(line.split()[0]) for line in verdicts.stdout.splitlines())) == (0, 6)
    listed = _python(site, ["-m", "clearhead", "--help"], tmp_path)
    assert "Count the verdicts in a report." in listed.stdout
    assert "the command worst of theirs cannot be loaded" in listed.stderr
    assert "the command verdicts of theirs is not used: mine has one of that name" in listed.stderr
