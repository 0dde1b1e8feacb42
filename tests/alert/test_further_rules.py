"""The rules beyond the documented two: what they find, and when they keep quiet."""

import math

import numpy as np
import pytest

from msmon_alert import (
    AnomalyConstant,
    AnomalyDead,
    AnomalyFrozen,
    AnomalyOverwritten,
    AnomalySpike,
    AnomalyVanish,
    Monitor,
)

NAN = math.nan


def fired_at(rule, values, stat="norm", tag="t", **flags):
    """Steps at which the rule fires on a series of one tensor."""
    monitor = Monitor([rule])
    return [
        step
        for step, value in enumerate(values)
        if monitor.observe(step, [tag], [stat], np.array([[value]], dtype=float), **flags)
    ]


class TestSpike:
    def reference(self, values, floor, threshold=8.0, window=32):
        """The rule as its docstring says it, value by value."""
        past, fired = [], []
        for step, value in enumerate(values):
            if not math.isfinite(value) or value == 0:
                continue
            log = math.log(abs(value))
            recent = np.array(past[-window:], dtype=np.float32).astype(float)
            if len(recent) == window:
                half = window // 2
                slope = (np.median(recent[half:]) - np.median(recent[:half])) / half
                flat = recent - slope * np.arange(window)
                plain, trend = (1.4826 * np.median(np.abs(r - np.median(r))) for r in (recent, flat))
                sigma = min(plain, trend + 2 * abs(slope)) + floor
                if max(log - recent.max(), recent.min() - log) > threshold * sigma:
                    fired.append(step)
            past.append(log)
        return fired

    @pytest.mark.parametrize(
        ("tag", "floor"),
        [("t", 0.02), ("w/param_origin", 0.005), ("w/param_updated", 0.005), ("w/exp_avg", 0.1), ("w/exp_avg_sq", 0.2)],
    )
    def test_agrees_with_its_definition(self, tag, floor):
        generator = np.random.default_rng(3)
        found = 0
        for spread in (0.0, 0.003, 0.05, 0.3):
            values = np.exp(np.cumsum(generator.normal(scale=spread / 5, size=400)) + generator.normal(scale=spread))
            values *= np.exp(spread * generator.standard_t(2, size=400))
            values[generator.integers(0, 400, 12)] *= 10.0 ** generator.uniform(-2, 2, 12)
            values[[20, 90, 91]] = NAN, math.inf, 0.0
            expected = self.reference(values, floor)
            assert fired_at(AnomalySpike(), values, tag=tag) == expected
            found += len(expected)
        assert found > 10

    def test_tensors_of_one_table_do_not_disturb_each_other(self):
        generator = np.random.default_rng(4)
        series = np.exp(generator.normal(scale=0.1, size=(200, 50)))
        series[generator.integers(40, 200, 30), generator.integers(0, 50, 30)] *= 100
        monitor = Monitor([AnomalySpike()])
        fired = [[] for _ in range(50)]
        for step in range(200):
            order = generator.permutation(50)  # rows of the histories are not adjacent then
            for alert in monitor.observe(step, [f"t{i}" for i in order], ["norm"], series[step, order, None]):
                fired[int(alert.tag[1:])].append(step)
        assert sum(map(len, fired)) > 20
        for tensor in range(50):
            assert fired[tensor] == self.reference(series[:, tensor], 0.02)

    def test_trends_and_lasting_changes(self):
        for growth in (1.05, 0.7, 3.0):
            trend = growth ** np.arange(100.0)
            assert fired_at(AnomalySpike(), trend) == []
            assert fired_at(AnomalySpike(), [*trend[:60], trend[60] * growth**30]) == [60]
        assert fired_at(AnomalySpike(), [1.0] * 40 + [50.0] * 40) == [40]
        assert fired_at(AnomalySpike(), [1.0] * 40 + [0.02] * 40) == [40]

    def test_a_history_of_zero_or_nothing(self):
        assert fired_at(AnomalySpike(), [0.0] * 50 + [1.0] * 3) == []
        assert fired_at(AnomalySpike(), [1.0] * 31 + [1e6]) == []
        assert fired_at(AnomalySpike(), [1.0] * 32 + [1e6]) == [32]

    def test_share_of_zeros_counts_as_the_share_that_is_not_zero(self):
        quiet = [0.1 + 0.01 * (step % 3) for step in range(40)]
        assert fired_at(AnomalySpike(), [*quiet, 0.6], stat="zeros") == [40]
        assert fired_at(AnomalySpike(), [*quiet, 0.15], stat="zeros") == []
        assert fired_at(AnomalySpike(), [*quiet, 0.6], stat="zeros", tag="w/exp_avg_sq") == []
        monitor = Monitor([AnomalySpike()])
        for step in range(40):
            monitor.observe(step, ["t"], ["zeros"], [[0.1]])
        (alert,) = monitor.observe(40, ["t"], ["zeros"], [[0.8]])
        assert alert.history == pytest.approx(0.1)

    def test_outliers_of_activations_and_new_weights(self):
        for stat in ("min", "max"):
            values = [2 - step % 2 / 10 for step in range(40)]
            for sign in (1, -1):
                outlier = [sign * value for value in [*values, 20]]
                for kind, expected in (("actv", [40]), ("param_updated", [40]), ("param_origin", []), ("exp_avg", [])):
                    assert fired_at(AnomalySpike(), outlier, stat=stat, tag=f"0:fc/rank0/{kind}") == expected
            relu = [0.0] * 41
            assert fired_at(AnomalySpike(), relu, stat=stat, tag="0:fc.output:0/rank0/actv") == []
            fall = [*values, 0.01]
            assert fired_at(AnomalySpike(), fall, stat=stat, tag="0:fc.output:0/rank0/actv") == []

    def test_a_learning_rate_shows_in_the_largest_weight(self):
        largest = [0.2 + 5e-4 * step for step in range(60)] + [0.28]
        assert fired_at(AnomalySpike(), largest, stat="max", tag="0:fc.weight/rank0/param_updated") == [60]

    @pytest.mark.parametrize("kind", ["param_updated", "actv", "grad_reduced"])
    def test_a_single_number_may_pass_through_zero(self, kind):
        """A bias of one element, the output of a value head: its norm falls by any factor on the way."""
        for seed in range(20):
            generator = np.random.default_rng(seed)
            line = (generator.uniform(40, 150) - np.arange(200)) * 1e-3
            noise = generator.normal(size=200) * (2e-4 if kind == "param_updated" else 1e-3)
            for sign in (1, -1):
                numbers = sign * (line + noise)
                monitor = Monitor([AnomalySpike()])
                for step, x in enumerate(numbers):
                    assert not monitor.observe(step, [f"b/{kind}"], ["norm", "min", "max"], [[abs(x), x, x]])
        monitor = Monitor([AnomalySpike()])
        for step in range(40):
            assert not monitor.observe(step, [f"b/{kind}"], ["norm", "min", "max"], [[1.0, 1.0, 1.0]])
        (alert,) = monitor.observe(40, [f"b/{kind}"], ["norm", "min", "max"], [[9.0, -9.0, -9.0]])
        assert alert.fired[0].stat == "norm"

    def test_integers_are_not_judged(self):
        for stat in ("norm", "rms", "zeros", "min", "max", "mean"):
            assert fired_at(AnomalySpike(), [0.5] * 40 + [1e4], stat=stat, discrete=[True]) == []

    def test_the_window_can_be_chosen(self):
        assert fired_at(AnomalySpike(window=8), [1.0] * 8 + [9.0]) == [8]


