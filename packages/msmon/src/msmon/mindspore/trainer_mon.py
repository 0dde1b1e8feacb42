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

    def step(self, gradients: Any = None) -> None:
        """The weights were updated: a step ends here.

        Only for training loops in which that cannot be seen: updates by hand, several optimizers of which each steps
        several times a round, with `set_monitor(..., optimizer=None)`. Weights before the update (`param_origin`) are
        read when the step's first training forward begins.

        Args:
            gradients: what the update consumed, in the order of `network.trainable_params()`: MindSpore keeps it
                nowhere. None: `grad_reduced` has no rows.

        Raises:
            ValueError: steps of the optimizer that `set_monitor` was given are counted already.

        Example:
            >>> import json, tempfile, mindspore
            >>> from mindspore import nn, ops
            >>> path = tempfile.mkdtemp() + "/config.json"
            >>> _ = open(path, "w").write(json.dumps({"wg_distribution": True, "format": "api"}))
            >>> network = nn.Dense(2, 1)
            >>> grad = mindspore.value_and_grad(lambda x: network(x).sum(), None, network.trainable_params())
            >>> with TrainerMon(path) as monitor:
            ...     monitor.set_monitor(network, grad_acc_steps=1, optimizer=None)
            ...     for _ in range(2):
            ...         loss, gradients = grad(ops.ones((1, 2)))
            ...         for parameter, gradient in zip(network.trainable_params(), gradients):
            ...             _ = parameter.assign_value(parameter - 0.1 * gradient)
            ...         monitor.step(gradients)
        """
        if self._attachment is not None:
            self._attachment.end_step(gradients)

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
