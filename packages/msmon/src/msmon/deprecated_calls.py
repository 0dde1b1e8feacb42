"""The calls of old training scripts; they work and say what to write instead."""

from __future__ import annotations

import warnings
from typing import Any


def warn_deprecated(old: str, new: str) -> None:
    """A DeprecationWarning at the line of the training script that made the call."""
    warnings.warn(f"{old} is deprecated: {new}", DeprecationWarning, stacklevel=3)


class DeprecatedCalls:
    """Old names of `msmon.monitor.BaseTrainerMon.set_monitor` and of the configuration's fields."""

    _wrapped_optimizer: Any = None

    def set_monitor(self, *args: Any, **kwargs: Any) -> None:
        """See `msmon.monitor.BaseTrainerMon`."""
        raise NotImplementedError

    def change_config(self, **fields: Any) -> None:
        """See `msmon.monitor.BaseTrainerMon`."""
        raise NotImplementedError

    def set_wrapped_optimizer(self, optimizer: Any) -> None:
        """Name the optimizer for a later `monitor_gnorm_with_ad`."""
        warn_deprecated("set_wrapped_optimizer", "pass the optimizer to set_monitor(model, grad_acc_steps, optimizer)")
        self._wrapped_optimizer = optimizer

    def monitor_gnorm_with_ad(
        self,
        model: Any,
        grad_acc_steps: int,
        optimizer: Any = None,
        dp_group: Any = None,
        tp_group: Any = None,
        start_iteration: int = 0,
    ) -> None:
        """`set_monitor` under its old name; without `optimizer`, the one of `set_wrapped_optimizer`.

        Raises:
            TypeError: no optimizer was given in either way.
        """
        warn_deprecated("monitor_gnorm_with_ad", "call set_monitor(model, grad_acc_steps, optimizer)")
        optimizer = self._wrapped_optimizer if optimizer is None else optimizer
        if optimizer is None:
            raise TypeError(
                "monitor_gnorm_with_ad: no optimizer: pass it, or call set_monitor(model, grad_acc_steps, optimizer)"
            )
        self.set_monitor(model, grad_acc_steps, optimizer, dp_group, tp_group, start_iteration)

    def reload_xy(self, xy_distribution: bool = False) -> None:
        """Switch the monitoring of activations on or off, from the next step on."""
        warn_deprecated("reload_xy", "set xy_distribution in the configuration, in dynamic mode also while training")
        self.change_config(xy_distribution=bool(xy_distribution))
