"""What the callbacks of trainers share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from msmon.config import load_config, parse_config, watch_fields


class Watching:
    """One monitor after the other, for a trainer's callback.

    Args:
        config_file_path: the configuration file. A mistake in it is reported here, before the model is loaded.
        config: instead of a file, what would stand in it.
        watch: instead of both, a few words: see `msmon.config.watch_fields`.
        groups: `process_group`, `dp_group` and `tp_group`.
    """

    _framework = "msmon.pytorch"
    """Where the `TrainerMon` of the trainer's framework is."""

    def __init__(
        self,
        config_file_path: str | os.PathLike[str] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        watch: str | Sequence[str] | None = None,
        **groups: Any,
    ) -> None:
        super().__init__()
        unknown = {*groups} - {"process_group", "dp_group", "tp_group"}
        if unknown:
            raise TypeError(f"MsmonCallback: unknown {', '.join(sorted(unknown))}; process_group, dp_group or tp_group")
        if [config_file_path, config, watch].count(None) != 2:
            raise TypeError("MsmonCallback: give config_file_path, config or watch, one of the three")
        if watch is not None:
            config = watch_fields(watch)
        if config_file_path is None:
            parse_config(config or {}, "config")
        else:
            load_config(config_file_path)
        self.monitor: Any = None
        """The `TrainerMon` of the training in progress, or of the last one."""
        self._config_file_path = config_file_path
        self._config = config
        self._groups = groups

    def _begin(self, model: Any, *, grad_acc_steps: int, optimizer: Any, start_iteration: int) -> None:
        # Training may begin again: a smaller batch after an error, or a second call.
        self._close()
        groups = dict(self._groups)
        process_group = groups.pop("process_group", None)
        self.monitor = import_module(self._framework).TrainerMon(
            self._config_file_path, process_group, params_have_main_grad=False, config=self._config
        )
        self.monitor.set_monitor(model, grad_acc_steps, optimizer, start_iteration=start_iteration, **groups)

    def _close(self) -> None:
        if self.monitor is not None:
            self.monitor.close()
