"""Trainers that have a place for callbacks: Hugging Face's gets one more, and so do all that are made of it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from msmon.config import output_dir
from msmon.launching.found import Found
from msmon.launching.program import configuration
from msmon.launching.watchers import Watchers


def imported(module: ModuleType) -> None:
    """`transformers.trainer` has been imported by the program."""
    from msmon.integrations import transformers

    module.DEFAULT_CALLBACKS.append(_launched(transformers.MsmonCallback))


def lightning_callbacks() -> list[Any]:
    """What Lightning adds to each of its trainers (entry point `callbacks_factory`); outside of `msmon run` nothing."""
    if not configuration():
        return []
    from msmon.integrations import lightning

    return [_launched(lightning.MsmonCallback)()]


def _launched(callback: type[Any]) -> type[Any]:
    """A callback that leaves a training alone that is watched already, and says what it watches."""

    class MsmonRunCallback(callback):  # type: ignore[misc]
        _watchers = Watchers("msmon.pytorch")

        def __init__(self) -> None:
            super().__init__(**configuration())

        def _begin(self, model: Any, *, grad_acc_steps: int, optimizer: Any, start_iteration: int) -> None:
            def begin() -> None:
                if self._watchers.others_watch():
                    return
                super(MsmonRunCallback, self)._begin(
                    model, grad_acc_steps=grad_acc_steps, optimizer=optimizer, start_iteration=start_iteration
                )
                found = Found(models=[model], optimizers=[optimizer])
                self._watchers.announce(self.monitor, found, f"from step {start_iteration} on", output_dir())

            self._watchers.guarded(begin)

    return MsmonRunCallback
