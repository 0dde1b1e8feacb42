"""MindSpore's answers to what the hooks ask of a framework."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import mindspore
from mindspore import nn

from msmon_hooks.hooks import Hook
from msmon_hooks.mindspore import recomputation
from msmon_hooks.mindspore.executor import in_graph_mode, is_recording
from msmon_hooks.registrations import Removable

_DIFFERENTIABLE = frozenset(
    getattr(mindspore, name)
    for name in ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
    if hasattr(mindspore, name)
)
_TENSORS = (mindspore.Tensor, mindspore.COOTensor, mindspore.CSRTensor)
_CONTAINERS = tuple(getattr(nn, name) for name in ("CellList", "CellDict") if hasattr(nn, name))


class MindSporeFramework:
    """See `msmon_hooks.framework.Framework`.

    Example:
        >>> framework = MindSporeFramework()
        >>> framework.dtype(mindspore.Tensor([1.0])), framework.is_called(nn.CellList())
        ('Float32', False)
    """

    def __init__(self) -> None:
        self.is_recording = is_recording
        self.in_backward = recomputation.in_backward

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, _TENSORS)

    def shape(self, tensor: Any) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype)

    def requires_grad(self, tensor: Any) -> bool:
        """MindSpore marks every tensor that a program makes as one that requires a gradient, and computes those of
        inputs only where it is asked to; so of these only parameters count."""
        if not self.can_have_gradient(tensor):
            return False
        return isinstance(tensor, mindspore.Parameter) or not self.is_leaf(tensor)

    def describe(self, tensor: Any) -> tuple[tuple[int, ...], str, bool]:
        return self.shape(tensor), self.dtype(tensor), self.requires_grad(tensor)

    def can_have_gradient(self, tensor: Any) -> bool:
        if tensor.dtype not in _DIFFERENTIABLE or not isinstance(tensor, mindspore.Tensor):
            return False
        return bool(getattr(tensor, "_requires_grad", True)) and is_recording()

    def is_floating(self, tensor: Any) -> bool:
        return "float" in str(tensor.dtype).lower()

    def linear(self, inputs: Any, weight: Any, bias: Any) -> Any:
        inputs, weight = (mindspore.ops.stop_gradient(one).astype(mindspore.float32) for one in (inputs, weight))
        product = mindspore.ops.matmul(inputs, weight.swapaxes(0, 1))
        return product if bias is None else product + mindspore.ops.stop_gradient(bias)

    def is_leaf(self, tensor: Any) -> bool:
        return bool(getattr(tensor, "_is_leaf", False))

    def version(self, tensor: Any) -> int | None:
        # MindSpore has a counter, but in-place operations do not increment it (seen in 2.10).
        return None

    def register_hook(self, tensor: Any, hook: Hook) -> Removable:
        return tensor.register_hook(_Passing(hook))

    def is_sharded(self, tensor: Any) -> bool:
        return False

    def is_initialized(self, parameter: Any) -> bool:
        return True

    def is_called(self, module: Any) -> bool:
        if isinstance(module, nn.Cell):
            return not isinstance(module, _CONTAINERS) and type(module).construct is not nn.Cell.construct
        defining = [cls for cls in type(module).__mro__ if "forward" in vars(cls)]
        return len(defining) > 1

    def roots(self, model: Any) -> Sequence[Any]:
        return [model]

    def unseen(self, modules: Iterable[Any]) -> dict[int, str]:
        cells = [module for module in modules if isinstance(module, nn.Cell)]
        if in_graph_mode():
            return dict.fromkeys(map(id, cells), "MindSpore runs in graph mode")
        inside: set[int] = set()
        for cell in cells:
            if is_compiled(cell):
                inside.update(id(one) for _, one in cell.cells_and_names() if one is not cell)
        return dict.fromkeys(inside, "inside a Cell compiled by jit")

    def runs_compiled(self) -> bool:
        return True

    def weight(self, module: Any) -> Any:
        found = (self.stored(module, name) for name in ("weight", "wg"))
        return next((weight for weight in found if weight is not None), None)

    def stored(self, module: Any, name: str) -> Any:
        # Not through the attribute, which may be a property.
        own = vars(module)
        places = (own, *(own.get(place, {}) for place in ("_params", "_parameters", "_buffers")))
        return next((place[name] for place in places if self.is_tensor(place.get(name))), None)

    def children(self, module: Any) -> Iterable[Any]:
        own = vars(module)
        return [child for place in ("_cells", "_modules") for child in own.get(place, {}).values() if child is not None]

    def weight_maker(self, module: Any) -> Any:
        return None

    def is_training(self, root: Any) -> bool:
        return is_recording()

    def is_rehearsing(self) -> bool:
        return False

    def in_weight_pass(self) -> bool:
        return False

    def backward_number(self) -> int:
        return 0

    def is_capturing(self) -> bool:
        # Its graphs run no Python.
        return False

    def segment_number(self) -> int:
        return 0


class _Passing(Hook):
    """Hands a gradient on as it is: versions of MindSpore before 2.10 want a hook to return one."""

    def __init__(self, hook: Hook) -> None:
        super().__init__(hook.guard)
        self.hook = hook

    def __call__(self, gradient: Any) -> Any:
        self.hook(gradient)
        return gradient


def is_compiled(cell: nn.Cell) -> bool:
    """Whether calls of a Cell run as one graph although MindSpore is in dynamic mode."""
    return bool(getattr(cell.construct, "__wrapped_by_jit__", False))


MINDSPORE = MindSporeFramework()
