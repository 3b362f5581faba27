"""Work on several threads gives the same results as on one."""

import threading

import pytest
import scipy.linalg  # noqa: F401  brings its BLAS
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from clearhead.numerics.threads import one_thread, one_thread_each


@pytest.fixture
def _two_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_two_threads")
def test_results_are_in_order_and_computed_on_one_thread() -> None:
    meeting = threading.Barrier(2, timeout=60)
    seen = []

    def work(item: int) -> int:
        if item < 2:
            meeting.wait()  # both threads must wait here at the same time
        seen.append((torch.get_num_threads(), torch.is_grad_enabled()))
        return item * item

    assert one_thread_each(work, range(7)) == [0, 1, 4, 9, 16, 25, 36]
    assert set(seen) == {(1, False)}
    assert torch.get_num_threads() == 2
    assert torch.is_grad_enabled()


@pytest.mark.usefixtures("_two_threads")
def test_errors_are_raised_in_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        one_thread_each(lambda item: 1 // item, [3, 0, 1])
    assert torch.get_num_threads() == 2
    assert one_thread_each(str, []) == []


@pytest.mark.usefixtures("_two_threads")
def test_the_number_of_threads_is_restored() -> None:
    with one_thread():
        assert torch.get_num_threads() == 1
        assert one_thread_each(lambda _: threading.current_thread(), [0, 1]) == [threading.current_thread()] * 2
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("_two_threads")
def test_workers_are_as_many_as_the_threads_outside() -> None:
    meeting = threading.Barrier(2, timeout=60)
    with one_thread(workers=True):
        assert torch.get_num_threads() == 1
        assert one_thread_each(lambda _: meeting.wait() >= 0 and torch.get_num_threads(), [0, 1]) == [1, 1]
        with one_thread():
            assert one_thread_each(lambda _: threading.current_thread(), [0, 1]) == [threading.current_thread()] * 2
    assert torch.get_num_threads() == 2


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_blas_uses_one_thread_inside_and_is_restored() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with one_thread():
            entered.set()
            leave.wait(60)

    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        compared = threading.Thread(target=other)
        with one_thread():
            assert set(blas_threads()) == {1}
            compared.start()
            assert entered.wait(60)
        leave.set()
        compared.join()
        # Some packages bundle a library that always uses one thread.
        assert 2 in before
        assert blas_threads() == before
        with one_thread(), one_thread():
            assert set(blas_threads()) == {1}
        with pytest.raises(ZeroDivisionError), one_thread():
            _ = 1 // 0
        assert blas_threads() == before
