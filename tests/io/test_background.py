"""The writing thread: order, a bounded queue, failures, a hung disk, a fork."""

import logging
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

import msmon_io.background
from msmon_io import Background


def test_jobs_run_in_order_beside_the_caller() -> None:
    done: list[tuple[int, int]] = []
    with Background() as background:
        for number in range(100):
            assert background.submit(lambda n: done.append((n, threading.get_ident())), number)
        assert background.drain()
        assert [number for number, _ in done] == list(range(100))
    assert {thread for _, thread in done} != {threading.get_ident()}
    assert len({thread for _, thread in done}) == 1
    assert background.close()
    # Nothing is lost after the end: it runs at once.
    background.submit(lambda: done.append((100, threading.get_ident())))
    assert done[-1] == (100, threading.get_ident())
    assert not [thread for thread in threading.enumerate() if thread.name == "msmon-writer"]


def test_a_full_queue_waits(caplog: pytest.LogCaptureFixture) -> None:
    background = Background()
    go_on = threading.Event()
    background.submit(go_on.wait)
    # Nothing is taken while a job runs, so that a kill loses that one job only.
    released = threading.Timer(0.05, go_on.set)
    released.start()
    assert background.submit(go_on.clear)
    assert background.drain()
    assert (background.waits, background.waited_s > 0) == (1, True)
    for _ in range(3):
        background.submit(go_on.wait)
        threading.Timer(0.02, go_on.set).start()
        background.submit(go_on.clear)
    assert background.close()
    assert background.waits >= 3
    assert background.losses.failures == 0
    # Waiting some hundredths of a second is nothing to warn of.
    assert caplog.messages == []


def test_waiting_is_said_once_where_it_takes_a_share_of_the_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(msmon_io.background, "time", SimpleNamespace(monotonic=lambda: now[0]))
    background = Background()

    def steps(number: int, *, length: float, wait: float) -> None:
        """Each step waits for the job of the step before, whose end is `wait` seconds later."""
        for _ in range(number):
            now[0] += length
            before, running = background.waits, threading.Event()

            def job(before: int = before, running: threading.Event = running) -> None:
                running.set()
                while background.waits == before:
                    time.sleep(0)
                with background._changed:  # the caller has looked at the clock and waits
                    now[0] += wait

            assert background.submit(job)
            assert running.wait(10)
            assert background.submit(int)
            assert background.drain(10)

    steps(20, length=0.004, wait=0.004)  # as much as it computes, but less than a second
    steps(20, length=100.0, wait=0.9)  # in all 18 s, of half an hour
    assert background.waited_s == pytest.approx(18.08)
    assert caplog.messages == []
    steps(6, length=1.0, wait=0.5)
    assert caplog.messages == []  # as at the start of a training: too early to say
    steps(4, length=1.0, wait=0.5)
    assert caplog.messages == [
        "writing is slower than the training, which has waited for it 3.5 of the last 10.5 s (said once); "
        "record fewer tensors or fewer steps"
    ]
    assert background.close()


def test_failures_are_said_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    def fail(error: BaseException) -> None:
        raise error

    done: list[int] = []
    with Background() as background:
        for error in (OSError("disk"), ValueError("value"), SystemExit(3), KeyboardInterrupt()):
            background.submit(fail, error)
            background.submit(done.append, 1)
    assert len(done) == 4
    errors = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 2
    assert "OSError: disk" in errors[0]
    assert "4 jobs could not be written (4 failures" in errors[1]


def test_a_hung_job_does_not_stop_the_training_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    background = Background(patience=0.05)
    go_on = threading.Event()
    done: list[int] = []
    background.submit(go_on.wait)
    assert not background.submit(done.append, 1)
    waits = background.waits
    assert not background.submit(done.append, 2)
    assert background.waits == waits, "waited again for a job that is known to hang"
    assert not background.drain(timeout=0.01)
    go_on.set()
    assert background.drain(timeout=10)
    assert background.submit(done.append, 3)
    assert background.drain(timeout=10)
    assert done == [3]
    go_on.clear()
    background.submit(go_on.wait)
    assert not background.close(timeout=0.05)
    go_on.set()
    assert background.losses.lost == 3
    assert "the job before it is not done after 0.05 s" in caplog.text


def test_a_job_may_submit_without_waiting_for_itself() -> None:
    background = Background()
    taken: list[bool] = []
    background.submit(lambda: taken.append(background.submit(print)))
    assert background.drain(timeout=10)
    assert taken == [False]
    assert background.losses.lost == 1
    assert background.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_nothing() -> None:
    background = Background()
    go_on = threading.Event()
    background.submit(go_on.wait)
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        # The queue is full and the thread is not here: any wait would never end.
        silent = not background.submit(os._exit, 4) and background.drain() and background.close()
        os._exit(0 if silent else 3)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    go_on.set()
    assert background.close()
