"""The gradient of a step is the sum of those of its micro-batches.

A bias is added to an output, so its gradient is the sum of the output's gradient over all positions. That is an
identity of sums, for every layer that adds its bias last, and tells what a micro-batch contributes with no other read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import attrs
import numpy as np

from msmon.reading.index import Ints, TensorKey
from msmon.reading.run import Run
from msmon.reading.statistics import Floats
from msmon.reading.text_columns import SHAPE
from msmon.verifying.expectations import Expectations, elements
from msmon.verifying.gradient_sums import BEFORE, SAFETY, last_micro_step, precision_of
from msmon.verifying.report import Outcome, Violation
from msmon.verifying.windows import Observed, Window, rows_by_tensor

NAME = "micro-batches"
TITLE = "The micro-batches of a step add up to its gradient"

OUTPUTS = "actv_grad"
_OUTPUT = re.compile(r"(?P<module>.*?)(@\d+)?\.output")

_LAST_ALONE = "it is the gradient of the last micro-batch alone: the gradient was cleared between micro-steps"
_NOT_SUM = "it is not the sum over the micro-batches, and was at other steps"


@attrs.define(kw_only=True)
class _Bias:
    """One bias on one rank."""

    steps: int = 0
    held: int = 0
    first_broken: tuple[int, float, float] | None = None
    """Step, the gradient's sum, what it should be."""
    last_alone: int = 0
    """At how many steps it was the last micro-batch's gradient, where that is another than the sum."""


