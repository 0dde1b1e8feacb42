"""The second form of the tool that msmon replaces: its three calls, on the same monitor as `msmon.TrainerMon`."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import Any

from msmon.config import FRAMEWORKS, Config, ConfigError, dynamic_mode, load_config, parse_second_form
from msmon.framework import chosen_module, module_of

logger = logging.getLogger("msmon")


class TrainerMonitorV2:
    """Watches a training by a configuration of the second form; see `docs/moving-over.md`.

    Args:
        config_path: the configuration file, with `monitors`.
        fr: `pytorch`, `pt`, `torch`, `mindspore` or `ms`; default: `framework` of the file, else what the program has
            imported.

    Raises:
        msmon.config.ConfigError: the file is missing, unreadable or wrong; the message lists every problem.
        OSError: the output directory cannot be created.
        ImportError: the framework is not installed.

    Example:
        >>> import json, pathlib, tempfile, torch
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> config = {"output_dir": str(folder), "monitors": {"weight_grad": {"enabled": True, "ops": ["norm"]}}}
        >>> _ = (folder / "config.json").write_text(json.dumps(config))
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> monitor = TrainerMonitorV2(folder / "config.json", fr="pytorch")
        >>> monitor.start(model=model, optimizer=optimizer)
        >>> model(torch.ones(1, 2)).sum().backward(); optimizer.step()
        >>> monitor.stop()
        >>> print((folder / "rank_0/weight_grad_step0-0.csv").read_text().splitlines()[-1])
        -1,0,bias,reduced,1,1.0
    """

    def __init__(self, config_path: str | os.PathLike[str], fr: str | None = None) -> None:
        if fr is not None and fr not in FRAMEWORKS:
            raise ConfigError(f"fr: {fr!r} is refused, expected one of {', '.join(FRAMEWORKS)}")
        # In dynamic mode the file may come later.
        config = Config() if dynamic_mode() else load_config(config_path, parse_second_form)
        named = fr or (config.second_form.framework if config.second_form else None)
        module = import_module(module_of(FRAMEWORKS[named]) if named else chosen_module())

        class Monitor(module.TrainerMon):  # type: ignore[misc, name-defined]
            _parse = staticmethod(parse_second_form)

        self._monitor = Monitor(config_path)
        self._form = config.second_form
        self._said = False

    def start(
        self,
        *,
        model: Any,
        optimizer: Any = None,
        grad_acc_steps: int | None = None,
        micro_batch_number: int | None = None,
        start_iteration: int = 0,
    ) -> None:
        """Begin to watch.

        Args:
            model: a module, or a list of them (the chunks of a virtual pipeline).
            optimizer: its steps are watched; without one `step` ends a step.
            grad_acc_steps: micro-steps of a step; default: what the configuration says, else 1.
            micro_batch_number: another name of it.
            start_iteration: number of the first step.

        Raises:
            TypeError: an argument of the wrong type; the message names it.
        """
        configured = self._form.monitors.weight_grad if self._form else None
        given = [grad_acc_steps, micro_batch_number]
        if configured is not None:
            given += [configured.grad_acc_steps, configured.micro_batch_number]
        micro_steps = next((one for one in given if one is not None), 1)
        self._monitor.set_monitor(model, micro_steps, optimizer, start_iteration=start_iteration)

    def step(self, gradients: Any = None) -> None:
        """A step is over. Where the steps of an optimizer are watched, they end it, and this call changes nothing.

        Args:
            gradients: MindSpore, see `msmon.mindspore.TrainerMon.step`.
        """
        try:
            self._monitor.step(*(() if gradients is None else (gradients,)))
        except ValueError as error:
            if not self._said and not (self._form and self._form.patch_optimizer_step is False):
                self._said = True
                logger.warning("step() of the monitor has no effect: %s", error)

    def stop(self) -> None:
        """Write what is pending and take every hook off; harmless when called again."""
        self._monitor.close()
