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
from collections.abc import MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from clearhead.audit.engine import feed
from clearhead.audit.part import Pass
from clearhead.audit.transfer import Channel
from clearhead.errors import ClearheadError, InputError, NotEnoughMemoryError
from clearhead.heads import Heads
from clearhead.numerics.memory import peak_memory, return_freed_memory
from clearhead.theories.theory import Theory

__all__ = ["MOST_WORKERS", "WAITING_CALLS", "OneProcess", "Workers", "usable_workers"]

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


class OneProcess:
    """This process, which measures all layers itself. It is used as `Workers` are."""

    added_memory = 0

    def __init__(self, theories: Sequence[Theory]) -> None:
        self._seconds = dict.fromkeys((theory.title for theory in theories), 0.0)

    def __enter__(self) -> "OneProcess":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def begin(self, pass_: Pass) -> None:
        """Measure the calls that follow for this pass."""
        self._pass = pass_

    def feed(self, heads: Heads, *, inputs: int | None, ahead: int) -> None:
        """Measure one call."""
        feed(self._pass, heads, inputs=inputs, ahead=ahead, seconds=self._seconds)

    def finish(self) -> None:
        """Do nothing: the pass is finished when its findings are made."""

    def collect(self, seconds: MutableMapping[str, float]) -> None:
        """Add the time of each theory."""
        for title, taken in self._seconds.items():
            seconds[title] += taken
            self._seconds[title] = 0.0


class Workers:
    """The processes that measure the layers of an audit. Used as a context, which ends them.

    added_memory: bytes that the processes took at their peaks, beyond what they share with this one
    """

    def __init__(self, count: int, theories: Sequence[Theory]) -> None:
        self.added_memory = 0
        self._passes: list[Pass] = []
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

    def begin(self, pass_: Pass) -> None:
        """Measure the calls that follow for this pass, from the sums that it has."""
        state = pass_.state() | {"texts": []}
        self._passes.append(pass_)
        for number, worker in enumerate(self._workers):
            layers = {
                key: [entry for entry in entries if self._owner(entry["layer"]) == number]
                for key, entries in state["layers"].items()
            }
            worker.put(("begin", state | {"layers": layers}))

    def feed(self, heads: Heads, *, inputs: int | None, ahead: int) -> None:
        """Send one call to the worker of its layer. Wait while it has enough calls."""
        self._workers[self._owner(heads.layer)].put(("feed", heads, inputs, ahead))

    def finish(self) -> None:
        """Let the workers finish the pass, whose calls are all sent, while further passes follow."""
        for worker in self._workers:
            worker.put(("finish",))

    def collect(self, seconds: MutableMapping[str, float]) -> None:
        """Wait until all calls are measured, and give the passes their sums. Only the last pass may go on."""
        if not self._passes:
            return
        for worker in self._workers:
            worker.put(("collect",))
        replies = [worker.reply() for worker in self._workers]
        self.added_memory = sum(reply["memory"] for reply in replies)
        for title in seconds:
            seconds[title] += sum(reply["seconds"].get(title, 0.0) for reply in replies)
        for index, pass_ in enumerate(self._passes):
            states = [reply["passes"][index] for reply in replies]
            keys = [theory.key for theory in pass_.theories]
            pass_.restore({key: [entry for state in states for entry in state[key]] for key in keys})
        del self._passes[:-1]

    def close(self) -> None:
        """End the processes, also if they are measuring."""
        for worker in self._workers:
            worker.end()

    def _owner(self, layer: int) -> int:
        return layer % len(self._workers)


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
    passes: list[Pass] = []
    seconds = dict.fromkeys((theory.title for theory in theories), 0.0)
    before = peak_memory() or 0
    background = ThreadPoolExecutor(1)  # so that calls of the baseline do not wait for a large problem
    finished: list[Future[dict[str, float]]] = []
    try:
        with torch.no_grad():
            while True:
                kind, *arguments = channel.receive()
                answer: dict[str, Any] | None = None
                if kind == "begin":
                    passes.append(Pass.from_state(arguments[0], theories))
                elif kind == "feed":
                    heads, inputs, ahead = arguments
                    feed(passes[-1], heads, inputs=inputs, ahead=ahead, seconds=seconds)
                    del heads, arguments
                    return_freed_memory()
                elif kind == "finish":
                    finished.append(background.submit(_finish, passes[-1]))
                else:
                    for taken in (each.result() for each in finished):
                        seconds = {title: x + taken.get(title, 0.0) for title, x in seconds.items()}
                    finished.clear()
                    states = [each.state()["layers"] for each in passes]
                    added = (peak_memory() or 0) - before - channel.shared  # which the main process counts
                    answer = {"passes": states, "seconds": seconds, "memory": added}
                    del passes[:-1]
                    seconds = dict.fromkeys(seconds, 0.0)
                channel.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the main process has ended, or needs no more
    except BaseException as error:
        channel.send(_sendable(error))
    os._exit(0)  # nothing that this process shares with the main one is flushed or removed twice


def _finish(pass_: Pass) -> dict[str, float]:
    """Finish a pass that no call follows; return the seconds of each theory by its title."""
    seconds = {}
    for theory in pass_.theories:
        start = time.perf_counter()
        for layer in pass_.layers_of(theory):
            layer.finish(last=True)
        seconds[theory.title] = time.perf_counter() - start
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
