"""Two sessions: as shipped, and with CLEARHEAD_TYPECHECK=1, where all annotated shapes of the package are checked.

CLEARHEAD_TYPED names the tests that the session with annotations runs. The other session runs those of them that may
differ without annotations: tests that ask whether annotations are checked, and tests that are skipped if they are.
"""

import os

import pytest
import torch
from hypothesis import settings

from tests.once import once

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of CLEARHEAD_TYPED that do not depend on the session."""
    typed = [config.rootpath / name for name in os.environ.get("CLEARHEAD_TYPED", "").split()]
    left_out = []
    kept = []
    for item in items:
        typed_too = any(item.path.is_relative_to(folder) for folder in typed) and not depends_on_the_session(item)
        (left_out if typed_too else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def depends_on_the_session(item: pytest.Item) -> bool:
    """Return whether a test asks if annotations are checked, or runs in one session only."""
    asks = "typechecked" in getattr(item, "fixturenames", ())
    return asks or any(mark == once.mark for mark in item.iter_markers("skipif"))


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
