"""A callback for ultralytics: `MsmonCallback("monitor_config.json").add_to(model)` before `model.train(...)`."""

from __future__ import annotations

from typing import Any

from msmon.integrations.watching import Watching


class MsmonCallback(Watching):
    """Watches a training of ultralytics, from its first batch to its end, also where that is an error.

    The first step has the number of updates that the trainer has counted, so that a resumed training goes on counting.
    Validation is done with the averaged copy of the model, and has no rows. With several devices ultralytics starts
    processes of its own, which know no callback: there, use `msmon run`.

    Args:
        config_file_path: the configuration file; or `config`, what would stand in it, or `watch`, such as "wg,xy".
        groups: `process_group`, `dp_group` and `tp_group`, as in `msmon.pytorch.TrainerMon.set_monitor`.

    Raises:
        msmon.config.ConfigError: the file is missing or wrong.

    Example:
        model = YOLO("yolo11n.yaml")
        MsmonCallback(watch="wg,xy").add_to(model)
        model.train(data="coco8.yaml", epochs=3)
    """

    def add_to(self, model: Any) -> None:
        """Be called by the trainings of a model, or of a trainer: of what has `add_callback`."""
        for event in ("on_train_start", "teardown"):
            model.add_callback(event, getattr(self, event))

    def on_train_start(self, trainer: Any) -> None:
        """The model is wrapped, the optimizer is made, and a checkpoint is loaded: put the hooks on."""
        self._begin(
            trainer.model,
            grad_acc_steps=trainer.accumulate,
            optimizer=trainer.optimizer,
            start_iteration=trainer.ema.updates if trainer.ema else 0,
        )

    def teardown(self, trainer: Any) -> None:
        """The training has ended, or failed."""
        self._close()
