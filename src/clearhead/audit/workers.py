"""Worker processes: theories are measured while the model runs on.

Every layer belongs to one process, which gets its calls in order. So each sum is computed as in an audit without
workers, to the last bit, and what a theory keeps for a layer is kept once. Processes are forked: they need neither time
to start nor copies of the theories. Threads would wait for Python: theories are many operations on small matrices.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Mapping, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from clearhead.audit.engine import Measurement
from clearhead.audit.parts import Run, Span
from clearhead.audit.transfer import Channel
from clearhead.errors import ClearheadError, InputError, NotEnoughMemoryError
from clearhead.heads import Heads
from clearhead.numerics.memory import peak_memory, return_freed_memory
from clearhead.theories.theory import Theory

__all__ = ["MOST_WORKERS", "WAITING_CALLS", "Workers", "observe", "usable_workers"]

MOST_WORKERS = 8
"""Largest number of workers that is chosen automatically. Each needs memory for a call and its theories."""
WAITING_CALLS, WAITING_BYTES = 8, 2**25
"""How many calls wait for each worker, at most, and from how many bytes on no further one; then the model waits too."""


def usable_workers(wanted: int | None, device: torch.device) -> int:
    """Return the number of worker processes; 1 if theories are measured in this process.

    wanted: None for one for each thread of torch, up to `MOST_WORKERS`, where processes can be forked
    """
    forks = sys.platform == "linux" and "fork" in multiprocessing.get_all_start_methods()
    obstacle = (
        f"theories on the device {device} are measured in one process"
        if device.type != "cpu"
        else "this system cannot fork processes safely"
        if not forks
        else ""
    )
    if wanted is None:
        return 1 if obstacle else min(torch.get_num_threads(), MOST_WORKERS)
    if wanted < 1:
        raise InputError(f"workers is a number of processes from 1 on, not {wanted}")
    if wanted > 1 and obstacle:
        raise InputError(f"{obstacle}; leave the number of workers out, or give 1")
    return wanted


def observe(
    measurements: Sequence[Measurement],
    heads: Heads,
    *,
    inputs: int | None,
    lead: bool,
    seconds: MutableMapping[str, float],
) -> None:
    """Give one call to every measurement. `seconds` gains the time of each theory by its title.

    lead: whether another part counts the inputs, and only their groups are made here
    """
    for measurement in measurements:
        if lead and measurement.theory.grouping is None:
            continue
        start = time.perf_counter()
        measurement.observe(heads, inputs=inputs)
        seconds[measurement.theory.title] += time.perf_counter() - start


class Workers:
    """The processes that measure the layers of an audit. Used as a context, which ends them.

    added_memory: bytes that the processes took at their peaks, beyond what they share with this one
    """

    def __init__(self, count: int, theories: Sequence[Theory]) -> None:
        self.added_memory = 0
        self._runs: list[Run] = []
        self._workers: list[_Worker] = []
        try:
            for _ in range(count):
                self._workers.append(_Worker(theories, [worker.connection for worker in self._workers]))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def begin(self, run: Run, span: Span) -> None:
        """Measure the calls that follow for this run, from the sums that it has."""
        states = [measurement.state() for measurement in run.measurements]
        self._runs.append(run)
        for number, worker in enumerate(self._workers):
            own = [
                state | {"layers": [entry for entry in state["layers"] if self._owner(entry["layer"]) == number]}
                for state in states
            ]
            worker.put(("begin", own, span.first, span.lead_inputs))

    def observe(self, heads: Heads, *, inputs: int | None, lead: bool) -> None:
        """Send one call to the worker of its layer. Wait while it has enough calls."""
        self._workers[self._owner(heads.layer)].put(("observe", heads, inputs, lead))

    def predict(self) -> None:
        """Let the workers compute the predictions of the run, whose calls are all sent, while further runs follow."""
        for worker in self._workers:
            worker.put(("predict",))

    def collect(self, seconds: MutableMapping[str, float]) -> None:
        """Wait until all calls are measured, and give the runs their sums. Only the last run may go on."""
        if not self._runs:
            return
        for worker in self._workers:
            worker.put(("collect",))
        replies = [worker.reply() for worker in self._workers]
        self.added_memory = sum(reply["memory"] for reply in replies)
        for title in seconds:
            seconds[title] += sum(reply["seconds"].get(title, 0.0) for reply in replies)
        for index, run in enumerate(self._runs):
            run.measurements = [
                _united([reply["runs"][index][place] for reply in replies], measurement.theory)
                for place, measurement in enumerate(run.measurements)
            ]
        del self._runs[:-1]

    def close(self) -> None:
        """End the processes, also if they are measuring."""
        for worker in self._workers:
            worker.end()

    def _owner(self, layer: int) -> int:
        return layer % len(self._workers)


def _united(states: Sequence[Mapping[str, Any]], theory: Theory) -> Measurement:
    """Return the measurement whose layers were measured by several workers."""
    layers = sorted((entry for state in states for entry in state["layers"]), key=lambda entry: entry["layer"])
    return Measurement.from_state({**states[0], "layers": layers}, theory)


class _Worker:
    """One process. It answers every message, with None unless more is asked for, or with the error that ended it."""

    def __init__(self, theories: Sequence[Theory], inherited: Sequence[Connection]) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, other = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_work, args=(other, [*inherited, self.connection], theories), daemon=True
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, which the child never uses
            self._process.start()
        other.close()
        self._channel = Channel(self.connection)
        self._unanswered: deque[int] = deque()
        """Bytes of the messages without an answer."""

    def put(self, message: Any) -> None:
        """Send a message; wait while enough are waiting. Raise the worker's error if it has failed."""
        while self._is_full() or self.connection.poll():
            self._answer()
        try:
            self._unanswered.append(self._channel.send(message))
        except (BrokenPipeError, ConnectionResetError):  # the worker has ended: its answers say why
            self.reply()

    def _is_full(self) -> bool:
        _, *waiting = self._unanswered or [0]  # the first is being measured
        return bool(waiting) and (len(waiting) >= WAITING_CALLS or sum(waiting) >= WAITING_BYTES)

    def reply(self) -> dict[str, Any]:
        """Return the worker's next answer that is not None; raise its error."""
        while (answer := self._answer()) is None:
            pass
        return answer

    def _answer(self) -> dict[str, Any] | None:
        try:
            answer = self._channel.receive()
        except (EOFError, OSError):
            self._process.join(timeout=1)
            raise NotEnoughMemoryError(
                f"a worker process ended unexpectedly (exit code {self._process.exitcode}), perhaps because memory ran "
                "out; audit with --workers 1 (in Python workers=1) or in smaller batches"
            ) from None
        self._unanswered.popleft()
        if isinstance(answer, BaseException):
            raise answer
        assert answer is None or isinstance(answer, dict)
        return answer

    def end(self) -> None:
        """Stop the process."""
        self._process.kill()
        self._process.join()
        self.connection.close()


