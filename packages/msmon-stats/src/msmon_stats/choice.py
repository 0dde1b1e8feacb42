"""Which implementation computes the partials."""

from __future__ import annotations

import importlib.util
import logging
import os
from functools import cache

_log = logging.getLogger("msmon_stats")

KERNELS = ("operators", "cpu", "triton", "float32")
"""`operators`: the framework's own operators (numpy's for arrays) in float64. `cpu`: compiled code for values in
the memory of the host (extra `cpu`). `triton`: for torch tensors on a GPU, where Triton is installed. `float32`:
torch's operators in float32, many tensors in each, for devices without a kernel."""

KERNEL_DTYPES = frozenset(
    (
        "float64",
        "float32",
        "float16",
        "bfloat16",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
)
"""What the compiled kernels read as it is stored; everything else is converted piece by piece."""

VARIABLE = "MSMON_KERNEL"


def choose(kernel: str | None, usable: tuple[str, ...]) -> str:
    """The kernel to use.

    Args:
        kernel: the caller's wish; None looks at `$MSMON_KERNEL` and then takes the first usable one.
        usable: the kernels that can read the values, the fastest first.

    Raises:
        ValueError: the wish (the argument or the variable) names no kernel, or one that cannot read these values.
    """
    source = "kernel" if kernel is not None else f"${VARIABLE}"
    kernel = wish(kernel)
    if kernel is None:
        return usable[0]
    if kernel not in usable:
        hint = "" if kernel != "cpu" or has_cpu_kernel() else "; pip install 'msmon-stats[cpu]' brings it"
        raise ValueError(f"{source} is {kernel!r}, which cannot be used here; allowed: {', '.join(usable)}{hint}")
    return kernel


def wish(kernel: str | None) -> str | None:
    """The kernel that the caller wants, or `$MSMON_KERNEL`; None where neither is given.

    Raises:
        ValueError: it names no kernel.
    """
    source = "kernel"
    if kernel is None:
        kernel, source = os.environ.get(VARIABLE) or None, f"${VARIABLE}"
    if kernel is not None and kernel not in KERNELS:
        raise ValueError(f"{source} is {kernel!r}; allowed: {', '.join(KERNELS)}")
    return kernel


@cache
def has_cpu_kernel() -> bool:
    """Whether the compiled CPU kernels work here. The first call compiles one."""
    if importlib.util.find_spec("llvmlite") is None:
        return False
    try:
        from msmon_stats import cpu

        cpu.warm_up(("float32",))
    except Exception:
        _log.warning("the compiled CPU kernels do not work here; slower operators take their place", exc_info=True)
        return False
    return True


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None
