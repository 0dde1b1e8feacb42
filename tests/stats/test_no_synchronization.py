"""Measuring never waits for a device: no value is asked for, nothing is copied to the host before the transfer.

The meta device stands in for an accelerator that is not there: operators run and give shapes, and there is no value
that could be asked for or copied to the host.
"""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import msmon_stats
from msmon_stats.torch import PartialBuffer, partials


class Operators(TorchDispatchMode):
    """Records the operators that run, and which of them ask for a value or leave the device."""

    def __init__(self):
        super().__init__()
        self.names = []
        self.waits = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name
        result = function(*args, **(kwargs or {}))
        devices = {
            value.device.type for value in (*args, result) if isinstance(value, torch.Tensor) and value.dim() > 0
        }
        self.names.append(name)
        if name in ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::nonzero", "aten::bincount"):
            self.waits.append(name)
        if name in ("aten::_to_copy", "aten::copy_") and len(devices) > 1:
            self.waits.append(f"{name} between {sorted(devices)}")
        return result


def test_the_detector_detects():
    with Operators() as seen:
        bool(torch.ones(3).sum() > 2)
    assert "aten::_local_scalar_dense" in seen.waits
    with Operators() as seen:
        torch.ones(3).to("meta")
    assert seen.waits == ["aten::_to_copy between ['cpu', 'meta']"]
    for wait in (torch.Tensor.item, torch.Tensor.cpu, bool):
        with pytest.raises((RuntimeError, NotImplementedError)):
            wait(torch.ones((), device="meta"))


def test_compiled_kernels_call_no_operator_at_all():
    tensors = [torch.randn(100), torch.randn(50, 60), torch.randn(7, 8).mT, torch.zeros(0)]
    half = [torch.randn(100).bfloat16(), torch.ones(5, dtype=torch.bool)]
    long = torch.randn(2**18)
    buffer = PartialBuffer(kernel="cpu")
    eps, scale = torch.tensor(1e-8), torch.tensor(1024.0)
    with Operators() as seen:
        handles = buffer.measure(tensors, 1e-8) + buffer.measure(half, eps) + buffer.measure([long], 1e-8, scale=scale)
        transfer = buffer.transfer()
    assert [name for name in seen.names if name != "aten::detach"] == []
    assert handles == list(range(7))
    expected = [msmon_stats.partial(tensor).numpy() for tensor in (*tensors, *half)]
    np.testing.assert_allclose(transfer.matrix()[:6], expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(1000, device="meta"),
        lambda: torch.randn(1_000_000, device="meta", dtype=torch.bfloat16),
        lambda: torch.randn(100, 200, device="meta")[:, ::3].mT,
        lambda: torch.randn(3, 4, device="meta").expand(5, 3, 4),
        lambda: torch.zeros(0, device="meta"),
        lambda: torch.zeros(40, device="meta", dtype=torch.complex64),
        lambda: torch.ones(300, device="meta", dtype=torch.int32),
        lambda: torch.ones(300, device="meta", dtype=torch.bool),
        lambda: torch.ones(300, device="meta").to(torch.float8_e4m3fn),
    ],
)
def test_operators_do_not_wait_for_a_device(make):
    tensor = make()
    out = torch.empty((1, 8), dtype=torch.float64, device="meta")
    scale = torch.ones((), device="meta")
    for eps in (1e-8, scale * 1e-8):
        with Operators() as seen:
            partials.write_rows([tensor], eps, out, "operators")
        assert len(seen.names) > 1
        assert seen.waits == []


def test_merging_does_not_wait():
    rows = torch.empty((3, 8), dtype=torch.float64, device="meta")
    with Operators() as seen:
        merged = msmon_stats.merge(rows, rows)
    assert merged.shape == (3, 8)
    assert seen.waits == []


@pytest.mark.parametrize(
    "compute",
    [
        lambda a: msmon_stats.sign_agreement(a, a),
        lambda a: msmon_stats.histogram(a, (-1.0, 0.0, 1.0)),
        lambda a: msmon_stats.adam_histograms(a, a, (0.0, 1.0), step=torch.ones((), device="meta"), betas=(0.9, 0.99)),
        lambda a: msmon_stats.attention_features(a.reshape(50, 1, 2, 20), a.reshape(50, 1, 2, 20)),
        lambda a: msmon_stats.linear_features(a),
        lambda a: msmon_stats.router_similarity(a),
        lambda a: msmon_stats.router_entropy(a),
    ],
    ids=["sign", "histogram", "adam", "attention", "linear", "similarity", "entropy"],
)
def test_features_do_not_wait(compute, monkeypatch):
    from msmon_stats.torch import math

    # Pinned memory needs the device; what it is for happens in every case.
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)

    monkeypatch.setattr(math, "_constants", {})
    values = torch.randn(40, 50, device="meta", dtype=torch.bfloat16)
    with Operators() as seen:
        result = compute(values)
    assert result.device.type == "meta"
    # Edges go to the device, once; nothing comes back.
    assert set(seen.waits) <= {"aten::_to_copy between ['cpu', 'meta']"}
    with Operators() as seen:
        compute(values)
    assert seen.waits == []
