"""Lets Megatron-core run on a CPU: import it first. Where there is a GPU it does nothing."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class CudaIsCpu(TorchFunctionMode):
    """Tensors asked for on a CUDA device come on the CPU, and say that they are CUDA's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if isinstance(device, int) or (device is not None and torch.device(device).type == "cuda"):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")
        return func(*args, **kwargs)


def _float_tensor(values: Any) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float32)


if not torch.cuda.is_available():
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
    torch.cuda.synchronize = lambda *unused: None  # type: ignore[assignment]
    for _name in ("FloatTensor", "HalfTensor", "BFloat16Tensor"):
        setattr(torch.cuda, _name, _float_tensor)
    CudaIsCpu().__enter__()
    from megatron.core.tensor_parallel import random

    random.CudaRNGStatesTracker.fork = lambda self, *unused, **named: contextlib.nullcontext()
