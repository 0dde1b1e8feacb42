"""Data-parallel ranks see different data, tensor-parallel ranks the same, and every step new ones."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import numpy.typing as npt

from msmon.reading.index import Index, Ints
from msmon.verifying.equality import Equality, common_statistics, value_texts
from msmon.verifying.expectations import Expectations
from msmon.verifying.report import Outcome, Violation, ranks_in_words
from msmon.verifying.windows import Mask, Observed, Window, micro_step_of, row_keys

NAME = "data"
TITLE = "Data-parallel ranks see different data, tensor-parallel ranks the same, and each step new data"

DATA_TYPE = "actv"
#: So many steps in a row ranks have to see the same before it is no chance, and the loader no longer at its end.
_IN_A_ROW = 2
#: So many steps in a row the same input has to come again, after steps that had new ones.
_STUCK = 3

_SAME = (
    "all recorded activations are equal: these ranks got the same batches (a sampler without rank or world size, or "
    "the same seed)"
)
_OTHER = "ranks of a tensor-parallel group got different inputs: each has a data loader of its own, with another seed?"
_REPEATED = "the inputs of this step are those of the step before, and stay so: the data loader is stuck"


@attrs.frozen(kw_only=True)
class _Run:
    """Steps in a row at which something was so."""

    first: int = -1
    length: int = 0
    kept: int = -1
    """The first step of the first run that was long enough."""

    def then(self, step: int, so: bool, enough: int) -> _Run:
        """With one more step."""
        if not so:
            return attrs.evolve(self, first=-1, length=0)
        first = self.first if self.length else step
        length = self.length + 1
        kept = first if self.kept < 0 and length >= enough else self.kept
        return _Run(first=first, length=length, kept=kept)


class DifferentData:
    """Compares the activations of ranks at the same step, and inputs from step to step."""

    data_types = (DATA_TYPE,)

    def __init__(self, expectations: Expectations) -> None:
        self._expected = expectations
        self._equality = Equality()
        self._compared = 0
        self._steps = 0
        self._pairs: dict[tuple[int, int], _Run] = {}
        self._example: dict[tuple[int, int], tuple[int, int | None, str, str, str]] = {}
        self._others: list[Violation] = []
        self._stuck: dict[int, _Run] = {}
        self._last_inputs: dict[int, npt.NDArray[np.uint64]] = {}
        self._ever_new: set[int] = set()
        self._looked = False
        self._prints = False

    def look(self, window: Window) -> None:
        """See these steps."""
        observed = window.types.get(DATA_TYPE)
        if observed is None or not observed.numbers():
            return
        self._looked = True
        self._steps += len(window.steps)
        if self._expected.data_groups:
            self._data_parallel(window, observed)
        inputs = _inputs(observed.index)
        if len(inputs):
            self._tensor_parallel(window, observed, inputs)
            self._step_to_step(window, observed, inputs)

    def _data_parallel(self, window: Window, observed: Observed) -> None:
        members = sorted({at for group in self._expected.data_groups for at in group})
        micro = np.array([row.micro_step for row in observed.index.rows])
        steps = np.unique(micro)
        signs = {at: _signatures(observed, at, micro, steps) for at in members}
        for group in self._expected.data_groups:
            for number, at in enumerate(group):
                for other in group[number + 1 :]:
                    (one, there), (two, also) = signs[at], signs[other]
                    both = there & also
                    same = both & (one == two)
                    self._compared += int(both.sum())
                    run = self._pairs.get((at, other), _Run())
                    for step in np.flatnonzero(both.any(axis=1)).tolist():
                        alike = bool(same[step].sum() == both[step].sum())
                        if alike and (at, other) not in self._example:
                            self._example[at, other] = self._sample(window, observed, at, step)
                        run = run.then(int(window.steps[step]), alike, _IN_A_ROW)
                    self._pairs[at, other] = run

    @staticmethod
    def _sample(window: Window, observed: Observed, at: int, step: int) -> tuple[int, int | None, str, str, str]:
        """A tensor that both have alike, to show."""
        keys, present = row_keys(observed.index), observed.present(at)[step]
        row = int(np.flatnonzero(present)[0])
        stats = common_statistics(observed, observed)
        stat = "norm" if "norm" in stats else stats[0]
        value = value_texts(observed, at, step, row, [stat])[stat]
        return int(window.steps[step]), micro_step_of(keys[row]), keys[row].tensor.label(), stat, value

    def _tensor_parallel(self, window: Window, observed: Observed, inputs: Ints) -> None:
        keys = row_keys(observed.index)
        for group in self._expected.tensor_groups:
            for other in group[1:]:
                broken = self._equality.unequal(observed, group[0], observed, other, inputs)
                if not broken.any() or self._others:
                    continue
                step = int(broken.any(axis=1).argmax())
                row = int(inputs[int(broken[step].argmax())])
                stats = common_statistics(observed, observed)
                texts = [value_texts(observed, at, step, row, stats) for at in (group[0], other)]
                stat = next((stat for stat in stats if texts[0][stat] != texts[1][stat]), stats[0])
                ranks = [self._expected.ranks[at] for at in (group[0], other)]
                self._others.append(
                    Violation(
                        step=int(window.steps[step]),
                        data_type=DATA_TYPE,
                        tensor=keys[row].tensor.label(),
                        micro_step=micro_step_of(keys[row]),
                        ranks=tuple(ranks),
                        stat=stat,
                        values={f"rank {rank}": text[stat] for rank, text in zip(ranks, texts, strict=True)},
                        guess=_OTHER,
                    )
                )

    def _step_to_step(self, window: Window, observed: Observed, inputs: Ints) -> None:
        for at in range(len(self._expected.ranks)):
            prints = observed.fingerprints(at)
            if prints is None:
                continue
            values, present = prints[0][:, inputs], prints[1][:, inputs]
            for step in np.flatnonzero(present.any(axis=1)).tolist():
                self._prints = True
                now, last = values[step], self._last_inputs.get(at)
                self._last_inputs[at] = now.copy()
                if last is None or last.shape != now.shape:
                    continue
                again = bool((now == last).all())
                self._compared += 1
                if not again:
                    self._ever_new.add(at)
                run = self._stuck.get(at, _Run())
                self._stuck[at] = run.then(int(window.steps[step]), again, _STUCK)

    def outcome(self) -> Outcome:
        """Whether it holds."""
        compared = self._compared + self._equality.comparisons
        if not compared:
            return Outcome(invariant=NAME, title=TITLE, reason=self._reason())
        violations = sorted([*self._same(), *self._others, *self._repeated()], key=lambda one: one.step)
        reason = "" if self._prints else "from step to step nothing was compared: that needs fingerprint in ops"
        notes = []
        if self._stuck and not self._ever_new and any(run.length for run in self._stuck.values()):
            notes.append("every step has the same inputs: one batch over and over, which is taken for the purpose")
        return Outcome(
            invariant=NAME,
            title=TITLE,
            comparisons=compared,
            how="all activations of a micro-step",
            reason=reason,
            violations=violations,
            notes=notes,
        )

    def _reason(self) -> str:
        if not self._looked:
            return "actv not recorded (xy_distribution)"
        if not self._expected.known:
            return "it is not known which ranks are data-parallel"
        return "there is one rank that gets data, and no fingerprint in ops to compare steps with"

    def _same(self) -> Iterator[Violation]:
        """Ranks with the same data, those that are alike in one violation."""
        together: dict[int, list[tuple[int, int]]] = {}
        for pair, run in self._pairs.items():
            step = run.kept if run.kept >= 0 else run.first if run.length == self._steps else -1
            if step >= 0:
                together.setdefault(step, []).append(pair)
        for step, pairs in together.items():
            ranks = tuple(sorted({self._expected.ranks[at] for pair in pairs for at in pair}))
            _, micro_step, tensor, stat, value = self._example[pairs[0]]
            yield Violation(
                step=step,
                data_type=DATA_TYPE,
                tensor=tensor,
                micro_step=micro_step,
                ranks=ranks,
                stat=stat,
                values={ranks_in_words(ranks): value},
                guess=_SAME,
            )

    def _repeated(self) -> Iterator[Violation]:
        found = [(run.kept, at) for at, run in self._stuck.items() if run.kept >= 0 and at in self._ever_new]
        for step, at in sorted(found)[:1]:
            ranks = tuple(self._expected.ranks[other] for first, other in found if first == step)
            yield Violation(
                step=step,
                data_type=DATA_TYPE,
                tensor="",
                ranks=ranks,
                minority=ranks,
                stat="fingerprint",
                values={"inputs": f"{int(self._last_inputs[at][0]):016x}"},
                guess=_REPEATED,
            )


def _inputs(index: Index) -> Ints:
    """The inputs of the model itself, where they come from the data and from no earlier pipeline stage."""
    return np.array(
        [n for row, n in index.rows.items() if row.tensor.pp_stage == 0 and row.tensor.name.startswith(".input")],
        np.int64,
    )


def _signatures(observed: Observed, at: int, micro: Ints, steps: Ints) -> tuple[npt.NDArray[np.uint64], Mask]:
    """A number for all activations of a micro-step, equal where all their values are; and where there are any.

    Both (steps, micro-steps).
    """
    prints = observed.fingerprints(at)
    columns = (
        [prints[0]]
        if prints is not None
        else [observed.values(at, observed.index.stats[number]).view(np.uint64) for number in observed.numbers()]
    )
    present = observed.present(at)
    mixed = np.zeros(present.shape, np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            mixed = _mix(mixed ^ column)
        # Which row it is counts, too.
        mixed = _mix(mixed ^ (np.arange(present.shape[1], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))) * present
        signs = np.stack([mixed[:, micro == one].sum(axis=1, dtype=np.uint64) for one in steps], axis=1)
    there = np.stack([present[:, micro == one].any(axis=1) for one in steps], axis=1)
    return signs, there


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Bits that depend on all bits: splitmix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))
