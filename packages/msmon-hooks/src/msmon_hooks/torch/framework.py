"""PyTorch's answers to what the hooks ask of a framework."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from msmon_hooks.coverage import CAPTURED
from msmon_hooks.hooks import Hook
from msmon_hooks.registrations import Removable
from msmon_hooks.torch.backward import backward_number, in_backward, segment_number
from msmon_hooks.torch.callers import is_called_in
from msmon_hooks.torch.mesh_shards import local_part, mesh_shard
from msmon_hooks.torch.weight_passes import WeightPass
from msmon_hooks.torch.wrappers import is_a, wrapped_models

_WEIGHTS = ("weight", "wg")
_GRAPHS = ("torch.cuda.graphs", "torch_npu.npu.graphs")
_PIPELINES = "torch.distributed.pipelining.stage"
# Where a stage finds out the shapes by a forward, and since torch 2.13 a backward, of its own.
_REHEARSALS = ("_shape_inference", "_forward_metadata_inference")


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

    def is_floating(self, tensor: torch.Tensor) -> bool:
        return tensor.dtype.is_floating_point

    def linear(self, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        with torch.no_grad(), torch.autocast(inputs.device.type, enabled=False):
            return nn.functional.linear(inputs.float(), weight.float(), None if bias is None else bias.float())

    def is_capturing(self) -> bool:
        return any(ask() for ask in self._captures)

    @cached_property
    def _captures(self) -> list[Callable[[], bool]]:
        # Asked for the first time in a step; by then backends of third parties are loaded.
        accelerators = ("cuda", torch._C._get_privateuse1_backend_name(), "xpu")
        modules = (getattr(torch, name, None) for name in accelerators)
        present = [module for module in modules if module is not None and module.is_available()]
        asks = (getattr(module, "is_current_stream_capturing", None) for module in present)
        return [ask for ask in asks if ask is not None]

    def is_leaf(self, tensor: torch.Tensor) -> bool:
        return tensor.is_leaf

    def version(self, tensor: torch.Tensor) -> int | None:
        return None if tensor.is_inference() else tensor._version

    def register_hook(self, tensor: torch.Tensor, hook: Hook) -> Removable:
        return tensor.register_hook(hook)

    def is_sharded(self, tensor: torch.Tensor) -> bool:
        return mesh_shard(tensor) is not None

    def is_initialized(self, parameter: torch.Tensor) -> bool:
        return not is_lazy(parameter)

    def is_called(self, module: nn.Module) -> bool:
        # What torch.compile returns has its forward in the object.
        return type(module).forward is not nn.Module.forward or "forward" in vars(module)

    def roots(self, model: nn.Module) -> Sequence[nn.Module]:
        found = [model]
        for _, inner in wrapped_models(model):
            # Of these the inner one runs in threads of replicas, or is compiled.
            if is_a(found[-1], "DataParallel", "OptimizedModule"):
                break
            found.append(inner)
        return found

    def unseen(self, modules: Iterable[nn.Module]) -> dict[int, str]:
        found: dict[int, str] = {}
        for module in modules:
            if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
                reason = "inside a region compiled by torch.compile"
            elif getattr(vars(module).get("forward"), "__module__", None) in _GRAPHS:
                # What `make_graphed_callables` has put there replays a graph.
                reason = CAPTURED
            else:
                continue
            found.update((id(one), reason) for one in module.modules() if one is not module)
        return found

    def runs_compiled(self) -> bool:
        # Any function may have been compiled; the compiler counts what it looked at.
        dynamo = sys.modules.get("torch._dynamo.utils")
        return dynamo is not None and bool(dynamo.counters.get("frames"))

    def weight(self, module: nn.Module) -> torch.Tensor | None:
        # Not through the attribute, which may be a property: that of a parametrized weight computes it anew, and a
        # power iteration that nobody else asked for changes the training.
        maker = self.weight_maker(module)
        if maker is not None:
            stored = [value for value in maker._parameters.values() if value is not None and not is_lazy(value)]
            return max(stored, key=lambda value: value.numel(), default=None)
        found = (self.stored(module, name) for name in _WEIGHTS)
        return next((weight for weight in found if weight is not None), None)

    def stored(self, module: nn.Module, name: str) -> torch.Tensor | None:
        for place in (module.__dict__, module._parameters, module._buffers):
            # Not by key: containers of engines gather what is asked for.
            value = next((value for key, value in place.items() if key == name), None)
            if isinstance(value, torch.Tensor) and not is_lazy(value):
                return value
        return None

    def children(self, module: nn.Module) -> Iterable[nn.Module]:
        return [child for child in module._modules.values() if child is not None]

    def weight_maker(self, module: nn.Module) -> nn.Module | None:
        parametrizations = module._modules.get("parametrizations")
        if not isinstance(parametrizations, nn.ModuleDict):
            return None
        return next((parametrizations[name] for name in _WEIGHTS if name in parametrizations), None)

    def in_weight_pass(self) -> bool:
        return WeightPass.running

    def is_training(self, root: nn.Module) -> bool:
        return root.training and torch.is_grad_enabled()

    def is_rehearsing(self) -> bool:
        return _PIPELINES in sys.modules and is_called_in(_PIPELINES, _REHEARSALS)


TORCH = TorchFramework()
