"""Partials of torch tensors: checks, choice of kernel, output."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from msmon_stats.choice import choose, has_cpu_kernel, has_triton, wish
from msmon_stats.errors import UnsupportedTensorError
from msmon_stats.fields import DEFAULT_EPS, MAX, MIN, SUM, WIDTH
from msmon_stats.torch import operators
from msmon_stats.torch.devices import accelerators, backend_of, has_float64
from msmon_stats.torch.values import address_of, local, plain, unsupported_reason

_log = logging.getLogger("msmon_stats")


@cache
def usable_kernels(device_type: str) -> tuple[str, ...]:
    """The kernels that can read tensors on a kind of device, the first one is the automatic choice.

    A device is asked once, by letting it compute; that waits for it.
    """
    if device_type == "cpu":
        compiled = ("cpu",) if has_cpu_kernel() else ()
        return (*compiled, "operators", "float32", *(("triton",) if runs_triton("cpu") else ()))
    if not has_float64(device_type):
        return ("float32",)
    if not runs_triton(device_type) or not _triton_works(device_type):
        return ("float32", "operators")
    slow = _is_slow_in_float64(device_type)
    return ("float32", "triton", "operators") if slow else ("triton", "float32", "operators")


def chosen_kernels() -> dict[str, str]:
    """Kind of device to the kernel that a training's tensors there are read with. Asks the devices: see
    `usable_kernels`.

    >>> "cpu" in chosen_kernels()
    True
    """
    return {kind: chosen_kernel(None, kind) for kind in ("cpu", *accelerators())}


def chosen_kernel(kernel: str | None, device_type: str) -> str:
    """The kernel for a kind of device. One that is forced, by the argument or by `$MSMON_KERNEL`, leaves devices
    that do not have it with their own choice."""
    usable = usable_kernels(device_type)
    wanted = wish(kernel)
    return wanted if wanted in usable else usable[0]


@cache
def runs_triton(device_type: str) -> bool:
    """Whether Triton compiles for a kind of device and gives the right numbers there.

    Triton needs a compiler on the machine, and serves some devices in part: it is tried once, in float32.
    """
    if not has_triton() or device_type in ("meta", "mps"):
        return False
    if device_type == "cpu":
        return os.environ.get("TRITON_INTERPRET") == "1"
    try:
        from msmon_stats.torch import triton_rows

        return triton_rows.works(device_type)
    except Exception:
        level = logging.WARNING if device_type == "cuda" else logging.DEBUG
        _log.log(level, "the Triton kernels do not work here; slower operators take their place", exc_info=True)
        return False


def _triton_works(device_type: str) -> bool:
    """The same, of the kernels in float64."""
    from msmon_stats.torch import triton_kernels

    values = torch.arange(-3.0, 4.0, device=device_type)
    rows = values.new_empty((2, WIDTH), dtype=torch.float64)
    try:
        triton_kernels.write_rows([values, values], on_device(1.0, values.device), rows)
        return rows.tolist() == [[7.0, 0.0, 0.0, 1.0, -3.0, 3.0, 0.0, 28.0]] * 2
    except Exception:
        _log.warning("Triton computes in float32 only here", exc_info=True)
        return False


def _is_slow_in_float64(device_type: str) -> bool:
    """Whether the kernels in float64 take longer than reading does: some devices compute a 64th as much in it.

    Asked by running both.
    """
    from msmon_stats.torch import triton_kernels, triton_rows

    values = torch.zeros(1 << 23, device=device_type)
    eps, row = on_device(DEFAULT_EPS, values.device), values.new_empty((1, WIDTH), dtype=torch.float64)
    wide, narrow = (
        _seconds(run, values.device)
        for run in (lambda: triton_kernels.write_rows([values], eps, row), triton_rows.reader(values))
    )
    return wide > 1.5 * narrow


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """The least of three runs."""
    wait = backend_of(device).synchronize
    run()
    taken = []
    for _ in range(3):
        wait()
        start = time.perf_counter()
        run()
        wait()
        taken.append(time.perf_counter() - start)
    return min(taken)


def partial(
    tensor: torch.Tensor, eps: Any = DEFAULT_EPS, *, out: torch.Tensor | None = None, kernel: str | None = None
) -> torch.Tensor:
    """See `msmon_stats.partial`."""
    rows = partial_many([tensor], eps, out=None if out is None else out.unsqueeze(0), kernel=kernel)
    return rows[0] if out is None else out


def partial_many(
    tensors: Sequence[torch.Tensor],
    eps: Any = DEFAULT_EPS,
    *,
    out: torch.Tensor | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """See `msmon_stats.partial_many`."""
    parts = [local(tensor) for tensor in tensors]
    for part in parts:
        # The short question answers for nearly all tensors.
        if plain(part) is not None and address_of(part) is not None:
            continue
        reason = unsupported_reason(part)
        if reason is not None:
            raise UnsupportedTensorError(reason)
    device = parts[0].device
    if any(part.device != device for part in parts):
        raise ValueError(f"tensors on several devices: {', '.join(sorted({str(part.device) for part in parts}))}")
    chosen = choose(kernel, usable_kernels(device.type))
    # Where the device has no float64 the rows are made, and lie, on the host.
    place = device if has_float64(device.type) else torch.device("cpu")
    if out is None:
        out = torch.empty((len(parts), WIDTH), dtype=torch.float64, device=place)
    elif (
        out.shape != (len(parts), WIDTH) or out.dtype != torch.float64 or not out.is_contiguous() or out.device != place
    ):
        raise ValueError(
            f"out must be a contiguous float64 [{len(parts)}, {WIDTH}] on {place}, "
            f"not {out.dtype} {list(out.shape)} on {out.device}"
        )
    write_rows(parts, eps, out, chosen)
    return out


def write_rows(parts: Sequence[torch.Tensor], eps: Any, out: torch.Tensor, kernel: str) -> None:
    """Partials of supported local tensors on one device."""
    if kernel == "cpu":
        from msmon_stats.torch import host

        host.rows(parts, number(eps), out.numpy())
        return
    with torch.no_grad():
        if kernel == "triton":
            from msmon_stats.torch import triton_kernels

            triton_kernels.write_rows(parts, on_device(eps, out.device), out)
        elif kernel == "float32":
            from msmon_stats.torch import float32_rows

            out.copy_(torch.from_numpy(float32_rows.partials(parts, eps)))
        else:
            for part, row in zip(parts, out, strict=True):
                operators.accumulate(part, eps, row)


_constants: dict[tuple[float, torch.device], torch.Tensor] = {}


def on_device(value: Any, device: torch.device) -> torch.Tensor:
    """A number, or a 0-d tensor, as a 0-d float64 tensor on a device."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device, torch.float64, non_blocking=True)
    key = float(value), device
    constant = _constants.get(key)
    if constant is None:
        if len(_constants) > 64:
            _constants.clear()
        constant = _constants[key] = torch.full((), key[0], dtype=torch.float64, device=device)
    return constant


def number(value: Any) -> float:
    """A number, or a 0-d tensor, as a float; of a tensor on the host without an operator of torch."""
    if not isinstance(value, torch.Tensor):
        return float(value)
    value = value.detach()
    if value.is_cpu and value.dtype is not torch.bfloat16:
        return float(value.numpy())
    return float(value)


def merge(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """See `msmon_stats.merge`."""
    total = a + b
    low = torch.minimum(a[..., MIN:MAX], b[..., MIN:MAX])
    high = torch.maximum(a[..., MAX:SUM], b[..., MAX:SUM])
    return torch.cat((total[..., :MIN], low, high, total[..., SUM:]), dim=-1)


def to_host(matrix: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Wait for the device and copy the partials to the host."""
    return matrix.cpu().numpy()
