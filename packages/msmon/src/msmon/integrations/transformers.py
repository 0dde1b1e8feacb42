"""A callback for Hugging Face's `Trainer`: `Trainer(..., callbacks=[MsmonCallback("monitor_config.json")])`."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError("msmon.integrations.transformers needs transformers: pip install transformers") from error

from msmon.integrations.watching import Watching

_CALLERS = 6
"""The trainer is the caller of the handler that calls the callback; a subclass may put a few functions between."""


class MsmonCallback(Watching, TrainerCallback):  # type: ignore[misc]
    """Watches a training of Hugging Face's `Trainer`, from `on_train_begin` to `on_train_end`.

    Accumulation, resumed training (the first step has the trainer's number), DDP, FSDP and DeepSpeed are found by
    themselves.

    Args:
        config_file_path: the configuration file; or `config`, what would stand in it, or `watch`, such as "wg,xy".
        groups: `process_group` (the pipeline-parallel group), `dp_group` and `tp_group`, as in
            `msmon.pytorch.TrainerMon.set_monitor`.

    Raises:
        msmon.config.ConfigError: the file is missing or wrong.

    Example:
        trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[MsmonCallback("monitor_config.json")])
        trainer.train()
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The model is wrapped and the optimizer is made: put the hooks on."""
        self._begin(
            _wrapped(kwargs["model"], sys._getframe(1)),
            grad_acc_steps=args.gradient_accumulation_steps,
            optimizer=kwargs["optimizer"],
            start_iteration=state.global_step,
        )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write what is pending and take the hooks off."""
        self._close()


def _wrapped(model: Any, frame: FrameType | None) -> Any:
    """What the trainer calls in its loop: the model in DDP, in a DeepSpeed engine, compiled.

    Callbacks are given the model inside, and nothing that leads to the outer one but their callers.
    """
    for _ in range(_CALLERS):
        if frame is None:
            break
        caller = frame.f_locals.get("self")
        wrapped = getattr(caller, "model_wrapped", None)
        if wrapped is not None and getattr(caller, "model", None) is model:
            return wrapped
        frame = frame.f_back
    return model
