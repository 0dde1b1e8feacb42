"""A run that is interrupted raises the same alerts as one that is not."""

import stat

import numpy as np
import pytest

from msmon_alert import (
    AnomalyConstant,
    AnomalyDead,
    AnomalyFrozen,
    AnomalyNan,
    AnomalyOverwritten,
    AnomalySpike,
    AnomalyTurbulence,
    AnomalyVanish,
    Monitor,
    load_state,
    rules_from_config,
    save_state,
)

from .faults.training import CONFIG, RECOMMENDED

RULES = [
    AnomalyTurbulence(2.0),
    AnomalyNan(),
    AnomalyVanish(1e-6),
    AnomalyDead(0.8),
    AnomalyConstant(),
    AnomalySpike(threshold=4, window=16),
    AnomalyFrozen(),
    AnomalyOverwritten(),
]
STATS = ["norm", "mean", "zeros", "max", "min"]


def tables(seed=0, steps=120):
    """Tables of weights and activations in which every rule fires now and then."""
    generator = np.random.default_rng(seed)
    names = [f"0:w{i}/rank0" for i in range(12)]
    weights = generator.lognormal(size=(12, 5))
    for step in range(steps):
        if generator.random() < 0.2:
            weights[generator.integers(12)] *= 1.5
        before = weights.copy()
        moved = generator.random(12) < (0.8 if step > 60 else 1.0)
        weights[moved] *= 1.001
        others = generator.lognormal(sigma=0.3, size=(12, 5)) * [20, 1, 1, 1, 0.1]
        others[:, 2] = generator.choice([0.1, 0.3], size=12)
        others[generator.random(12) < step / 400, 2] = 0.9
        equal = generator.random(12) < step / 400
        others[equal, 4] = others[equal, 3]
        others[generator.random((12, 5)) < 0.02] *= 1e4
        others[generator.random((12, 5)) < 0.01] = np.nan
        others[generator.random(12) < step / 4000, 0] = 0
        kinds = ("param_origin", "param_updated", "actv")
        keep = generator.permutation(36)[:30]  # tags come, go and change places
        tags = np.array([f"{name}/{kind}" for kind in kinds for name in names])
        yield tags[np.sort(keep)].tolist(), np.concatenate([before, weights, others])[np.sort(keep)]


def alerts(monitor, run, first=0):
    return [
        (alert.step, alert.tag, alert.message)
        for step, (tags, values) in enumerate(run, start=first)
        for alert in monitor.observe(step, tags, STATS, values)
    ]


def test_resumed_equals_uninterrupted(tmp_path):
    run = list(tables())
    expected = alerts(Monitor(RULES), run)
    assert {rule.name for rule in RULES} <= {message.split()[1] for _, _, message in expected}
    for stop in (1, 7, 40, 80):
        first = Monitor(RULES)
        begun = alerts(first, run[:stop])
        save_state(first.state_dict(), tmp_path / "state.npz")
        again = Monitor(RULES)
        again.load_state_dict(load_state(tmp_path / "state.npz"))
        assert begun + alerts(again, run[stop:], first=stop) == expected


def test_a_state_is_a_copy():
    run = list(tables())
    monitor = Monitor(RULES)
    alerts(monitor, run[:50])
    state = monitor.state_dict()
    later = alerts(monitor, run[50:], first=50)
    again = Monitor(RULES)
    again.load_state_dict(state)
    assert alerts(again, run[50:], first=50) == later
    once_more = Monitor(RULES)
    once_more.load_state_dict(state)
    assert alerts(once_more, run[50:], first=50) == later


def test_changed_rules_keep_what_fits():
    def history(rules, loaded):
        monitor = Monitor(rules)
        monitor.load_state_dict(loaded)
        return monitor.observe(40, ["t"], ["norm"], [[100.0]])

    monitor = Monitor([AnomalyTurbulence(1.0), AnomalySpike(), AnomalyTurbulence(5.0)])
    for step in range(40):
        monitor.observe(step, ["t"], ["norm"], [[1.0]])
    state = monitor.state_dict()
    assert history([AnomalySpike(threshold=20)], state)  # another threshold, another place: the same history
    assert history([AnomalyTurbulence(3.0)], state)
    assert not history([AnomalySpike(window=64)], state)  # these windows do not fit
    assert not history([AnomalyNan()], state)
    monitor.load_state_dict(Monitor([]).state_dict())
    assert not monitor.observe(41, ["t"], ["norm"], [[100.0]])


def test_what_is_no_state_is_refused(tmp_path):
    monitor = Monitor(RULES)
    alerts(monitor, tables(steps=5))
    good = monitor.state_dict()
    for bad in (None, [], {}, {"schema": 2}, {**good, "schema": "1"}):
        with pytest.raises(ValueError, match=r"not a state of msmon_alert.Monitor: schema .*, this version reads 1"):
            monitor.load_state_dict(bad)
    with pytest.raises(ValueError, match="the histories of AnomalyTurbulence do not fit its tags"):
        monitor.load_state_dict({**good, "tags": good["tags"][1:]})
    path = tmp_path / "state.npz"
    save_state(good, path)
    whole = path.read_bytes()
    with open(tmp_path / "other.npz", "wb") as file:
        np.savez(file, a=np.ones(3))
    for content in (b"", b"nonsense", whole[:100], whole[: len(whole) // 2], (tmp_path / "other.npz").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"state\.npz: not a saved state of msmon_alert\.Monitor"):
            load_state(path)
    with pytest.raises(FileNotFoundError):
        load_state(tmp_path / "missing.npz")


def test_the_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "new" / "state.npz"
    save_state(Monitor(RULES).state_dict(), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o027 == 0
    before = path.read_bytes()
    with pytest.raises(TypeError):
        save_state({"schema": 1, "tags": [object()], "rules": []}, path)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["state.npz"]


def test_histories_are_proportional_to_tags():
    def size(tags):
        monitor = Monitor(RULES)
        for step in range(3):
            monitor.observe(step, [f"t{i}/param_origin" for i in range(tags)], STATS, np.ones((tags, 5)))
        return sum(array.nbytes for rule in monitor.state_dict()["rules"] for array in rule["arrays"].values())

    assert size(2000) == 2 * size(1000)


def test_the_size_that_the_readme_tells():
    monitor = Monitor(rules_from_config(RECOMMENDED))
    for step in range(2):
        monitor.observe(step, [f"t{i}/param_origin" for i in range(1000)], CONFIG["ops"], np.ones((1000, 6)))
        monitor.observe(step, [f"t{i}/param_updated" for i in range(1000)], CONFIG["ops"], np.ones((1000, 6)))
    arrays = [array for rule in monitor.state_dict()["rules"] for array in rule["arrays"].values()]
    assert sum(array.nbytes for array in arrays) / 2000 == pytest.approx(800, rel=0.1)
