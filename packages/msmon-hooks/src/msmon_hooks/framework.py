"""What the hooks ask of a framework: everything that differs between PyTorch and MindSpore about single tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from msmon_hooks.hooks import Hook
from msmon_hooks.registrations import Removable


class Framework(Protocol):
    """A framework's tensors, its modules, and what it says of the gradient that is being recorded or computed.

    None of these may wait for a device.
    """

    # Tensors

    def is_tensor(self, value: object) -> bool:
        """Whether `value` is a tensor."""

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """The tensor's shape; empty where it has none (nested tensors)."""

    def dtype(self, tensor: Any) -> str:
        """The framework's own name of the tensor's dtype."""

    def requires_grad(self, tensor: Any) -> bool:
        """Whether a gradient is expected to reach the tensor."""

    def describe(self, tensor: Any) -> tuple[tuple[int, ...], str, bool]:
        """`shape`, `dtype` and `requires_grad` in one, for the hooks that run most often."""

    def can_have_gradient(self, tensor: Any) -> bool:
        """Whether a gradient may reach the tensor, be it expected or not: `register_hook` takes it."""

    def is_floating(self, tensor: Any) -> bool:
        """Whether the tensor's values are floating point numbers."""

    def linear(self, inputs: Any, weight: Any, bias: Any) -> Any:
        """The inputs times the transposed weight, plus the bias where it is not None; in float32, without history."""

    def is_leaf(self, tensor: Any) -> bool:
        """Whether the tensor was given by the program, not computed from others."""

    def version(self, tensor: Any) -> int | None:
        """A number that changes when an operation in place moves the tensor to another place in the graph; None where
        the framework does not count them. It may stay the same while the content changes."""

    def register_hook(self, tensor: Any, hook: Hook) -> Removable:
        """Call `hook(gradient)` when the tensor's gradient was computed; with None where there is none for it."""

    def is_sharded(self, tensor: Any) -> bool:
        """Whether this rank holds only a part of the tensor."""

    def is_initialized(self, parameter: Any) -> bool:
        """Whether a parameter has a shape and values by now; those of lazy modules get them in the first forward."""

    # Modules

    def is_called(self, module: Any) -> bool:
        """Whether a module has a forward of its own; containers have none."""

    def roots(self, model: Any) -> Sequence[Any]:
        """The modules whose call is a forward of the model: itself, and those that it wraps, since engines call them
        in its place."""

    def unseen(self, modules: Iterable[Any]) -> dict[int, str]:
        """`id` of modules whose calls no hook sees, with the reason."""

    def runs_compiled(self) -> bool:
        """Whether compiled code may run here that calls modules of which `unseen` does not know."""

    def weight(self, module: Any) -> Any:
        """The module's weight (`weight`, or `wg` of a router) as it is stored, or None: no property is asked, which
        might compute something. Of a weight that is computed at each call: the largest tensor it is computed of."""

    def stored(self, module: Any, name: str) -> Any:
        """The parameter, buffer or plain tensor of this name in a module, without asking a property, or None."""

    def children(self, module: Any) -> Iterable[Any]:
        """The modules directly inside."""

    def weight_maker(self, module: Any) -> Any:
        """The module inside that computes the weight at each call (a parametrization), or None."""

    # What is going on

    def is_recording(self) -> bool:
        """Whether operators that run now are recorded for a gradient."""

    def is_training(self, root: Any) -> bool:
        """Whether a forward of the root module that begins now is one of the training."""

    def is_rehearsing(self) -> bool:
        """Whether what runs now only finds something out for the training, such as the shapes of what the stages of a
        pipeline hand on. Asked before the first forward of a step."""

    def in_backward(self) -> bool:
        """Whether a module that runs now is run again by a backward (checkpointing)."""

    def in_weight_pass(self) -> bool:
        """Whether a backward runs that goes over parts of the graph again, for the gradients of weights alone."""

    def is_capturing(self) -> bool:
        """Whether operators that run now are captured into a graph of a device. Nothing may be computed meanwhile."""

    def backward_number(self) -> int:
        """A number that all that is called by one backward has in common, and that differs from one to the next."""

    def segment_number(self) -> int:
        """A number that is the same for all calls of one checkpointed segment and grows from one to the next."""