class TestVanish:
    ALIVE = (1.0,) * 20

    def test_falls_below_the_floor_until_it_is_back(self):
        assert fired_at(AnomalyVanish(), [*self.ALIVE, 0, 1e-13, 1, 0]) == [20, 21]
        assert fired_at(AnomalyVanish(), [*self.ALIVE, 0, *self.ALIVE, 0]) == [20, 41]
        assert fired_at(AnomalyVanish(), [*self.ALIVE, 0], stat="rms") == [20]
        assert fired_at(AnomalyVanish(floor=1e-3), [*self.ALIVE, 1e-4]) == [20]
        assert fired_at(AnomalyVanish(), self.ALIVE + (0,) * 50) == list(range(20, 70))

    def test_quiet_without_a_long_and_plain_past(self):
        assert fired_at(AnomalyVanish(), [*self.ALIVE[1:], 0]) == []
        assert fired_at(AnomalyVanish(floor=1e-3), [0.5] * 30 + [1e-4]) == []
        assert fired_at(AnomalyVanish(), [0.0] * 30) == []
        assert fired_at(AnomalyVanish(), [0.0, 1.0] * 30) == []
        assert fired_at(AnomalyVanish(), [*self.ALIVE, 1e-10, 0]) == []  # slowly, through the range between
        assert fired_at(AnomalyVanish(), [*self.ALIVE, 0], discrete=[True]) == []
        for stat in ("mean", "min", "zeros", "nans", "std"):
            assert fired_at(AnomalyVanish(), [*self.ALIVE, 0], stat=stat) == []

    def test_nothing_is_learned_from_nan_and_inf(self):
        assert fired_at(AnomalyVanish(), [*self.ALIVE[:10], NAN, math.inf, *self.ALIVE[10:], NAN, 0]) == [23]

    def test_it_says_what_it_was_before(self):
        monitor = Monitor([AnomalyVanish()])
        for step in range(25):
            monitor.observe(step, ["t"], ["norm"], [[1.0 + step]])
        (alert,) = monitor.observe(25, ["t"], ["norm"], [[0.0]])
        assert alert.history == 25.0


