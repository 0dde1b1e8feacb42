"""What the training script asks for: the statistics of now, as dictionaries."""

from __future__ import annotations

from typing import Any

from msmon.session import Session
from msmon.step_in_flight import Metrics, activations_so_far, current_gradients
from msmon_hooks import Clock, Guarded


class MetricsCalls:
    """The calls of `msmon.monitor.BaseTrainerMon` that answer with statistics."""

    _session: Session | None
    _attachment: Any
    _clock: Clock
    _rank: int
    _asking_gradients: Guarded
    _asking_activations: Guarded

    def generate_wgrad_metrics(self) -> tuple[Metrics, Metrics]:
        """Statistics of the current weight gradients, reduced and unreduced, anywhere in the program.

        After a step and before the next backward: those of the last step. During a step: what the optimizer would
        consume now, and, where ranks reduce, what was recorded of the gradients before that. Waits for the device.

        Returns:
            Two dictionaries, `"0:fc1.weight/rank0/grad_reduced"` to `{"norm": 0.12, ...}`.
        """
        session = self._session
        if session is None or not session.config.wg_distribution:
            return {}, {}
        hooks = self._attachment.weight_hooks if self._attachment is not None and self._clock.in_step else None
        args = (hooks, session.collector, session.config, self._rank)
        current = self._asking_gradients.run(current_gradients, *args) if hooks is not None else None
        return current or (self._metrics("grad_reduced"), self._metrics("grad_unreduced"))

    def generate_xy_metrics(self) -> tuple[Metrics, Metrics]:
        """Statistics of the activations and of their gradients, of the step so far; between two steps, and in one that
        is not sampled, those of the last that was. Waits for the device."""
        session = self._session
        if session is not None and self._clock.in_step and self._clock.sampled:
            current = self._asking_activations.run(activations_so_far, session.collector, session.config, self._rank)
            if current is not None:
                return current
        return self._metrics("actv"), self._metrics("actv_grad")

    def _metrics(self, data_type: str) -> Metrics:
        if self._session is None:
            return {}
        self._session.pipeline.drain()
        return self._session.pipeline.metrics(data_type)