def _work(connection: Connection, inherited: Sequence[Connection], theories: Sequence[Theory]) -> None:
    """Answer messages until the other end is closed."""
    channel = Channel(connection)
    for other in inherited:
        other.close()  # or the pipe would outlive the main process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the main one ends the others
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    by_key = {theory.key: theory for theory in theories}
    runs: list[list[Measurement]] = []
    seconds = dict.fromkeys((theory.title for theory in theories), 0.0)
    before = peak_memory() or 0
    background = ThreadPoolExecutor(1)  # so that calls of the baseline do not wait for a large problem
    predictions: list[Future[dict[str, float]]] = []
    try:
        with torch.no_grad():
            while True:
                kind, *arguments = channel.receive()
                answer: dict[str, Any] | None = None
                if kind == "begin":
                    states, first, lead = arguments
                    runs.append(
                        [Measurement.from_state(s, by_key[s["theory"]], first=first, lead=lead) for s in states]
                    )
                elif kind == "observe":
                    heads, inputs, of_lead = arguments
                    observe(runs[-1], heads, inputs=inputs, lead=of_lead, seconds=seconds)
                    del heads, arguments
                    return_freed_memory()
                elif kind == "predict":
                    predictions.append(background.submit(_predict, runs[-1]))
                else:
                    for taken in (prediction.result() for prediction in predictions):
                        seconds = {title: x + taken.get(title, 0.0) for title, x in seconds.items()}
                    predictions.clear()
                    states = [[measurement.state() for measurement in run] for run in runs]
                    added = (peak_memory() or 0) - before - channel.shared  # which the main process counts
                    answer = {"runs": states, "seconds": seconds, "memory": added}
                    del runs[:-1]
                    seconds = dict.fromkeys(seconds, 0.0)
                channel.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the main process has ended, or needs no more
    except BaseException as error:
        channel.send(_sendable(error))
    os._exit(0)  # nothing that this process shares with the main one is flushed or removed twice


def _predict(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Compute the predictions of a run; return the seconds of each theory by its title."""
    seconds = {}
    for measurement in measurements:
        start = time.perf_counter()
        measurement.predict(last=True)
        seconds[measurement.theory.title] = time.perf_counter() - start
    return seconds


def _sendable(error: BaseException) -> BaseException:
    """Return the error, with its traceback if it is a defect; another one if it cannot be pickled."""
    text = "".join(traceback.format_exception(error))
    if not isinstance(error, ClearheadError):
        error.add_note(f"in a worker process:\n{text}")
    try:
        same = pickle.loads(pickle.dumps(error))  # noqa: S301  just made
        return error if type(same) is type(error) else RuntimeError(text)
    except Exception:
        return RuntimeError(text)