class TestDead:
    ALIVE = (0.5,) * 20

    def test_share_for_so_many_steps(self):
        shares = [*self.ALIVE, 0.995, *self.ALIVE, 0.995, 1, 1]
        assert fired_at(AnomalyDead(), shares, stat="zeros") == [20, 41, 42, 43]
        assert fired_at(AnomalyDead(steps=2), shares, stat="zeros") == [42, 43]
        assert fired_at(AnomalyDead(steps=3), shares, stat="zeros") == [43]
        assert fired_at(AnomalyDead(threshold=1), [*shares[:20], 1, 1], stat="zeros") == [20, 21]
        assert fired_at(AnomalyDead(threshold=0.8), [*shares[:20], 0.79, 0.8], stat="zeros") == []
        assert fired_at(AnomalyDead(threshold=0.8), [*shares[:20], 0.8], stat="zeros") == [20]

    def test_quiet_without_a_long_and_plain_past(self):
        assert fired_at(AnomalyDead(), [*self.ALIVE[1:], 1], stat="zeros") == []
        assert fired_at(AnomalyDead(), [0.95] * 30 + [1], stat="zeros") == []
        assert fired_at(AnomalyDead(), [0.9] * 19 + [1] + [0.9] * 19 + [1], stat="zeros") == []
        assert fired_at(AnomalyDead(), [1] * 30, stat="zeros") == []
        assert fired_at(AnomalyDead(), [*self.ALIVE, 1], stat="zeros", tag="w/exp_avg_sq") == []
        assert fired_at(AnomalyDead(), [*self.ALIVE, 1], stat="zeros", discrete=[True]) == []
        assert fired_at(AnomalyDead(), [*self.ALIVE, 1], stat="norm") == []

    def test_quiet_on_rounding_noise(self):
        for norm, expected in ((1e-8, []), (1.0, [20])):
            monitor = Monitor([AnomalyDead()])
            shares = [*self.ALIVE, 1.0]
            fired = [s for s, z in enumerate(shares) if monitor.observe(s, ["t"], ["norm", "zeros"], [[norm, z]])]
            assert fired == expected


