"""A callback for Lightning's `Trainer`: `Trainer(..., callbacks=[MsmonCallback("monitor_config.json")])`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from msmon.integrations.watching import Watching

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback_class() -> Any:
    """`Callback` of the package that the program uses: both may be installed, and each has its own."""
    for name in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return import_module(name).Callback
        except ModuleNotFoundError:
            continue
    raise ImportError("msmon.integrations.lightning needs Lightning: pip install lightning")


_Callback: Any = _callback_class()


class MsmonCallback(Watching, _Callback):  # type: ignore[misc]
    """Watches a training of Lightning's `Trainer`, from `on_train_start` to its end, also where that is an error.

    Accumulation, resumed training and the strategies DDP and FSDP are found by themselves. A batch is a micro-step,
    whether the training step calls the module as a whole or only its layers.

    Args:
        config_file_path: the configuration file; or `config`, what would stand in it, or `watch`, such as "wg,xy".
        optimizer: position of the optimizer whose steps are followed, where `configure_optimizers` returns several.
        options: also `process_group` (the pipeline-parallel group), `dp_group` and `tp_group`, as in
            `msmon.pytorch.TrainerMon.set_monitor`.

    Raises:
        msmon.config.ConfigError: the file is missing or wrong.

    Example:
        trainer = Trainer(max_steps=100, callbacks=[MsmonCallback("monitor_config.json")])
        trainer.fit(module, data)
    """

    def __init__(
        self, config_file_path: str | os.PathLike[str] | None = None, *, optimizer: int = 0, **options: Any
    ) -> None:
        super().__init__(config_file_path, **options)
        self._optimizer = optimizer
        self._in_batch = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The strategy has wrapped the module and made the optimizers: put the hooks on."""
        self._begin(
            trainer.strategy.model if trainer.strategy.model is not None else pl_module,
            grad_acc_steps=trainer.accumulate_grad_batches,
            optimizer=trainer.optimizers[self._optimizer],
            start_iteration=trainer.global_step,
        )

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A micro-step begins. Lightning may call the training step itself, and no module's forward around it."""
        if self.monitor is not None:
            self._in_batch = True
            self.monitor.begin_micro_step()

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """The training step has computed its loss."""
        self._end_micro_step(loss)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Also without a backward (manual optimization, a training step that returned None)."""
        self._end_micro_step(None)

    def _end_micro_step(self, loss: Any) -> None:
        if self.monitor is not None and self._in_batch:
            self._in_batch = False
            self.monitor.end_micro_step(loss)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write what is pending and take the hooks off."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The training ends before its time."""
        self._in_batch = False
        self._close()
