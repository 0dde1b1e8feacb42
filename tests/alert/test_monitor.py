"""The monitor: tables in any order, histories that can be saved."""

import numpy as np
import pytest

from msmon_alert import AnomalyNan, AnomalyTurbulence, ColumnRule, Monitor

RULES = [AnomalyTurbulence(threshold=0.5), AnomalyNan()]


def test_shapes_that_do_not_agree_are_named():
    monitor = Monitor(RULES)
    with pytest.raises(ValueError, match=r"values has shape \(1, 1\); 2 tags and 1 statistics need \(2, 1\)"):
        monitor.observe(0, ["a", "b"], ["norm"], np.ones((1, 1)))
    with pytest.raises(ValueError, match=r"no_grad has shape \(1,\); 2 tags need \(2,\)"):
        monitor.observe(0, ["a", "b"], ["norm"], np.ones((2, 1)), no_grad=[True])
    assert monitor.observe(0, [], ["norm"], np.empty((0, 1))) == []
    assert monitor.observe(0, ["a"], [], np.empty((1, 0))) == []
    with pytest.raises(TypeError, match="AnomalyNan"):
        Monitor([AnomalyNan])


def test_histories_follow_the_tag_through_reordered_changed_and_reused_lists():
    reference = {}
    monitor = Monitor(RULES)
    generator = np.random.default_rng(1)
    names = [f"t{i}" for i in range(40)]
    tags: list[str] = []
    for step in range(60):
        # One list object, changed in place: identity says nothing about what it holds.
        tags[:] = generator.permutation(names)[: generator.integers(1, 41)].tolist()
        values = generator.lognormal(size=(len(tags), 1))
        alerts = {alert.index: alert for alert in monitor.observe(step, tags, ["norm"], values)}
        for index, tag in enumerate(tags):
            past = reference.setdefault(tag, [])
            value = float(values[index, 0])
            assert (index in alerts) == (bool(past) and value > 1.5 * np.mean(past))
            past.append(value)


def test_a_list_changed_in_the_middle_is_another_list():
    monitor = Monitor([AnomalyTurbulence(threshold=0.5)])
    tags = ["first", "a", "b", "last"]
    monitor.observe(0, tags, ["norm"], [[1.0], [1.0], [100.0], [1.0]])
    tags[1:3] = ["b", "a"]
    assert monitor.observe(1, tags, ["norm"], [[1.0], [100.0], [1.0], [1.0]]) == []


def test_a_tag_twice_in_a_table_is_seen_one_after_the_other():
    monitor = Monitor([AnomalyTurbulence(threshold=0.5)])
    alerts = monitor.observe(0, ["a", "b", "a", "a"], ["norm"], np.array([[1.0], [1.0], [9.0], [1.0]]))
    assert [(alert.index, alert.tag, alert.history) for alert in alerts] == [(2, "a", 1.0)]
    (alert,) = monitor.observe(1, ["a"], ["norm"], np.array([[9.0]]))
    assert alert.history == pytest.approx(11 / 3)


def test_other_statistics_do_not_disturb_a_history():
    monitor = Monitor([AnomalyTurbulence(threshold=0.5)])
    monitor.observe(0, ["a"], ["norm"], np.array([[1.0]]))
    monitor.observe(1, ["a"], ["mean", "norm", "shape"], np.array([[5.0, 1.0, np.nan]]))
    (alert,) = monitor.observe(2, ["a"], ["norm", "mean"], np.array([[3.0, 5.0]]))
    assert [(f.stat, f.history) for f in alert.fired] == [("norm", 1.0)]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda values: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda values: (values[:1] > 0, None), "ValueError: it answered with shape (1,) for 2 tensors"),
        (lambda values: (values > 0, values[:1]), "ValueError: it answered with shape (2,) and (1,) for 2 tensors"),
        (lambda values: None, "TypeError: "),
    ],
)
def test_a_rule_that_fails_is_off_and_the_others_go_on(answer, reason, caplog):
    calls, told = [], []

    class Unreliable(ColumnRule):
        def applies(self, stat):
            return True

        def check_column(self, stat, values, history, batch):
            calls.append(batch.step)
            return (values < 0, None) if batch.step == 0 else answer(values)

    monitor = Monitor([Unreliable(), AnomalyNan()], on_failure=lambda *what: told.append(what))
    for step in range(4):
        (alert,) = monitor.observe(step, ["a", "b"], ["norm"], [[1.0], [np.nan]])
        assert (alert.tag, alert.rule) == ("b", "AnomalyNan")
    assert calls == [0, 1]
    ((name, why),) = told
    assert name == "Unreliable"
    assert why.startswith(reason)
    assert [r.getMessage() for r in caplog.records] == [f"the rule Unreliable is switched off: {why}"]