class TestConstant:
    VARIED = ((1.0, 99.0, 2000.0),) * 20

    def run(self, rows, tag="0:tokens.input:0/rank0/actv", stats=("min", "max", "norm"), **masks):
        """Steps that fired, for rows of (min, max, norm)."""
        monitor = Monitor([AnomalyConstant()])
        return [
            step for step, row in enumerate(rows) if monitor.observe(step, [tag], stats, [row[: len(stats)]], **masks)
        ]

    def test_until_the_elements_differ_again(self):
        rows = [*self.VARIED, (7, 7, 160), (7, 7, 160), *self.VARIED, (-7, -7, 160)]
        assert self.run(rows) == self.run(rows, discrete=[True], no_grad=[True]) == [20, 21, 42]
        assert self.run([*self.VARIED, (0, 0, 0)], discrete=[True]) == [20]

    def test_quiet_without_a_long_and_plain_past(self):
        constant = (7, 7, 160)
        assert self.run([*self.VARIED[1:], constant]) == []
        assert self.run([constant] * 50) == []
        assert self.run([*self.VARIED, (NAN, NAN, NAN), (math.inf, math.inf, math.inf), (0, 0, 0)]) == []
        assert self.run([*self.VARIED, (NAN, NAN, NAN), constant]) == [21]
        assert self.run([*self.VARIED, constant], tag="w/grad_reduced") == []
        assert self.run([*self.VARIED, constant], stats=("min", "max")) == []

    def test_quiet_on_few_elements_and_masks(self):
        assert self.run([(1, 9, 20)] * 20 + [(3, 3, 7)]) == []  # a handful of labels
        assert self.run([(0, 1, 30)] * 20 + [(1, 1, 40)], discrete=[True]) == []  # no padding in this batch
        assert self.run([(-1e4, 0, 1e6)] * 20 + [(0, 0, 0)], no_grad=[True]) == []
        assert self.run([(-math.inf, 0, math.inf)] * 20 + [(0, 0, 0)], no_grad=[True]) == []
        assert self.run([(0, 1, 30)] * 20 + [(1, 1, 40)], no_grad=[True]) == []


def weights(names, kind):
    return [f"0:{name}/rank0/{kind}" for name in names]


class TestFrozen:
    NAMES = ("a", "b", "c")

    def run(self, rule, moves, one_table=False, no_grad=None, scale=1e-3):
        """`moves` says for each step which weights move; returns (step, name, statistic) that fired."""
        monitor = Monitor([rule])
        found = []
        before = np.array([[0.5, 1.0], [0.5, 2.0], [0.5, 3.0]])
        for step, moving in enumerate(moves):
            after = before.copy()
            after[[self.NAMES.index(name) for name in moving], 1] *= 1 + scale
            tables = [(weights(self.NAMES, "param_origin"), before), (weights(self.NAMES, "param_updated"), after)]
            if one_table:
                tables = [(tables[0][0] + tables[1][0], np.concatenate([before, after]))]
            for tags, rows in tables:
                frozen = None if no_grad is None else np.resize(no_grad, len(tags))
                alerts = monitor.observe(step, tags, ["max", "norm"], rows, no_grad=frozen)
                found += [(alert.step, alert.tag[2], alert.stat) for alert in alerts]
            before = after
        return found

    LONG = ("abc",) * 20

    @pytest.mark.parametrize("one_table", [False, True])
    def test_a_weight_that_stops(self, one_table):
        moves = [*self.LONG, "ac", "ac", "ac", *self.LONG, "ac", "ac"]
        assert self.run(AnomalyFrozen(), moves, one_table) == [(step, "b", "norm") for step in (21, 22, 44)]
        assert self.run(AnomalyFrozen(steps=1), moves, one_table) == [(s, "b", "norm") for s in (20, 21, 22, 43, 44)]

    def test_steps_that_move_nothing_are_passed_over(self):
        assert self.run(AnomalyFrozen(steps=1), [*self.LONG, "", "", ""]) == []
        # and do not count: the weight rested in two steps in which others moved
        assert self.run(AnomalyFrozen(), [*self.LONG, "ac", "", "ac"]) == [(22, "b", "norm")]

    def test_quiet_without_a_long_and_plain_past(self):
        assert self.run(AnomalyFrozen(), [*self.LONG[1:], "ac", "ac"]) == []
        assert self.run(AnomalyFrozen(steps=1), ["ac"] * 50) == []
        assert self.run(AnomalyFrozen(steps=1), ["abc", "ac"] * 50) == []
        assert self.run(AnomalyFrozen(steps=1), [*self.LONG, "ac"], scale=1e-8) == []  # rounding noise
        assert self.run(AnomalyFrozen(steps=1), [*self.LONG, "ac"], no_grad=[False, True, False]) == []

    def test_any_statistic_that_moves_counts(self):
        monitor = Monitor([AnomalyFrozen(steps=1)])
        for step in range(25):
            values = [[1.0 + step, 5.0], [1.0, 2.0 + step], [2.0 + step, 5.0], [1.0, 3.0 + step]]
            tags = weights("ab", "param_origin") + weights("ab", "param_updated")
            assert not monitor.observe(step, tags, ["norm", "max"], values)

    def test_needs_both_tables(self):
        monitor = Monitor([AnomalyFrozen(steps=1)])
        for step in range(25):
            assert not monitor.observe(step, weights("ab", "param_updated"), ["norm"], [[1.0], [2.0 + step]])


