"""No temporary grows with the input."""

import tracemalloc

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from msmon_stats import partial, partial_many

SIZE = 16 * 2**20


@pytest.fixture(autouse=True, scope="module")
def _compiled():
    """The compiler, and what torch imports for the first operator that is watched, take memory of their own, once."""
    for kernel in ("cpu", "operators"):
        with Allocations():
            partial(torch.zeros(3), kernel=kernel)
        partial(np.zeros(3, dtype=np.float32), kernel=kernel)


class Allocations(TorchDispatchMode):
    """The largest memory that an operator gave back which is not that of an input."""

    def __init__(self, *inputs):
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() not in self.known:
                self.largest = max(self.largest, value.untyped_storage().nbytes())
        return result


ARRANGEMENTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.mT,
    "strided": lambda x: x[:, ::2],
    "expanded": lambda x: x[None].expand(3, *x.shape),
}


@pytest.mark.parametrize(
    ("kernel", "name"),
    [*(("cpu", name) for name in ARRANGEMENTS), ("operators", "strided")],
)
def test_torch(kernel, name):
    whole = torch.zeros(4096, SIZE // 4096)
    tensor = ARRANGEMENTS[name](whole)
    with Allocations(whole) as seen:
        tracemalloc.start()
        partial(tensor, kernel=kernel)
        python = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert seen.largest <= 0.01 * 4 * SIZE
    assert python <= 0.01 * 4 * SIZE


def test_many_torch_tensors():
    tensors = list(torch.zeros(512, SIZE // 512))
    with Allocations(*tensors) as seen:
        partial_many(tensors, kernel="cpu")
    assert seen.largest <= 64 * len(tensors)


@pytest.mark.parametrize("kernel", ["cpu", "operators"])
def test_numpy(kernel):
    array = np.zeros((4096, SIZE // 4096), dtype=np.float32)
    for view in (array, array.T, array[:, ::2], array[::-1]):
        tracemalloc.start()
        partial(view, kernel=kernel)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # numpy's operators hold several float64 pieces of 512 KiB at a time.
        assert peak <= (0.01 if kernel == "cpu" else 0.05) * array.nbytes
