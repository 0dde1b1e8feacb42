"""A callback for MindSpore's `Model.train`: `model.train(3, data, callbacks=[MsmonCallback("config.json")])`."""

from __future__ import annotations

from typing import Any

try:
    from mindspore.train import Callback
except ImportError as error:
    raise ImportError("msmon.integrations.mindspore needs MindSpore: pip install mindspore") from error

from msmon.integrations.watching import Watching


class MsmonCallback(Watching, Callback):  # type: ignore[misc]
    """Watches a training of MindSpore's `Model.train` in PyNative mode, to its end, also where that is an error.

    With `initial_epoch` the first step has the number that it would have had without a break. Evaluation between the
    epochs has no rows.

    Args:
        config_file_path: the configuration file; or `config`, what would stand in it, or `watch`, such as "wg,xy".
        groups: `process_group`, `dp_group` and `tp_group`, as in `msmon.mindspore.TrainerMon.set_monitor`.

    Raises:
        msmon.config.ConfigError: the file is missing or wrong.

    Example:
        model = Model(network, loss_fn=nn.MSELoss(), optimizer=optimizer)
        model.train(3, data, callbacks=[MsmonCallback(watch="wg,xy")])
    """

    _framework = "msmon.mindspore"

    def on_train_begin(self, run_context: Any) -> None:
        """Another training."""
        self._close()

    def on_train_epoch_begin(self, run_context: Any) -> None:
        """In the first epoch, whose number is not known before: put the hooks on."""
        if self.monitor is not None and self.monitor.is_watching:
            return
        now = run_context.original_args()
        optimizer = now.optimizer if now.optimizer is not None else now.train_network.optimizer
        self._begin(
            now.network if now.optimizer is not None else now.train_network.network,
            grad_acc_steps=1,
            optimizer=optimizer,
            start_iteration=(now.cur_epoch_num - 1) * now.batch_num + now.cur_step_num,
        )

    def on_train_end(self, run_context: Any) -> None:
        """Write what is pending and take the hooks off."""
        self._close()

    def __exit__(self, *error: object) -> None:
        """Of the training where it ends before its time; also of each evaluation within it."""
        if error[0] is not None:
            self._close()
