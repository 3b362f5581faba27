"""Two sessions: as shipped, and with CLEARHEAD_TYPECHECK=1, where all annotated shapes of the package are checked."""

import os

import pytest
import torch
from hypothesis import settings

TYPECHECKED = os.environ.get("CLEARHEAD_TYPECHECK") == "1"

if TYPECHECKED:  # before anything imports the package
    from jaxtyping import install_import_hook

    import tests.annotations  # noqa: F401

    install_import_hook(["clearhead", "clearhead_lab"], "tests.annotations.checked")

from clearhead.interfaces.torchvision_shim import ensure_torchvision  # noqa: E402

ensure_torchvision()

# Workers share the machine, and threads of one would wait for threads of the other.
torch.set_num_threads(int(os.environ.get("CLEARHEAD_TEST_THREADS", "1")))

settings.register_profile("clearhead", deadline=None, derandomize=True)
settings.load_profile("clearhead")


@pytest.fixture(scope="session")
def typechecked() -> bool:
    """Whether jaxtyping's import hook checks the package in this session."""
    return TYPECHECKED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in the end if the report was never opened in a browser."""
    skipped = terminalreporter.stats.get("skipped", [])
    unopened = [report for report in skipped if "no Chromium" in str(report.longrepr)]
    if unopened:
        terminalreporter.write_line(f"not run: {len(unopened)} browser tests, for want of Chromium")
