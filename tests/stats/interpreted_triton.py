"""The GPU kernels in Triton's interpreter. ``test_triton.py`` runs this file with ``TRITON_INTERPRET=1``."""

import pytest
import torch

from .conformance import SIZES
from .test_torch import TensorConformance


class TestTriton(TensorConformance):
    kernel = "triton"
    # The interpreter takes a millisecond for each program.
    sizes = (*SIZES[::3], 16384, 16385, 2**16 + 1)
    many_values = 60_000


class TestTritonFloat32(TensorConformance):
    kernel = "float32"
    rtol = 1e-6
    repeats = 1e-15
    sizes = (*SIZES[::3], 2**16 + 1)
    many_values = 60_000


def test_a_tensor_of_more_pieces_than_are_merged_at_once():
    from msmon_stats.torch import triton_kernels

    assert triton_kernels._piece_size(10**6) == triton_kernels._PIECE
    assert 10**11 / triton_kernels._piece_size(10**11) <= triton_kernels._MOST_PIECES
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_kernels, "_MOST_PIECES", 2)
        values = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
        out = torch.empty((2, 8), dtype=torch.float64)
        triton_kernels.write_rows([values, values[:70_000]], torch.tensor(0.5, dtype=torch.float64), out)
    from msmon_stats import partial_many

    torch.testing.assert_close(out, partial_many([values, values[:70_000]], 0.5, kernel="cpu"), rtol=1e-12, atol=1e-8)


def test_the_kernel_in_float32_works():
    from msmon_stats.torch import triton_rows

    assert triton_rows.works("cpu")


def test_whether_the_kernels_in_float64_work_is_found_by_trying():
    from triton.backends import backends

    from msmon_stats.torch import kernels

    # Triton for Ascend NPUs refuses float64, in its interpreter too.
    assert kernels._triton_works("cpu") is ("ascend" not in backends)
