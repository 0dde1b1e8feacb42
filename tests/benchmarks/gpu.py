"""Speed of the statistics on a GPU: ``python tests/benchmarks/gpu.py``. Says so and ends with 0 where there is none.

The limit is the measured bandwidth of a copy: no statistic can be had in less time than it takes to read the tensor.
"""

import statistics
import sys
from collections.abc import Callable

import torch

from msmon_stats import partial, partial_many
from msmon_stats.torch import PartialBuffer

MILLION = 2**20


def milliseconds(function: Callable[[], object], rounds: int = 15) -> float:
    """Median time on the device."""
    function()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def main() -> int:
    if not torch.cuda.is_available():
        print("no GPU: nothing to measure")
        return 0
    large = torch.randn(64 * MILLION, device="cuda")
    half = large.bfloat16()
    target = torch.empty_like(large)
    small = [torch.randn(1000, device="cuda") for _ in range(2000)]
    activation = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)
    buffer = PartialBuffer()

    def measure() -> None:
        buffer.measure(small, 1e-8)
        buffer.transfer()

    for tensor in (large, half, activation):
        torch.testing.assert_close(partial(tensor), partial(tensor, kernel="operators"), rtol=1e-9, atol=1e-3)
    copy, total = milliseconds(lambda: target.copy_(large)), milliseconds(large.sum)
    norms = milliseconds(lambda: torch._foreach_norm(small))
    bandwidth = 2 * large.nbytes / copy / 1e6
    # A copy reads and writes: reading alone takes half of it.
    limit = copy / 2 / total
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {bandwidth:.0f} GB/s")
    print(f"{'what':58} {'msmon':>8} {'limit':>8}  target")
    cases: list[tuple[str, Callable[[], object], float, float, str]] = [
        ("six statistics, fp32 64 M elements / fp32 sum", lambda: partial(large), total, limit, "3 (aim 2)"),
        ("six statistics, bf16 64 M elements / fp32 sum", lambda: partial(half), total, limit / 2, "3"),
        ("2,000 tensors of 1,000 elements / torch._foreach_norm", lambda: partial_many(small), norms, 1, "3"),
        ("the same by PartialBuffer, transfer included", measure, norms, 1, "3"),
        (
            "one bf16 activation of 4 M elements / its sum",
            lambda: partial(activation),
            milliseconds(activation.sum),
            1,
            "",
        ),
    ]
    for what, function, base, least, wanted in cases:
        print(f"{what:58} {milliseconds(function) / base:8.2f} {least:8.2f}  {wanted}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
