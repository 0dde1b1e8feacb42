"""`TrainerMon` for PyTorch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from msmon.monitor import BaseTrainerMon
from msmon_hooks import torch as hooks
from msmon_stats.torch import PartialBuffer


class TrainerMon(BaseTrainerMon):
    """Watches a PyTorch training.

    Example:
        >>> import json, tempfile, torch
        >>> folder = tempfile.mkdtemp()
        >>> path = folder + "/config.json"
        >>> _ = open(path, "w").write(json.dumps({"wg_distribution": True, "format": "api"}))
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> monitor = TrainerMon(path, params_have_main_grad=False)
        >>> monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
        >>> model(torch.ones(1, 2)).sum().backward(); optimizer.step()
        >>> reduced, unreduced = monitor.generate_wgrad_metrics()
        >>> reduced["0:bias/rank0/grad_reduced"]
        {'norm': 1.0}
        >>> monitor.close()
    """

    framework = "torch"
    _hooks = hooks
    _model_kind = "module"
    _expected: Mapping[torch.device, Sequence[torch.dtype]] = {}
    """The dtypes of parameters on each device."""

    def step(self) -> None:
        """The weights were updated: a step ends here.

        Only for training loops in which that cannot be seen: updates by hand, optimizers that step while a backward
        runs, several that take turns. Call it after the update, and before the gradients are cleared: they are read
        here, except those that a torch optimizer has consumed before, which are read then. Weights before the update
        (`param_origin`) and moments are read when the step's first training forward begins.

        Raises:
            ValueError: steps of the optimizer that `set_monitor` was given are counted already.

        Example:
            >>> import json, tempfile, torch
            >>> path = tempfile.mkdtemp() + "/config.json"
            >>> _ = open(path, "w").write(json.dumps({"wg_distribution": True, "format": "api"}))
            >>> model = torch.nn.Linear(2, 1)
            >>> with TrainerMon(path, params_have_main_grad=False) as monitor:
            ...     monitor.set_monitor(model, grad_acc_steps=1, optimizer=None)
            ...     for _ in range(2):
            ...         model(torch.ones(1, 2)).sum().backward()
            ...         model.weight.data -= 0.1 * model.weight.grad
            ...         monitor.step()
            ...         model.zero_grad()
        """
        if self._attachment is not None:
            self._attachment.end_step()

    def begin_micro_step(self) -> None:
        """A training forward begins.

        Only for training loops that do not call the model that `set_monitor` was given, but parts of it. Where
        the model is called inside, that call adds no micro-step.
        """
        if self._attachment is not None:
            self._attachment.begin_micro_step()

    def end_micro_step(self, output: Any = None) -> None:
        """The training forward that began with `begin_micro_step` has ended; `output` holds its loss."""
        if self._attachment is not None:
            self._attachment.end_micro_step(output)

    def _expect(self, models: Sequence[Any]) -> None:
        found: dict[torch.device, dict[torch.dtype, None]] = {}
        for model in models:
            for parameter in model.parameters():
                if not is_lazy(parameter):
                    found.setdefault(parameter.device, {})[parameter.dtype] = None
        self._expected = {device: list(dtypes) for device, dtypes in found.items()}
        if self._dynamic:
            # The devices are asked and kernels compiled now, not in the step after which collection starts.
            self._make_buffer()

    def _make_buffer(self, *, fingerprint: bool = False) -> PartialBuffer:
        buffer = PartialBuffer(fingerprint=fingerprint)
        for device, dtypes in self._expected.items():
            # What fails here fails again at the first tensor, where it is one part's failure.
            with contextlib.suppress(Exception):
                buffer.prepare(device, dtypes)
        return buffer

    def _find_rank(self) -> int:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank()
        return int(os.environ.get("RANK", "0"))

    def _find_world_size(self) -> int:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_world_size()
        return int(os.environ.get("WORLD_SIZE", "1"))

    def _is_model(self, model: Any) -> bool:
        return isinstance(model, nn.Module)