class MicroBatches:
    """Compares gradients of biases with the gradients of the outputs they are added to."""

    data_types = (BEFORE, OUTPUTS)

    def __init__(self, run: Run, expectations: Expectations, digits: int | None) -> None:
        self._expected = expectations
        self._rounding = 0.0 if digits is None else 0.5 * 10.0 ** (1 - digits)
        self._found: dict[tuple[int, TensorKey], _Bias] = {}
        self._reason = f"{BEFORE} and {OUTPUTS} were not both recorded (wg_distribution, xy_distribution)"
        self._not_summed = next(
            (str(note) for rank in run.ranks.values() for note in _notes(rank.coverage) if "micro-step" in str(note)),
            "",
        )

    def look(self, window: Window) -> None:
        """See these steps."""
        gradients, outputs = window.types.get(BEFORE), window.types.get(OUTPUTS)
        if gradients is None or outputs is None:
            return
        if self._not_summed or self._expected.grad_acc_steps < 2:
            self._reason = self._not_summed or "a step has one micro-step"
            return
        lacking = [
            one for one in ("mean", "norm", SHAPE) if not outputs.has(one) or (one != SHAPE and not gradients.has(one))
        ]
        if lacking:
            self._reason = f"{' and '.join(lacking)} not in ops"
            return
        fewer = _micro_steps(outputs)
        if fewer < self._expected.grad_acc_steps:
            self._reason = (
                f"grad_acc_steps is {self._expected.grad_acc_steps}, and the steps consumed the gradients of {fewer}: "
                "were gradients cleared between micro-steps?"
            )
            return
        self._reason = "no bias whose module's output gradient was recorded"
        of_module = _outputs_by_module(outputs)
        for tensor, rows in rows_by_tensor(gradients.index).items():
            module = attrs.evolve(tensor, name=tensor.name.removesuffix(".bias"))
            if module.name != tensor.name and module in of_module:
                for at in range(len(self._expected.ranks)):
                    self._compare(window, gradients, outputs, tensor, rows, of_module[module], at)

    def _compare(
        self,
        window: Window,
        gradients: Observed,
        outputs: Observed,
        tensor: TensorKey,
        rows: list[int],
        of_micro_step: Mapping[int, Ints],
        at: int,
    ) -> None:
        shared = self._expected.tensors.get(tensor, {}).get(at)
        if shared is None:
            return
        numel = elements(shared)
        found = last_micro_step(gradients, at, "mean", [rows])[:, 0] * numel
        length = last_micro_step(gradients, at, "norm", [rows])[:, 0]
        sums: dict[int, Floats] = {}
        squares, digits = np.zeros(len(found)), np.abs(np.nan_to_num(found))
        for micro_step, columns in of_micro_step.items():
            there = outputs.present(at)[:, columns]
            parts = outputs.values(at, "mean")[:, columns] * outputs.values(at, SHAPE)[:, columns]
            sums[micro_step] = np.where(there, parts, 0.0).sum(axis=1)
            squares += np.where(there, outputs.values(at, "norm")[:, columns] ** 2, 0.0).sum(axis=1)
            digits += np.abs(np.where(there, parts, 0.0)).sum(axis=1)
        if len(sums) < 2:
            return
        eps, tiny = precision_of(str(shared.entry.fields.get("dtype", "")))
        limit = SAFETY * eps * (4 * np.sqrt(squares) + length) + self._rounding * digits + tiny * np.sqrt(numel)
        total, last = np.sum(list(sums.values()), axis=0), sums[max(sums)]
        with np.errstate(invalid="ignore"):
            known = np.isfinite(found) & np.isfinite(total)
            held = np.abs(found - total) <= limit
            alone = (np.abs(found - last) <= limit) & (np.abs(total - last) > 4 * limit)
        one = self._found.setdefault((at, tensor), _Bias())
        one.steps += int(known.sum())
        one.held += int((known & held).sum())
        one.last_alone += int((known & alone).sum())
        broken = np.flatnonzero(known & ~held)
        if len(broken) and one.first_broken is None:
            step = int(broken[0])
            one.first_broken = int(window.steps[step]), float(found[step]), float(total[step])

    def outcome(self) -> Outcome:
        """Whether it holds."""
        violations = sorted(self._violations(), key=lambda one: one.step)
        # Of others the bias is not what is added last.
        known = [one for one in self._found.values() if 2 * one.held >= one.steps]
        compared = sum(one.steps for one in known) + sum(1 for _ in violations)
        if not compared:
            return Outcome(invariant=NAME, title=TITLE, reason=self._reason)
        return Outcome(
            invariant=NAME,
            title=TITLE,
            comparisons=compared,
            how="gradients of biases with those of the outputs they are added to",
            violations=violations,
        )

    def _violations(self) -> Iterator[Violation]:
        for (at, tensor), one in self._found.items():
            if one.first_broken is None:
                continue
            alone = one.last_alone > 0 and one.last_alone + one.held >= one.steps
            if not alone and 2 * one.held < one.steps:
                continue
            step, found, should = one.first_broken
            rank = self._expected.ranks[at]
            yield Violation(
                step=step,
                data_type=BEFORE,
                tensor=tensor.label(),
                ranks=(rank,),
                minority=(rank,),
                stat="sum of all elements",
                values={"gradient of the step": f"{found:.9g}", "sum over the micro-batches": f"{should:.9g}"},
                guess=_LAST_ALONE if alone else _NOT_SUM,
            )


def _outputs_by_module(outputs: Observed) -> dict[TensorKey, dict[int, Ints]]:
    """Module -> micro-step -> the rows of its output, of all its calls; no modules with several outputs."""
    found: dict[TensorKey, dict[int, list[int]]] = {}
    for row, number in outputs.index.rows.items():
        match = _OUTPUT.fullmatch(row.tensor.name)
        if match:
            module = attrs.evolve(row.tensor, name=match["module"])
            found.setdefault(module, {}).setdefault(row.micro_step, []).append(number)
    return {module: {step: np.array(rows) for step, rows in own.items()} for module, own in found.items()}


def _micro_steps(outputs: Observed) -> int:
    """How many micro-steps the longest step has."""
    return 1 + max((row.micro_step for row in outputs.index.rows), default=0)


def _notes(coverage: Mapping[str, object]) -> list[object]:
    notes = coverage.get("notes")
    return [note for note in notes if str(note).startswith(BEFORE)] if isinstance(notes, list) else []
