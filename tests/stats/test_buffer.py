"""The buffer that holds the rows of a step until one transfer takes them."""

import threading

import numpy as np
import pytest
import torch

from msmon_stats import fingerprints, partial, partial_many
from msmon_stats import numpy as array_backend
from msmon_stats.torch import PartialBuffer, float64_rows


@pytest.fixture(params=["cpu", "operators", "float32"])
def buffer(request):
    return PartialBuffer(kernel=request.param)


def test_handles_count_up_and_are_the_rows(buffer):
    assert buffer.measure([torch.ones(3), torch.zeros(2)], 1e-8) == [0, 1]
    assert buffer.measure([], 1e-8) == []
    assert buffer.measure([torch.ones(4), torch.zeros(3, device="meta"), torch.ones(5).bfloat16()], 1e-8) == [2, -1, 3]
    assert buffer.put(torch.tensor([7.0, 8.0], dtype=torch.float64)) == 4
    assert buffer.put(torch.tensor(9.0, dtype=torch.float64)) == 5
    assert buffer.measure([torch.ones(6)], 1) == [6]
    matrix = buffer.transfer().matrix()
    assert matrix[:4, 0].tolist() == [3.0, 2.0, 4.0, 5.0]
    assert matrix[4].tolist() == [7.0, 8.0, 0, 0, 0, 0, 0, 0]
    assert matrix[5].tolist() == [9.0, 0, 0, 0, 0, 0, 0, 0]
    assert matrix[6, 3] == 0


def test_a_transfer_empties_the_buffer_and_keeps_its_rows(buffer):
    buffer.measure([torch.ones(3)], 1e-8)
    first = buffer.transfer()
    assert buffer.measure([torch.ones(7), torch.ones(8)], 1e-8) == [0, 1]
    second = buffer.transfer()
    assert buffer.transfer().matrix().shape == (0, 8)
    assert first.matrix()[:, 0].tolist() == [3.0]
    assert second.matrix()[:, 0].tolist() == [7.0, 8.0]


def test_more_rows_than_a_page(buffer):
    tensors = [torch.full((2,), float(i)) for i in range(150)]
    handles = [handle for i in range(0, 150, 10) for handle in buffer.measure(tensors[i : i + 10], 1e-8)]
    assert handles == list(range(150))
    handles = buffer.measure(tensors, 1e-8)
    matrix = buffer.transfer().matrix()
    assert matrix[:, 5].tolist() == [*range(150), *range(150)]


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_rows_for_which_there_is_no_memory_leave_the_others_alone(buffer, monkeypatch, failing):
    allocations = []
    allocate = float64_rows.HostRows._page

    def or_fail(self, rows):
        allocations.append(rows)
        if len(allocations) == failing:
            raise MemoryError
        return allocate(self, rows)

    monkeypatch.setattr(float64_rows.HostRows, "_page", or_fail)
    buffer = PartialBuffer(kernel=buffer._host_rows._kernel)
    known = {}
    for i in range(500):
        try:
            (handle,) = buffer.measure([torch.full((2,), float(i))], 1e-8)
        except MemoryError:
            continue
        known[handle] = i
    assert list(known) == list(range(499))
    matrix = buffer.transfer().matrix()
    assert matrix[:, 5].tolist() == list(known.values())
    # Nothing at all was taken: nothing to transfer.
    allocations.clear()
    failing = 1
    with pytest.raises(MemoryError):
        buffer.measure([torch.ones(2)], 1e-8)
    assert buffer.transfer().matrix().shape == (0, 8)


@pytest.mark.parametrize("scale", [1024.0, torch.tensor(1024.0), torch.tensor(1024.0, dtype=torch.float64)])
def test_a_loss_scale_is_taken_out(buffer, scale):
    values = torch.tensor([3.0, -4.0, 5e-9, 0.0])
    assert buffer.measure([values * 1024, values.reshape(2, 2).mT * 1024, values.double() * 1024], 1e-8, scale) == [
        0,
        1,
        2,
    ]
    matrix = buffer.transfer().matrix()
    for row in matrix:
        np.testing.assert_allclose(row, partial(values).numpy(), rtol=1e-6)
    assert matrix[0, 3] == 2


def test_nan_and_overflow_keep_their_meaning_under_a_scale(buffer):
    buffer.measure([torch.tensor([float("inf"), float("nan"), 2.0])], 1e-8, 2.0)
    assert buffer.transfer().matrix()[0].tolist() == [3, 1, 1, 0, 1, np.inf, np.inf, np.inf]


def test_gradients_with_a_history_and_freed_memory(buffer):
    parameter = torch.nn.Parameter(torch.ones(3))
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    assert buffer.measure([parameter * 2, freed, parameter], 1e-8) == [0, -1, 1]
    assert buffer.measure([freed], 1e-8) == [-1]
    assert buffer.transfer().matrix()[:, 6].tolist() == [6.0, 3.0]


def test_several_threads(buffer):
    tensors = [torch.full((100,), float(i)) for i in range(40)]
    handles = {}

    def work(start):
        for i in range(start, 40, 4):
            handles[i] = buffer.measure([tensors[i]], 1e-8)[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    matrix = buffer.transfer().matrix()
    assert sorted(handles.values()) == list(range(40))
    assert all(matrix[handle, 5] == i for i, handle in handles.items())


def test_the_buffer_keeps_no_tensor_alive(buffer):
    import weakref

    tensor = torch.ones(300_000)
    alive = weakref.ref(tensor)
    buffer.measure([tensor], 1e-8)
    del tensor
    assert alive() is None


def test_the_same_for_arrays():
    buffer = array_backend.PartialBuffer()
    assert buffer.measure([np.ones(3), np.array(["a"]), np.full(2, 8.0)], 1e-8, 2.0) == [0, -1, 1]
    assert buffer.put([5.0]) == 2
    matrix = buffer.transfer().matrix()
    assert matrix[:, 6].tolist() == [1.5, 8.0, 0.0]
    assert matrix[2, 0] == 5.0
    assert buffer.transfer().matrix().shape == (0, 8)


@pytest.mark.parametrize("kernel", ["cpu", "operators"])
def test_fingerprints_are_of_what_is_stored(kernel):
    values = [torch.tensor([3.0, -4.0, 5e-9]), torch.arange(6.0).reshape(2, 3).mT]
    expected = fingerprints(partial_many(values, fingerprint=True).numpy())
    buffer = PartialBuffer(kernel=kernel, fingerprint=True)
    buffer.measure(values, 1e-8, 1024.0)
    first = buffer.put(torch.arange(13.0))
    buffer.measure(values[:1], 1e-8)
    matrix = buffer.transfer().matrix()
    assert fingerprints(matrix[:2]) == expected
    assert fingerprints(matrix[4:]) == expected[:1]
    assert matrix[first : first + 2].ravel().tolist() == [*range(13), *[0] * 7]
    # And of numpy's.
    arrays = array_backend.PartialBuffer(fingerprint=True)
    arrays.measure([one.numpy() for one in values], 1e-8, 1024.0)
    assert fingerprints(arrays.transfer().matrix()) == expected
