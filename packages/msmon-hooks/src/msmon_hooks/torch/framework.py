"""PyTorch's answers to what the hooks ask of a framework."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from msmon_hooks.hooks import Hook
from msmon_hooks.registrations import Removable
from msmon_hooks.torch.backward import backward_number, in_backward, segment_number
from msmon_hooks.torch.mesh_shards import local_part, mesh_shard


class TorchFramework:
    """See `msmon_hooks.framework.Framework`.

    Example:
        >>> framework = TorchFramework()
        >>> framework.dtype(torch.ones(2)), framework.is_called(nn.ModuleList())
        ('torch.float32', False)
    """

    def __init__(self) -> None:
        self._dtypes: dict[torch.dtype, str] = {}
        self.is_recording = torch.is_grad_enabled
        self.in_backward = in_backward
        self.segment_number = segment_number
        self.backward_number = backward_number

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, torch.Tensor)

    def shape(self, tensor: torch.Tensor) -> tuple[int, ...]:
        return () if tensor.is_nested else local_part(tensor).shape

    def dtype(self, tensor: torch.Tensor) -> str:
        name = self._dtypes.get(tensor.dtype)
        if name is None:
            name = self._dtypes[tensor.dtype] = str(tensor.dtype)
        return name

    def requires_grad(self, tensor: torch.Tensor) -> bool:
        return tensor.requires_grad

    can_have_gradient = requires_grad

    def describe(self, tensor: torch.Tensor) -> tuple[tuple[int, ...], str, bool]:
        if type(tensor) is torch.Tensor and not tensor.is_nested:
            dtype = self._dtypes.get(tensor.dtype) or self.dtype(tensor)
            return tensor.shape, dtype, tensor.requires_grad
        return self.shape(tensor), self.dtype(tensor), tensor.requires_grad

    def is_leaf(self, tensor: torch.Tensor) -> bool:
        return tensor.is_leaf

    def version(self, tensor: torch.Tensor) -> int | None:
        return None if tensor.is_inference() else tensor._version

    def register_hook(self, tensor: torch.Tensor, hook: Hook) -> Removable:
        return tensor.register_hook(hook)

    def is_sharded(self, tensor: torch.Tensor) -> bool:
        return mesh_shard(tensor) is not None

    def is_called(self, module: nn.Module) -> bool:
        # What torch.compile returns has its forward in the object.
        return type(module).forward is not nn.Module.forward or "forward" in vars(module)

    def unseen(self, modules: Iterable[nn.Module]) -> dict[int, str]:
        inside: set[int] = set()
        for module in modules:
            if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
                inside.update(id(one) for one in module.modules() if one is not module)
        return dict.fromkeys(inside, "inside a region compiled by torch.compile")

    def weight(self, module: nn.Module) -> torch.Tensor | None:
        for name in ("weight", "wg"):
            weight = getattr(module, name, None)
            if isinstance(weight, torch.Tensor):
                return weight
        return None

    def is_training(self, root: nn.Module) -> bool:
        return root.training and torch.is_grad_enabled()


TORCH = TorchFramework()
