"""torch tensors on the CPU, by torch's operators and by the compiled kernel."""

import numpy as np
import pytest
import torch

import msmon_stats
from msmon_stats import partial, summarize
from msmon_stats.torch import PartialBuffer

from .conformance import Conformance
from .fingerprint_conformance import FingerprintConformance


class TensorConformance(FingerprintConformance, Conformance):
    # Wide unsigned integers came with torch 2.3.
    missing = tuple(name for name in ("uint16", "uint32", "uint64") if not hasattr(torch, name))

    def make(self, values, dtype):
        return torch.from_numpy(np.array(values)).to(getattr(torch, dtype))

    def make_integers(self, values):
        return torch.from_numpy(values)

    def exact(self, tensor):
        tensor = tensor.detach()
        return (tensor.abs() if tensor.is_complex() else tensor).to(torch.float64).numpy()

    def host(self, result):
        return result.numpy()

    def content(self, tensor):
        values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().view(-1)
        numbers = torch.view_as_real(values).view(-1) if values.is_complex() else values
        return tensor.numel(), numbers.view(torch.uint8).numpy().tobytes()

    def views(self, tensor):
        return [
            ("transposed", tensor.mT),
            ("permuted", tensor.permute(1, 2, 0)),
            ("every second", tensor[::2]),
            ("a column", tensor[:, 1]),
            ("a last axis", tensor[..., 2]),
            ("a slice of the last axis", tensor[..., 2:5].permute(2, 0, 1)),
            ("expanded", tensor[None].expand(3, *tensor.shape)),
            ("one value expanded", tensor[0, 0, 0].expand(7, 5)),
            ("overlapping", tensor.unfold(1, 3, 2)),
            ("one of them", tensor[1, 2, 3]),
            ("channels last", tensor[None].contiguous(memory_format=torch.channels_last)),
            ("parameter", torch.nn.Parameter(tensor)),
            ("with a history", (torch.nn.Parameter(tensor) * 2).mT),
        ]

    def unsupported(self):
        freed = torch.ones(10)
        part_of_freed = freed[4:]
        freed.untyped_storage().resize_(0)
        nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])
        return [
            (torch.zeros(3, device="meta"), "meta"),
            (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "quantized"),
            (nested.transpose(1, 2), "holes"),
            (freed, "freed"),
            (part_of_freed, "freed"),
        ]

    def test_sparse_counts_the_zeros_that_are_not_stored(self):
        dense = torch.zeros(6, 5)
        dense[1, 2], dense[3, 3] = -2.0, 4.0
        twice = torch.sparse_coo_tensor([[0, 0, 2]], [1.0, 2.0, -3.0], (10,), check_invariants=True)
        negative = torch.sparse_coo_tensor([[1]], [-3.0], (4,), check_invariants=True)
        for sparse in (dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc(), twice, negative):
            row = partial(sparse, kernel=self.kernel)
            dense_row = partial(sparse.to_dense(), kernel=self.kernel)
            torch.testing.assert_close(row, dense_row, rtol=self.rtol, atol=10 * self.rtol)
        assert partial(twice, kernel=self.kernel).tolist() == [10, 0, 0, 8, -3, 3, 0, 18]

    def test_negative_and_conjugate_views(self):
        values = torch.complex(torch.tensor([1.0, -2.0]), torch.tensor([3.0, 4.0]))
        imaginary = values.conj().imag
        assert imaginary.is_neg()
        assert partial(imaginary, kernel=self.kernel).tolist()[4:7] == [-4.0, -3.0, -7.0]
        assert partial(values.conj(), kernel=self.kernel)[5].item() == pytest.approx(abs(-2 + 4j))

    def test_fingerprint_of_negative_and_conjugate_views(self):
        conjugate = self.numbers("complex64", (7, 9)).conj()
        tensors = [conjugate, conjugate.mT, conjugate.imag, conjugate.imag.mT]
        assert self.found(tensors) == self.expected(tensors)

    def test_sparse_tensors_have_no_fingerprint(self):
        dense = torch.eye(3)
        sparse = [dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc()]
        assert self.found([*sparse, dense]) == ["", "", "", *self.expected([dense])]

    def test_eps_as_a_tensor(self):
        values = torch.tensor([0.5, 2.0, 0.0])
        for eps in (torch.tensor(1.0), torch.tensor(1.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.bfloat16)):
            assert partial(values, eps, kernel=self.kernel)[3] == 2

    def test_subclass_of_a_tensor(self):
        class Named(torch.Tensor):
            pass

        tensor = torch.ones(4).as_subclass(Named)
        assert summarize(tensor, ["norm"], kernel=self.kernel) == {"norm": 2.0}

    def test_wrappers_without_memory(self):
        from torch._subclasses import FakeTensorMode

        with FakeTensorMode() as mode:
            fake = torch.ones(3)
        assert mode is not None
        assert "without memory" in msmon_stats.unsupported_reason(fake)
        seen = []

        def record(row):
            buffer = PartialBuffer(kernel=self.kernel)
            seen.append(
                (msmon_stats.unsupported_reason(row), buffer.measure([row], 1e-8), buffer.measure([row] * 2, 1e-8))
            )
            return row.sum()

        torch.vmap(record)(torch.ones(2, 3))
        reason, one, two = seen[0]
        assert "without memory" in reason
        assert (one, two) == ([-1], [-1, -1])


