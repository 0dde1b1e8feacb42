"""The two rules whose behaviour existing users rely on."""

import math

import numpy as np
import pytest

from msmon_alert import AnomalyNan, AnomalyTurbulence, Monitor

NAN, INF = math.nan, math.inf


def feed(rules, values, stat="norm", **flags):
    """Which rule fired at each value of one tensor: names, "" where none did."""
    monitor = Monitor(rules)
    fired = []
    for step, value in enumerate(values):
        alerts = monitor.observe(step, ["t"], [stat], np.array([[value]]), **flags)
        fired.append(alerts[0].rule if alerts else "")
    return fired


BOTH = [AnomalyTurbulence(threshold=0.5), AnomalyNan()]


@pytest.mark.parametrize("rules", [BOTH, BOTH[::-1]])
def test_a_nan_does_not_silence_the_rule(rules):
    assert feed(rules, [1, 1, NAN, 1, 100]) == ["", "", "AnomalyNan", "", "AnomalyTurbulence"]


def test_a_history_of_zero_alarms_at_nothing():
    assert feed(BOTH, [0, 0, 1e-12]) == ["", "", ""]


def test_a_small_first_value_gives_few_alarms():
    assert sum(map(bool, feed(BOTH, [0.01] + [1] * 200))) <= 3


def test_average_is_plain_for_100_finite_values_then_exponential():
    generator = np.random.default_rng(0)
    values = generator.normal(size=300)
    values[[5, 50, 150]] = NAN, INF, -INF
    monitor = Monitor([AnomalyTurbulence(threshold=0)])
    finite, average = [], None
    for step, value in enumerate(values):
        alerts = monitor.observe(step, ["t"], ["mean"], np.array([[value]]))
        expected = average is not None and abs(value) > average
        assert bool(alerts) == expected
        if alerts:
            assert alerts[0].history == pytest.approx(average, rel=1e-12)
        if math.isfinite(value):
            finite.append(abs(value))
            average = np.mean(finite) if len(finite) <= 100 else 0.99 * average + 0.01 * abs(value)


def test_turbulence_judges_norm_and_mean_alone():
    for stat in ("norm", "mean"):
        assert feed(BOTH, [1, 100], stat) == ["", "AnomalyTurbulence"]
    for stat in ("min", "max", "zeros", "nans", "std", "rms", "absmax", "infs", "shape", "dtype"):
        assert "AnomalyTurbulence" not in feed([AnomalyTurbulence(threshold=0.5)], [1, 100], stat)


def test_first_rule_that_applies_reports():
    monitor = Monitor(BOTH)
    stats = ["norm", "max", "nans"]
    monitor.observe(0, ["t"], stats, np.array([[1.0, 1.0, 0.0]]))
    (alert,) = monitor.observe(1, ["t"], stats, np.array([[INF, INF, 3.0]]))
    assert [(f.stat, f.rule) for f in alert.fired] == [
        ("norm", "AnomalyTurbulence"),
        ("max", "AnomalyNan"),
        ("nans", "AnomalyNan"),
    ]
    assert (alert.rule, alert.stat, alert.value, alert.history) == ("AnomalyTurbulence", "norm", INF, 1.0)


def test_norm_and_mean_of_one_tag_have_their_own_histories():
    monitor = Monitor([AnomalyTurbulence(threshold=0.5)])
    for step in range(5):
        assert monitor.observe(step, ["t"], ["norm", "mean"], np.array([[100.0, 1.0]])) == []
    (alert,) = monitor.observe(5, ["t"], ["norm", "mean"], np.array([[1000.0, 10.0]]))
    assert [(f.stat, f.history) for f in alert.fired] == [("norm", 100.0), ("mean", 1.0)]


def test_nan_fires_on_nan_inf_and_counts():
    rule = [AnomalyNan()]
    for stat in ("norm", "mean", "min", "max", "std", "rms", "absmax"):
        assert feed(rule, [1, NAN, INF, -INF, 1e300], stat) == ["", *["AnomalyNan"] * 3, ""]
    for stat in ("nans", "infs"):
        assert feed(rule, [0, 1, 1e6, 0], stat) == ["", "AnomalyNan", "AnomalyNan", ""]
    for stat in ("shape", "dtype"):
        assert feed(rule, [NAN, INF], stat) == ["", ""]


def test_threshold_of_nan_is_for_values_not_for_counts():
    rule = [AnomalyNan(threshold=10)]
    for stat in ("norm", "mean", "min", "max", "std"):
        assert feed(rule, [10, 11, -11, -10], stat) == ["", "AnomalyNan", "AnomalyNan", ""]
    for stat in ("zeros", "shape", "dtype"):
        assert feed([AnomalyNan(threshold=0.1)], [0.5, 1], stat) == ["", ""]
    assert feed([AnomalyNan(threshold=5)], [0, 1], "nans") == ["", "AnomalyNan"]


MASK_STATS = ["min", "max", "mean", "norm", "nans", "std", "infs"]
MASK = [-INF, 0, -INF, INF, 0, NAN, 6]
FINITE = [-1, 0, -0.5, 3, 0, 0.5, 0]
MASK_WITH_NAN = [NAN, NAN, NAN, NAN, 2, NAN, 6]


@pytest.mark.parametrize(
    ("rows", "no_grad", "expected"),
    [
        ([MASK, MASK, MASK], True, [False, False, False]),
        ([MASK, MASK], False, [True, True]),
        ([FINITE, MASK], True, [False, True]),
        ([MASK, FINITE, MASK], True, [False, False, True]),
        ([MASK, MASK_WITH_NAN, MASK], True, [False, True, False]),
        ([MASK_WITH_NAN, MASK], True, [True, True]),
    ],
)
def test_inf_of_an_input_that_always_held_it(rows, no_grad, expected):
    monitor = Monitor([AnomalyNan()])
    fired = [
        bool(monitor.observe(step, ["m.mask"], MASK_STATS, np.array([row]), no_grad=[no_grad]))
        for step, row in enumerate(rows)
    ]
    assert fired == expected


def test_integer_inputs_have_no_norm_alarm():
    rules = [AnomalyTurbulence(threshold=0.5), AnomalyNan(threshold=50)]
    assert feed(rules, [1, 100], discrete=[True]) == ["", ""]
    assert feed(rules, [1, 100], discrete=[False]) == ["", "AnomalyTurbulence"]


def test_micro_steps_are_tensors_of_their_own():
    monitor = Monitor([AnomalyTurbulence(threshold=0.5)])
    tags = ["0:fc.input:0/rank0/actv", "0:fc.input:1/rank0/actv"]
    for step in range(3):
        assert not monitor.observe(step, tags, ["norm"], np.array([[1.0], [100.0]]))
    (alert,) = monitor.observe(3, tags, ["norm"], np.array([[100.0], [100.0]]))
    assert (alert.tag, alert.index) == (tags[0], 0)
