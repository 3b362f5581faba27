"""Commands in this process, on a small model and batches that commands can import as `small_models`."""

import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clearhead.cli.failure import exit_code_of
from clearhead.cli.main import app

HEADS, WIDTH = 3, 12


class Attending(nn.Module):
    """Two layers of three heads, with an output projection."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.maps = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        for layer in self.maps:
            layer.weight.data.normal_(0, 0.5, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Add the heads' outputs of each layer to the tokens."""
        for layer in self.maps:
            q, k, v = (part.reshape(len(x), -1, HEADS, 4).transpose(1, 2) for part in layer(x).chunk(3, dim=-1))
            x = x + functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x


def batches(seed: int = 0) -> list[Tensor]:
    """Return three batches of four inputs."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 17, WIDTH, generator=generator) for _ in range(3)]


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module that commands import; tests may replace its functions."""
    module = ModuleType("small_models")
    module.model, module.batches = Attending, batches
    monkeypatch.setitem(sys.modules, "small_models", module)
    return module


@pytest.fixture
def command(
    small: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Return a function that runs a command in a folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("COLUMNS", "100")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def run(*arguments: str) -> Ended:
        code = exit_code_of(lambda: app(arguments, prog_name="clearhead", standalone_mode=False))
        printed = capsys.readouterr()
        return Ended(code, printed.out, printed.err)

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)