class TestTorchOperators(TensorConformance):
    kernel = "operators"


class TestTorchFloat32(TensorConformance):
    kernel = "float32"
    rtol = 1e-6
    repeats = 1e-15


class TestTorchCompiled(TensorConformance):
    kernel = "cpu"

    def test_several_devices_are_refused(self):
        from torch._subclasses import FakeTensorMode

        try:
            with FakeTensorMode():
                elsewhere = torch.ones(3, device="cuda")
        except RuntimeError as error:
            pytest.skip(f"older builds for CUDA make no such tensor without a GPU: {error}")
        with pytest.raises((ValueError, msmon_stats.UnsupportedTensorError)):
            msmon_stats.partial_many([torch.ones(3), elsewhere])


def test_local_part_of_a_dtensor(tmp_path):
    pytest.importorskip("torch.distributed.device_mesh", reason="public since torch 2.2")
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        whole = torch.arange(12.0).reshape(3, 4)
        sharded = distribute_tensor(whole, DeviceMesh("cpu", [0]), [Shard(0)])
        for kernel in ("cpu", "operators"):
            assert partial(sharded, kernel=kernel).tolist() == partial(whole).tolist()
        buffer = PartialBuffer()
        assert buffer.measure([sharded, whole.mT, torch.nn.Parameter(sharded)], 1e-8) == [0, 1, 2]
        assert buffer.transfer().matrix()[:, 6].tolist() == [66.0] * 3
    finally:
        dist.destroy_process_group()


def test_64_million_values():
    values = torch.randn(64 * 2**20, generator=torch.Generator().manual_seed(0)).add_(0.01)
    exact_sum = exact_squares = 0.0
    for chunk in values.split(2**20):
        wide = chunk.double()
        exact_sum += wide.sum().item()
        exact_squares += wide.square().sum().item()
    for kernel in ("cpu", "operators", "float32"):
        found = summarize(values, ["mean", "norm", "min", "max"], kernel=kernel)
        assert found["mean"] == pytest.approx(exact_sum / len(values), rel=1e-6)
        assert found["norm"] == pytest.approx(exact_squares**0.5, rel=1e-6)
        assert (found["min"], found["max"]) == (values.min().item(), values.max().item())


def test_float16_and_bfloat16_norms_do_not_depend_on_the_split():
    for dtype in (torch.float16, torch.bfloat16):
        values = torch.full((1000, 1000), 100.0, dtype=dtype)
        whole = partial(values)
        assert summarize(values, ["norm"])["norm"] == pytest.approx(1e5, rel=1e-12)
        rows = msmon_stats.partial_many(list(values))
        assert rows[:, 7].sum() == whole[7]
