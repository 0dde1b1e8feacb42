"""`TrainerMon` for MindSpore."""

from __future__ import annotations

import os
from typing import Any

from mindspore import communication, nn

from msmon.monitor import BaseTrainerMon
from msmon_hooks import mindspore as hooks
from msmon_stats.mindspore import PartialBuffer


class TrainerMon(BaseTrainerMon):
    """Watches a MindSpore training in dynamic mode (PyNative).

    The model is a Cell (also one in `nn.WithLossCell`), the optimizer one that is called with gradients. Those of
    an adapter will do too, whose models have `named_modules()` and whose optimizers have `step()`. A group
    (`dp_group`, `tp_group`, `process_group`) is the name under which it was made.

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
    _hooks = hooks
    _make_buffer = PartialBuffer
    _model_kind = "Cell"
    optimizer_methods = ("__call__", "step")

    def _find_rank(self) -> int:
        if communication.GlobalComm.INITED:
            return int(communication.get_rank())
        return int(os.environ.get("RANK_ID", "0"))

    def _find_world_size(self) -> int:
        if communication.GlobalComm.INITED:
            return int(communication.get_group_size())
        return int(os.environ.get("RANK_SIZE", "1"))

    def _is_model(self, model: Any) -> bool:
        return isinstance(model, nn.Cell) or hasattr(model, "named_modules")
