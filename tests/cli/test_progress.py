"""Progress: a phase, the steps done and of how many, from the start."""

import io

from rich.console import Console
from rich.progress import Progress

from clearhead.audit.baseline import BASELINE_DRAWS, BASELINE_INPUTS
from clearhead.cli.audit_command import _Phases
from clearhead.cli.console import ProgressBar


class Recorder(ProgressBar):
    """A bar that keeps its updates."""

    def __init__(self) -> None:
        self.updates: list[tuple[str, int, int | None]] = []

    def update(self, what: str, done: int, total: int | None) -> None:
        self.updates.append((what, done, total))


def test_all_runs_of_the_baseline_are_one_phase() -> None:
    bar = Recorder()
    phases = _Phases(bar, inputs=20)
    phases("check", 0)
    for done in (0, 8, 20):
        phases("measure", done)
    for _ in range(2 * BASELINE_DRAWS):
        for done in (0, 8, BASELINE_INPUTS):
            phases("baseline", done)
    assert bar.updates[:4] == [("checking the capture", 0, 20), *[("measuring inputs", d, 20) for d in (0, 8, 20)]]
    finished = [done for what, done, _ in bar.updates if what == "measuring the baseline"]
    assert finished == sorted(finished)
    total = 2 * BASELINE_DRAWS * BASELINE_INPUTS
    assert (finished[0], finished[-1]) == (0, total)
    assert {total for what, _, total in bar.updates if what == "measuring the baseline"} == {total}


def test_a_new_phase_has_its_own_clock() -> None:
    shown = Progress(console=Console(file=io.StringIO()), auto_refresh=False)
    bar = ProgressBar(shown, "loading")
    bar.update("measuring", 3, 10)
    bar.update("measuring", 4, 10)
    (task,) = shown.tasks
    assert (task.description, task.completed, task.total) == ("measuring", 4, 10)
    bar.update("measuring more", 0, 5)
    (task,) = shown.tasks
    assert (task.description, task.completed, task.total) == ("measuring more", 0, 5)
