"""Long tensors are shared among threads: concurrently, after a fork, and without torch's team."""

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import torch

from msmon_stats import fingerprints, partial, partial_many
from msmon_stats.cpu import team

from . import reference


@pytest.fixture(scope="module")
def values():
    return np.random.default_rng(1).standard_normal(1_500_001).astype(np.float32)


@pytest.fixture(params=["torch's team", "our pool", "alone"])
def _team_of(request, monkeypatch):
    if request.param == "our pool":
        monkeypatch.setattr(team, "openmp_fork", lambda: 0)
    monkeypatch.setattr(team, "thread_count", lambda: 1 if request.param == "alone" else 3)


@pytest.mark.usefixtures("_team_of")
def test_the_numbers_do_not_depend_on_the_threads(values):
    tensors = [torch.from_numpy(values[:size]) for size in (1_500_001, 0, 700_000, 3, 131_072, 131_073)]
    tensors += [torch.from_numpy(values[i : i + 1000]) for i in range(0, 300_000, 1000)]
    rows = partial_many(tensors, 0.5, kernel="cpu").numpy()
    for row, tensor in zip(rows, tensors, strict=True):
        expected = reference.partials(tensor.numpy(), 0.5)
        np.testing.assert_array_equal(row[:6], expected[:6])
        np.testing.assert_allclose(row[6:], expected[6:], rtol=1e-9, atol=1e-9)
    wide = partial_many(tensors, 0.5, kernel="cpu", fingerprint=True).numpy()
    np.testing.assert_array_equal(wide[:, :8], rows)
    contents = [(tensor.numel(), tensor.numpy().tobytes()) for tensor in tensors]
    assert fingerprints(wide) == [reference.fingerprint(*content) for content in contents]
    # In pieces or at once: bit for bit the same in every arrangement of threads.
    np.testing.assert_array_equal(rows[0], _alone(tensors[0]))


def _alone(tensor):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "thread_count", lambda: 2)
        return partial(tensor, 0.5, kernel="cpu").numpy()


@pytest.mark.usefixtures("_team_of")
def test_many_callers_at_once(values):
    tensor = torch.from_numpy(values)
    expected = partial(tensor, kernel="cpu")
    wrong = []

    def work():
        for _ in range(20):
            if not torch.equal(partial(tensor, kernel="cpu"), expected):
                wrong.append(1)

    callers = [threading.Thread(target=work) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=120)
    assert not any(caller.is_alive() for caller in callers)
    assert wrong == []


def test_after_a_fork():
    program = textwrap.dedent(
        """
        import os, torch, msmon_stats
        torch.set_num_threads(2)
        x = torch.ones(1_000_000)
        parent = msmon_stats.partial(x, kernel="cpu")
        msmon_stats.partial(x.numpy(), kernel="cpu")
        for _ in range(2):
            child = os.fork()
            if child == 0:
                same = torch.equal(msmon_stats.partial(x, kernel="cpu"), parent)
                os._exit(0 if same else 7)
            assert os.waitpid(child, 0)[1] == 0
            assert torch.equal(msmon_stats.partial(x, kernel="cpu"), parent)
        print("both")
        """
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=120, env=os.environ
    )
    assert done.stdout == "both\n", done.stderr


def test_an_interrupt_leaves_no_thread_reading_freed_memory(values, monkeypatch):
    # Ctrl-C while waiting for the pool: what its threads still read is kept alive by what they run.
    works = []

    def interrupted(work, threads):
        works.append(work)
        raise KeyboardInterrupt

    monkeypatch.setattr(team, "openmp_fork", lambda: 0)
    monkeypatch.setattr(team, "thread_count", lambda: 2)
    monkeypatch.setattr(team, "run_in_pool", interrupted)
    array = values.copy()
    with pytest.raises(KeyboardInterrupt):
        partial(array, kernel="cpu")
    assert any(array is owner for owner in _flatten(works[0].__defaults__))


def _flatten(value):
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _flatten(part)
    else:
        yield value


def test_number_of_threads(monkeypatch):
    assert team.thread_count() == torch.get_num_threads()
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert 1 <= team.thread_count() <= team._MOST_POOL_THREADS
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert team.thread_count() == 1
    assert team._fork_address is None or team._fork_address >= 0
