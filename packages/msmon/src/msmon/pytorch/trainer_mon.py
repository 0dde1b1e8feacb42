"""``TrainerMon`` for PyTorch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from msmon.collector import Collector, Nobody
from msmon.monitor import BaseTrainerMon
from msmon_hooks import Clock, CollectiveRequest, Coverage, Request, Targets
from msmon_hooks.torch import Attachment, Groups, attach, group_ranks
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

    def _find_rank(self) -> int:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank()
        return int(os.environ.get("RANK", "0"))

    def _find_world_size(self) -> int:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_world_size()
        return int(os.environ.get("WORLD_SIZE", "1"))

    def _group_ranks(self, group: Any) -> Sequence[int]:
        return super()._group_ranks(group) if group is None else group_ranks(group)

    def _find_models(self, model: Any) -> Sequence[nn.Module]:
        models = list(model) if isinstance(model, list | tuple) else [model]
        for one in models:
            if not isinstance(one, nn.Module):
                raise TypeError(f"set_monitor: model must be a module or a list of modules, got {type(one).__name__}")
        if not models:
            raise TypeError("set_monitor: model must be a module or a list of modules, got an empty list")
        return models

    def _make_buffer(self) -> PartialBuffer:
        return PartialBuffer()

    def _attach(
        self,
        models: Sequence[nn.Module],
        optimizer: Any,
        targets: Targets,
        clock: Clock,
        observer: Collector,
        coverage: Coverage,
    ) -> Attachment:
        config, collectives = self._config, self._config.cc_distribution
        request = Request(
            targets=targets,
            activations=config.collects_actv,
            activation_gradients=config.collects_actv_grad,
            weight_gradients=config.wg_distribution,
            each_micro_step=config.monitor_mbs_grad,
            moments=config.mv_distribution,
            weights=config.param_distribution,
            main_grad=self._main_grad,
            groups=Groups(data_parallel=self._dp_group, tensor_parallel=self._tp_group, monitored=config.module_ranks),
            collectives=CollectiveRequest(
                wants=collectives.wants, inputs=collectives.cc_pre_hook, log_only=collectives.cc_log_only
            )
            if collectives.enable
            else None,
            ends_program=self._ends_program,
        )
        return attach(models, optimizer, request, clock, observer, coverage)

    def _attach_idle(self, models: Sequence[nn.Module], optimizer: Any, clock: Clock) -> Attachment:
        return attach(models, optimizer, Request(ends_program=True), clock, Nobody(), Coverage())
