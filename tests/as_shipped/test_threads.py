"""Processor time on a busy machine: a second thread must not spend it waiting."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

CODE = """
import os, time, torch
from clearhead.audit.engine import feed
from clearhead.audit.part import Pass
from clearhead.heads import Heads
from clearhead.theories import max_margin
torch.manual_seed(0)
torch.set_num_threads(int(os.environ["THREADS"]))
def call():
    return Heads(layer=0, name="", scale=1.0, **{x: torch.randn(6, 3, 64, 16) for x in ("q", "k", "v", "out")})
calls = [call() for _ in range(3)]
feed(Pass(theories=[max_margin.THEORY]), calls[0])
pass_ = Pass(theories=[max_margin.THEORY])
started = time.process_time()
for call in calls:
    feed(pass_, call)
print(time.process_time() - started)
"""


def _work() -> None:
    while True:
        sum(range(10_000))


@pytest.fixture
def _busy() -> Iterator[None]:
    """Keep every processor busy with another process."""
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_work, daemon=True) for _ in range(os.cpu_count() or 1)]
    for other in others:
        other.start()
    time.sleep(0.5)
    yield
    for other in others:
        other.kill()
        other.join()


@pytest.mark.usefixtures("_busy")
def test_two_threads_take_about_the_processor_time_of_one() -> None:
    """Threads that wait by spinning, the default of OpenMP, would take several times as much."""
    seconds = []
    for threads in ("1", "2"):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
        environment["THREADS"] = threads
        done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
        seconds.append(float(done.stdout))
    assert seconds[1] < 2 * seconds[0] + 0.5
