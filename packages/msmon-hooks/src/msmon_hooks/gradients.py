"""What every engine answers: where a parameter's gradient, weight and moments are, before and after the reduction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any, Protocol

from msmon_hooks.coverage import Coverage
from msmon_hooks.data_types import DATA_TYPES
from msmon_hooks.events import Shard
from msmon_hooks.guard import Guarded, logger
from msmon_hooks.layout import Layout
from msmon_hooks.optimizer_steps import OptimizerSteps
from msmon_hooks.parameter_state import STATE, ParameterState
from msmon_hooks.parameters import Weight
from msmon_hooks.process_groups import ProcessGroups
from msmon_hooks.registrations import Registrations


class OnReady(Protocol):
    """Takes gradients that are complete on this rank and not yet reduced. It fails alone: it never raises."""

    @property
    def wanted(self) -> bool:
        """Whether the step in flight is recorded; else there is nothing to do."""

    @property
    def each_micro_step(self) -> bool:
        """Whether the sum after each micro-step is asked for, not only the last."""

    def __call__(
        self,
        entries: Sequence[tuple[Weight, Any]],
        *,
        scale: Any = None,
        complete: bool = False,
        micro_step: int | None = None,
    ) -> None:
        """Read the gradients now.

        Args:
            entries: weights, each with the sum of its gradients over the micro-steps so far; not kept. Several at once
                cost less on an accelerator.
            scale: what the values are multiplied by (loss scaling), where the engine knows it.
            complete: the engine reduces these very gradients next, whatever micro-step the clock says it is.
            micro_step: whose backward has computed them, where that is not the one that the clock says.
        """


class GradientSource:
    """The answers that most engines share; each engine is a subclass that says what is different.

    Everything that is returned is this rank's own (local) part; no collective may be issued, no tensor gathered,
    no value copied to the host.
    """

    engine = "plain"
    """How `run.json` calls the engine."""
    reduces = True
    """Whether ranks reduce gradients between backward and the optimizer's step."""
    reads_grad_at_step = False
    """Whether, at the optimizer's step, the gradient before the reduction can still be read from the parameter."""
    updates_itself = False
    """Whether the engine's own `step` is all there is to see of an update: it has optimizers inside, over copies."""
    unseen = ""
    """Why a gradient that is consumed was not seen before the reduction, where no more than that is known."""
    each_micro_step = True
    """Whether the sum over the micro-steps so far exists after every micro-step."""

    def __init__(
        self,
        models: Sequence[Any],
        optimizer: Any,
        *,
        main_grad: bool = True,
        process_groups: ProcessGroups | None = None,
        coverage: Coverage | None = None,
    ) -> None:
        self.models = models
        self.optimizer = optimizer
        """The one whose `step` is a step of the training: what the script passed, unwrapped from accelerate and its
        like, or what the engine has in its place."""
        self.main_grad = main_grad
        self.process_groups = process_groups or ProcessGroups()
        self.coverage = coverage or Coverage()
        """For `note(text)`: what the reader of the files should know."""
        self.guard = Guarded("gradients before the reduction", self.coverage.switched_off)
        """Of hooks, and of whatever else reads the engine's inside, which may differ in another version."""
        self.update_guard = Guarded("gradients after the reduction", self.coverage.switched_off)
        """The same for what is read in the middle of the optimizer's step."""
        self.layout_guard = Guarded("who shares a parameter", self.coverage.switched_off)
        """The same for what only describes the engine."""
        self._trained: set[int] | None = None

    @classmethod
    def matches(cls, models: Sequence[Any], optimizer: Any) -> bool:
        """Whether these objects belong to the engine. Looks at them; imports nothing."""
        return True

    def weights(self) -> list[Weight]:
        """Every parameter, under its plain name; `Weight.parameter` is the one that the optimizer has."""
        raise NotImplementedError

    def trains(self, weight: Weight) -> bool:
        """Whether the optimizer updates the parameter."""
        if self._trained is None:
            self._trained = {id(parameter) for parameter in self.trained()}
        return not self._trained or id(weight.parameter) in self._trained

    def trained(self) -> Iterable[Any]:
        """The parameters that the optimizer has; none where it does not say."""
        return [parameter for group in getattr(self.optimizer, "param_groups", ()) for parameter in group["params"]]

    def follow(self, optimizer: Any) -> None:
        """Another optimizer updates the parameters from now on."""
        self.optimizer = optimizer
        self._trained = None

    def attach(self, weights: Sequence[Weight], on_ready: OnReady, registrations: Registrations) -> None:
        """Call `on_ready` whenever the gradient of a parameter is complete on this rank and not yet reduced.

        It is called again with parameters that were frozen at first.
        """
        raise NotImplementedError

    def attach_update(
        self, on_update: Callable[[], None], steps: OptimizerSteps[Any], registrations: Registrations
    ) -> None:
        """Call `on_update` whenever gradients are about to be consumed.

        That is when the optimizer's step begins, or has called its closure. An engine that consumes them somewhere
        inside of the step knows better: `reduced` then gives what is consumed at that moment, and None for the rest.
        """
        steps.before_update.append(on_update)
        registrations.callback(partial(steps.before_update.remove, on_update))

    def has_none(self) -> bool:
        """Whether no parameter has a gradient, so that those of a backward before were thrown away. False where they
        are not kept in the parameters."""
        return False

    def step_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], updating: Collection[int] | None) -> None:
        """The optimizer is about to step, called with these arguments.

        `updating`: `id` of the parameters that it updates, in its order, where there are several optimizers.
        """

    def reduced(self, weight: Weight) -> Any:
        """The gradient that the optimizer consumes, or None where there is none."""
        raise NotImplementedError

    def value(self, weight: Weight) -> Any:
        """The weight that the optimizer updates (a master copy where there is one), or None where this rank has no
        part of it."""
        return weight.parameter

    def moments(self, weight: Weight) -> ParameterState:
        """What the optimizer keeps of the parameter now."""
        raise NotImplementedError

    def state_shard(self, weight: Weight, tensor: Any) -> Shard | None:
        """The part of a tensor of the data type `state` that this rank holds."""
        return self.shard(weight, STATE)

    def shard(self, weight: Weight, data_type: str) -> Shard | None:
        """The part that this rank holds of the tensor of a data type, or None where it holds the whole.

        Asked once, when the hooks are set. A part without elements has no row.
        """
        return None

    def writes(self, weight: Weight, data_type: str) -> bool:
        """Whether this rank is the one that writes; ranks that hold the same tensor leave it to the first of them.

        Asked once, when the hooks are set.
        """
        if data_type == "grad_unreduced" or self.shard(weight, data_type) is not None:
            return True
        # Megatron marks the parameters that are split over the tensor-parallel group.
        split = getattr(weight.parameter, "tensor_model_parallel", False)
        if not split and not self.process_groups.writes_for(self.process_groups.tensor_parallel):
            return False
        return data_type != "grad_reduced" or self.process_groups.writes_for(self.process_groups.data_parallel)

    def layout(self, weight: Weight) -> Layout | None:
        """Which ranks share the parameter; None: not known. Asked when hooks are set."""
        return None

    def given_layout(self, weight: Weight) -> Layout | None:
        """What the groups say that the script has given; None: it gave none."""
        groups = self.process_groups
        if groups.data_parallel is None:
            return None
        data = {"data": groups.ranks(groups.data_parallel)}
        split = getattr(weight.parameter, "tensor_model_parallel", False)
        if groups.tensor_parallel is None or split:
            return Layout(equal_over=data, summed_over=data)
        return Layout(equal_over=data | {"tensor": groups.ranks(groups.tensor_parallel)}, summed_over=data)

    def describe(self, weight: Weight) -> dict[str, Any]:
        """The parameter's entry in `run.json`: the whole, and this rank's parts by what they are parts of.

        `local_shape` and `local_numel` are those of the weight itself.
        """
        by_shard: dict[Shard | None, list[str]] = {}
        for data_type in DATA_TYPES.values():
            if data_type.of_parameters:
                by_shard.setdefault(self.shard(weight, data_type.name), []).append(data_type.name)
        own = self.shard(weight, "param_origin")
        any_ = next((shard for shard in by_shard if shard is not None), None)
        shape = tuple(weight.parameter.shape) if any_ is None else any_.shape
        layout = self.layout_guard.run(self.layout, weight)
        return {
            "name": weight.name,
            "vpp_stage": weight.vpp_stage,
            "shape": list(shape),
            "dtype": str(weight.parameter.dtype),
            "numel": prod(shape),
            "local_shape": list(shape if own is None else own.local_shape),
            "local_numel": prod(shape) if own is None else own.local_numel,
            "aliases": list(weight.aliases),
            "shards": [
                {
                    "data_types": data_types,
                    "part": shard.part,
                    "local_shape": list(shard.local_shape),
                    "local_numel": shard.local_numel,
                }
                for shard, data_types in by_shard.items()
                if shard is not None
            ],
            **({} if layout is None else {"layout": layout.to_dict()}),
        }

    def miss_unreduced(self, weights: Sequence[Weight], reason: str) -> None:
        """The engine is of a version whose inside is not known: say what will be missing, and go on."""
        logger.warning("grad_unreduced of %d parameters will be missing: %s", len(weights), reason)
        for weight in weights:
            self.coverage.explain("grad_unreduced", weight.name, reason, stage=weight.vpp_stage)

    def scale(self) -> Any:
        """What the gradients at `reduced` are still multiplied by (loss scaling), or None."""
        return None

    def skipped(self, result: Any) -> bool:
        """Whether the step that has just ended changed nothing, because a loss scaler found an overflow.

        `result` is what the optimizer's `step` returned.
        """
        return False

    def step_ends(self, *, skipped: bool) -> None:
        """The optimizer's step is over: forget what was kept for it. `skipped`: there was no update."""
