"""Speed of the statistics on the CPU, as ratios to torch's own sum and norms within one run.

``make bench ARGS="-k stats"`` prints the table; with ``--benchmark-json=FILE`` the figures are in the file too.
"""

import statistics
import time
import tracemalloc

import numpy as np
import pytest
import torch

from msmon_stats import partial, partial_many
from msmon_stats.torch import PartialBuffer

MILLION = 2**20
# Of the tool that msmon replaces, and what is asked of msmon; text, measured elsewhere.
ROWS = {
    "fp32 64 M": ("six statistics, fp32 64 M elements / fp32 sum", "37-86", "3 (aim 2)"),
    "bf16 64 M": ("six statistics, bf16 64 M elements / the same fp32 sum", "> 20", "3"),
    "numpy 64 M": ("six statistics, numpy fp32 64 M elements / fp32 sum", "", "3 (aim 2)"),
    "operators 64 M": ("without compiled kernels (torch's operators) / fp32 sum", "23-50", ""),
    "2000 small": ("2,000 tensors of 1,000 elements / torch._foreach_norm", "> 20", "3"),
    "2000 small, buffer": ("the same by PartialBuffer.measure / torch._foreach_norm", "", "3"),
    "fingerprint, fp32": ("with fingerprint / without, fp32 64 M elements", "", "1.3"),
    "fingerprint, bf16": ("the same, bf16", "", "1.3"),
    "fingerprint, small": ("the same, 2,000 tensors of 1,000 elements by PartialBuffer.measure", "", "1.3"),
    "one activation": ("PartialBuffer.measure of one [64, 64] tensor / its sum", "", ""),
}


@pytest.fixture(scope="module")
def table():
    """Collects the ratios of this run and prints them at its end."""
    rows = {}
    torch.set_num_threads(2)
    yield rows
    if rows:
        print(f"\n\n{'what':62} {'msmon':>8} {'peer':>8}  target")
        for key, (text, peer, target) in ROWS.items():
            if key in rows:
                print(f"{text:62} {rows[key]:8.2f} {peer:>8}  {target}")


@pytest.fixture
def compare(benchmark, table, request):
    """Time a function and its measure in turns, so that what else the machine does meets both alike."""

    def run(key, function, base, repeat=1, rounds=15):
        rounds = 1 if benchmark.disabled else rounds
        ratios, lowest = [], [float("inf"), float("inf")]
        for _ in range(rounds):
            times = []
            for call in (base, function):
                start = time.perf_counter()
                for _ in range(repeat):
                    call()
                times.append(time.perf_counter() - start)
            ratios.append(times[1] / times[0])
            lowest = [min(a, b) for a, b in zip(lowest, times, strict=True)]
        benchmark.extra_info["ratio"] = statistics.median(ratios)
        benchmark.extra_info["ratio_of_minima"] = lowest[1] / lowest[0]
        benchmark.extra_info["rounds"] = rounds
        if not benchmark.disabled:
            table[key] = statistics.median(ratios)
        benchmark.pedantic(function, rounds=1)

    return run


@pytest.fixture(scope="module")
def large():
    return torch.randn(64 * MILLION, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def small():
    return [torch.randn(1000) for _ in range(2000)]


def test_stats_fp32(compare, large):
    compare("fp32 64 M", lambda: partial(large), large.sum)


def test_stats_bf16(compare, large):
    half = large.bfloat16()
    compare("bf16 64 M", lambda: partial(half), large.sum)


def test_stats_numpy(compare, large):
    array = large.numpy()
    compare("numpy 64 M", lambda: partial(array), large.sum)


def test_stats_operators(compare, large):
    compare("operators 64 M", lambda: partial(large, kernel="operators"), large.sum, rounds=1)


def test_stats_many_small(compare, small):
    compare("2000 small", lambda: partial_many(small), lambda: torch._foreach_norm(small))


def test_stats_many_small_through_the_buffer(compare, small):
    buffer = PartialBuffer()

    def measure():
        buffer.measure(small, 1e-8)
        buffer.transfer()

    compare("2000 small, buffer", measure, lambda: torch._foreach_norm(small))


def test_stats_fingerprint_fp32(compare, large):
    compare("fingerprint, fp32", lambda: partial(large, fingerprint=True), lambda: partial(large))


def test_stats_fingerprint_bf16(compare, large):
    half = large.bfloat16()
    compare("fingerprint, bf16", lambda: partial(half, fingerprint=True), lambda: partial(half))


def test_stats_fingerprint_many_small(compare, small):
    def measure(buffer):
        buffer.measure(small, 1e-8)
        buffer.transfer()

    plain, with_fingerprint = PartialBuffer(), PartialBuffer(fingerprint=True)
    measure(with_fingerprint)
    measure(plain)
    compare("fingerprint, small", lambda: measure(with_fingerprint), lambda: measure(plain), repeat=10)


def test_stats_one_activation(compare):
    buffer, activation = PartialBuffer(), torch.randn(64, 64)
    compare("one activation", lambda: buffer.measure([activation], 1e-8), lambda: activation.sum(), repeat=200)


def test_stats_temporaries(benchmark, large, table):
    """The largest temporary, as a share of the input."""
    partial(large.numpy())
    tracemalloc.start()
    benchmark.pedantic(lambda: partial(large.numpy()), rounds=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    benchmark.extra_info["share_of_input"] = peak / large.numpy().nbytes
    assert peak < 0.01 * large.numpy().nbytes
    assert np.isfinite(peak)