class TestOverwritten:
    def run(self, values, stats=("norm", "max"), steps=None):
        """`values` are (before, after) of one weight; returns the steps that fired."""
        monitor = Monitor([AnomalyOverwritten()])
        found = []
        for number, (before, after) in enumerate(values):
            step = steps[number] if steps else number
            for kind, value in (("param_origin", before), ("param_updated", after)):
                row = [[value, 0.5]] if len(stats) == 2 else [[value]]
                alerts = monitor.observe(step, weights("w", kind), list(stats), np.array(row))
                found += [(alert.step, alert.stat, alert.history) for alert in alerts]
        return found

    def test_a_change_between_two_steps(self):
        assert self.run([(1.0, 1.1), (1.1, 1.2), (1.2000001, 1.3), (1.3, 1.4)]) == [(2, "norm", 1.2)]
        assert self.run([(1.0, 1.1), (1.1, 1.2), (1.25, 1.3)], stats=("mean",)) == [(2, "mean", 1.2)]
        assert self.run([(1.0, 1.1), (1.1, NAN), (NAN, NAN)]) == []
        assert self.run([(1.0, 1.1), (1.1, 1.2), (NAN, NAN)]) == [(2, "norm", 1.2)]

    def test_rounding_is_no_change(self):
        assert self.run([(1.0, 1.1), (1.1, 1.2), (1.2 * (1 + 1e-13), 1.3)]) == []

    def test_rests_between_sampled_steps_that_are_not_neighbours(self):
        assert self.run([(1.0, 1.1), (1.1, 1.2), (5.0, 5.1), (5.1, 5.2)], steps=[0, 1, 3, 4]) == []

    def test_weights_that_are_written_between_steps_by_design(self):
        assert self.run([(1.0, 1.1), (1.0, 1.1), (1.0, 1.1), (0.7, 1.0)]) == []


def test_rules_take_any_statistics():
    """Every rule on every documented statistic, text columns, empty masks and nan: no error, no warning."""
    stats = ["min", "max", "mean", "norm", "zeros", "nans", "std", "rms", "absmax", "infs", "shape", "dtype", "mine"]
    rules = [AnomalySpike(), AnomalyVanish(), AnomalyDead(), AnomalyConstant(), AnomalyFrozen(), AnomalyOverwritten()]
    generator = np.random.default_rng(0)
    monitor = Monitor(rules)
    tags = weights("abc", "param_origin") + weights("abc", "param_updated") + ["x", "0:m.input:0/rank0/actv"]
    for step in range(80):
        values = generator.normal(size=(len(tags), len(stats)))
        values[generator.random(values.shape) < 0.2] = generator.choice([NAN, math.inf, -math.inf, 0.0])
        values[:, -2:] = NAN
        monitor.observe(
            step, tags, stats, values, no_grad=generator.random(8) < 0.5, discrete=generator.random(8) < 0.5
        )
