"""What is to be read of a training: the same for every framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from attrs import field, frozen

from msmon_hooks.l2_features import Feature
from msmon_hooks.targets import Targets


@frozen(kw_only=True)
class CollectiveRequest:
    """What is to be read of collectives."""

    wants: Callable[[str], bool] = lambda code_line: True
    """Whether calls that come through a place such as `/path/train.py[120]` are meant."""
    inputs: bool = False
    """Also what is sent, not only what arrives."""
    log_only: bool = False
    """Read nothing; only say which calls there are in the first step, each with its stack."""


@frozen(kw_only=True)
class Request:
    """What is to be read.

    The hooks compute nothing: where a number is made of tensors, the function that makes it is given here. It
    returns a tensor of numbers on the device of its arguments, and must not wait for that device.
    """

    targets: Targets = field(factory=lambda: Targets({}))
    activations: bool = False
    activation_gradients: bool = False
    inside_compiled: Literal["", "stored", "all"] = ""
    """Of modules inside of compiled graphs, too: those tensors that the compiled program has in memory, or all."""
    weight_gradients: bool = False
    each_micro_step: bool = False
    """Weight gradients of every micro-step, not only of the last."""
    moments: bool = False
    moments_after_update: bool = False
    """With `moments`: as they stand after the update of a step, not before it."""
    weights: bool = False
    main_grad: bool = True
    """Read `param.main_grad` where it exists."""
    process_groups: Any = None
    """Ranks that hold the same tensors, as the framework describes them (`msmon_hooks.torch.ProcessGroups`)."""
    short_names: bool = False
    """Rows carry shortened names; see `msmon_hooks.ShortNames`."""
    sign_agreement: Callable[[Any, Any], Any] | None = None
    """`f(gradient, momentum)`: one number a parameter and step."""
    adam_histograms: Callable[..., Any] | None = None
    """`f(exp_avg, exp_avg_sq, step=, betas=, eps=)`: counts, of any length, a parameter and step."""
    l2_features: Mapping[str, Feature] = field(factory=dict)
    """Kind (a name in `msmon_hooks.DATA_TYPES`) to what is computed of which modules."""
    on_structure: Callable[[dict[str, Any]], None] | None = None
    """Called after the first step with the inputs and outputs of every module; see
    `msmon_hooks.structure`."""
    on_stacks: Callable[[dict[str, str]], None] | None = None
    """Called after the first step: module name (with stage prefix) to the call stack of its first call."""
    on_parameters: Callable[[str, list[dict[str, Any]]], None] | None = None
    """Called with the engine and with what `Attachment.describe` returns, when these have become others since the hooks
    were set."""
    on_inside: Callable[[dict[str, dict[str, list[str]]]], None] | None = None
    """Called when it is known of more rows from inside of compiled graphs how they are read: `stored` and `recomputed`
    to data type to names, those of further stages with the stage in front as in `1:fc.input`."""
    on_collectives: Callable[[dict[str, list[dict[str, str]]]], None] | None = None
    """Called when it is known of more collectives for which ranks they are called: function to `ranks` (see
    `msmon_hooks.layout.ranks_text`) and `reduction`."""
    collectives: CollectiveRequest | None = None
    ends_program: bool = False
    """After the first sampled step, when everything of it was delivered, raise `SystemExit(0)`."""
