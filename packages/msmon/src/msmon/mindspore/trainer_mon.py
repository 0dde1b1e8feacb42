"""``TrainerMon`` for MindSpore."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from mindspore import communication, nn

from msmon.monitor import BaseTrainerMon
from msmon_hooks import Clock, Coverage, Observer, Request
from msmon_hooks.mindspore import Attachment, Groups, attach, group_ranks
from msmon_stats.mindspore import PartialBuffer


class TrainerMon(BaseTrainerMon):
    """Watches a MindSpore training in dynamic mode (PyNative).

    The model is a Cell (also one in ``nn.WithLossCell``), the optimizer one that is called with gradients. Those of
    an adapter will do too, whose models have ``named_modules()`` and whose optimizers have ``step()``. A group
    (``dp_group``, ``tp_group``, ``process_group``) is the name under which it was made.

    Example:
        >>> import json, tempfile, mindspore
        >>> from mindspore import nn, ops
        >>> folder = tempfile.mkdtemp()
        >>> path = folder + "/config.json"
        >>> _ = open(path, "w").write(json.dumps({"wg_distribution": True, "format": "api"}))
        >>> network = nn.Dense(2, 1)
        >>> optimizer = nn.SGD(network.trainable_params(), 0.1)
        >>> monitor = TrainerMon(path)
        >>> monitor.set_monitor(network, grad_acc_steps=1, optimizer=optimizer)
        >>> grad = mindspore.value_and_grad(lambda x: network(x).sum(), None, optimizer.parameters)
        >>> loss, gradients = grad(ops.ones((1, 2)))
        >>> _ = optimizer(gradients)
        >>> reduced, unreduced = monitor.generate_wgrad_metrics()
        >>> reduced["0:bias/rank0/grad_reduced"]
        {'norm': 1.0}
        >>> monitor.close()
    """

    framework = "mindspore"
    optimizer_methods = ("__call__", "step")

    def _find_rank(self) -> int:
        if communication.GlobalComm.INITED:
            return int(communication.get_rank())
        return int(os.environ.get("RANK_ID", "0"))

    def _find_world_size(self) -> int:
        if communication.GlobalComm.INITED:
            return int(communication.get_group_size())
        return int(os.environ.get("RANK_SIZE", "1"))

    def _group_ranks(self, group: Any) -> Sequence[int]:
        return super()._group_ranks(group) if group is None else group_ranks(group)

    def _find_models(self, model: Any) -> Sequence[Any]:
        models = list(model) if isinstance(model, list | tuple) else [model]
        for one in models:
            if not (isinstance(one, nn.Cell) or hasattr(one, "named_modules")):
                raise TypeError(f"set_monitor: model must be a Cell or a list of Cells, got {type(one).__name__}")
        if not models:
            raise TypeError("set_monitor: model must be a Cell or a list of Cells, got an empty list")
        return models

    def _make_buffer(self) -> PartialBuffer:
        return PartialBuffer()

    def _groups(self) -> Groups:
        monitored = self._config.module_ranks
        return Groups(data_parallel=self._dp_group, tensor_parallel=self._tp_group, monitored=monitored)

    def _attach(
        self,
        models: Sequence[Any],
        optimizer: Any,
        clock: Clock,
        request: Request | None,
        observer: Observer,
        coverage: Coverage,
    ) -> Attachment:
        return attach(models, optimizer, request, clock, observer, coverage, after_step=self._after_step)
