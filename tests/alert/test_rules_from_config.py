"""Rules from a configuration: the sentences that users read, and rules of other packages."""

import textwrap

import numpy as np
import pytest

import msmon_alert
from msmon_alert import AnomalyDead, AnomalyNan, AnomalySpike, AnomalyTurbulence, Monitor, rules_from_config

OWN = (
    "AnomalyConstant, AnomalyDead, AnomalyFrozen, AnomalyNan, AnomalyOverwritten, AnomalySpike, AnomalyTurbulence, "
    "AnomalyVanish"
)


def problems(*rules):
    with pytest.raises(ValueError, match="rules") as caught:
        rules_from_config(list(rules))
    return str(caught.value).splitlines()


def test_rules_in_their_order_with_their_arguments():
    made = rules_from_config(
        [
            {"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}},
            {"rule_name": "AnomalyNan"},
            {"rule_name": "AnomalyNan", "args": {"threshold": 1e10}},
            {"rule_name": "AnomalySpike", "args": {"window": 64}},
            {"rule_name": "AnomalyDead", "args": {"threshold": 1, "steps": 3}},
        ]
    )
    assert made == [
        AnomalyTurbulence(0.5),
        AnomalyNan(None),
        AnomalyNan(1e10),
        AnomalySpike(window=64),
        AnomalyDead(1, 3),
    ]
    assert rules_from_config([]) == []


def test_every_problem_in_one_message():
    assert problems(
        {"rule_name": "AnomalyTurbulance", "args": {}},
        {"rule_name": "AnomalyTurbulence", "args": {"treshold": 3}},
        {"rule_name": "AnomalyDead", "args": {"threshold": 2, "steps": 0, "window": 1}},
        {"rule_name": "AnomalyNan", "arg": {}},
        {"args": [1]},
        {"rule_name": 7},
        "AnomalyNan",
    ) == [
        f"rules[0].rule_name: unknown rule 'AnomalyTurbulance'; known are {OWN}; did you mean AnomalyTurbulence?",
        "rules[1].args.treshold: AnomalyTurbulence has no such argument; allowed: threshold; did you mean threshold?",
        "rules[1].args.threshold: is missing; AnomalyTurbulence needs it",
        "rules[2].args.window: AnomalyDead has no such argument; allowed: threshold, steps",
        "rules[2].args.threshold: 2 is not allowed; it takes a number > 0 and <= 1",
        "rules[2].args.steps: 0 is not allowed; it takes an integer >= 1",
        "rules[3].arg: unknown key; allowed are rule_name and args; did you mean args?",
        "rules[4].args: [1] is not allowed; it takes an object of arguments",
        f"rules[4].rule_name: is missing; it takes one of {OWN}",
        f"rules[5].rule_name: 7 is not allowed; it takes one of {OWN}",
        "rules[6]: 'AnomalyNan' is not allowed; it takes an object with rule_name and args",
    ]
    with pytest.raises(ValueError, match=r"rules: \{\} is not allowed; it takes a list of"):
        rules_from_config({})


@pytest.mark.parametrize(
    ("name", "args", "line"),
    [
        ("AnomalyTurbulence", {"threshold": -0.1}, "threshold: -0.1 is not allowed; it takes a number >= 0"),
        ("AnomalyTurbulence", {"threshold": True}, "threshold: True is not allowed; it takes a number >= 0"),
        ("AnomalyTurbulence", {"threshold": None}, "threshold: None is not allowed; it takes a number >= 0"),
        ("AnomalyTurbulence", {"threshold": float("nan")}, "threshold: nan is not allowed; it takes a number >= 0"),
        ("AnomalyNan", {"threshold": "1e10"}, "threshold: '1e10' is not allowed; it takes a number > 0 or null"),
        ("AnomalyNan", {"threshold": 0}, "threshold: 0 is not allowed; it takes a number > 0 or null"),
        ("AnomalySpike", {"threshold": 0}, "threshold: 0 is not allowed; it takes a number > 0"),
        ("AnomalySpike", {"window": 4}, "window: 4 is not allowed; it takes an integer >= 8"),
        ("AnomalySpike", {"window": 16.0}, "window: 16.0 is not allowed; it takes an integer >= 8"),
        ("AnomalyVanish", {"floor": 0}, "floor: 0 is not allowed; it takes a number > 0"),
        ("AnomalyFrozen", {"steps": 1.5}, "steps: 1.5 is not allowed; it takes an integer >= 1"),
        ("AnomalyOverwritten", {"steps": 1}, "steps: AnomalyOverwritten has no such argument; allowed: none"),
    ],
)
def test_sentences(name, args, line):
    assert problems({"rule_name": name, "args": args}) == [f"rules[0].args.{line}"]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package that registers rules, installed as pip leaves it: a module and a dist-info folder."""
    (tmp_path / "norms_of_mine.py").write_text(
        textwrap.dedent("""
            import attrs
            from msmon_alert import ColumnRule

            @attrs.frozen
            class AnomalyNegative(ColumnRule):
                limit: float = 0.0

                def __attrs_post_init__(self):
                    if self.limit > 0:
                        raise ValueError("it makes no sense above 0")

                def applies(self, stat):
                    return stat == "mean"

                def check_column(self, stat, values, history, batch):
                    return values < self.limit, None

            not_a_rule = 3
        """)
    )
    info = tmp_path / "norms_of_mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: norms-of-mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[msmon_alert.rules]\nAnomalyNegative = norms_of_mine:AnomalyNegative\nAnomalyGone = norms_of_mine:Gone\n"
        "AnomalyThree = norms_of_mine:not_a_rule\nAnomalyNan = norms_of_mine:AnomalyNegative\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
def test_rules_of_installed_packages():
    (rule, nan) = rules_from_config(
        [{"rule_name": "AnomalyNegative", "args": {"limit": -1.0}}, {"rule_name": "AnomalyNan"}]
    )
    assert type(rule).__name__ == "AnomalyNegative"
    assert isinstance(nan, AnomalyNan)  # nobody takes the place of a rule of this package
    (alert,) = Monitor([rule]).observe(0, ["a", "b"], ["norm", "mean"], np.array([[-5.0, -0.5], [1.0, -2.0]]))
    assert (alert.tag, alert.stat, alert.rule, alert.history) == ("b", "mean", "AnomalyNegative", None)
    assert problems(
        {"rule_name": "AnomalyNegative", "args": {"limit": 1}},
        {"rule_name": "AnomalyGone"},
        {"rule_name": "AnomalyThree"},
    ) == [
        "rules[0].args: it makes no sense above 0",
        "rules[1].rule_name: AnomalyGone is registered as norms_of_mine:Gone but cannot be loaded: "
        "AttributeError(\"module 'norms_of_mine' has no attribute 'Gone'\")",
        "rules[2].rule_name: AnomalyThree is registered as norms_of_mine:not_a_rule, which is not a subclass of "
        "msmon_alert.Rule",
    ]
    assert "AnomalyNegative" in problems({"rule_name": "AnomalyNegativ"})[0]


def test_every_rule_says_what_it_means_costs_and_misses():
    for name in OWN.split(", "):
        text = getattr(msmon_alert, name).__doc__
        for part in ("*What it means for training*", "*Cost*", "*Blind spots*", ">>> "):
            assert part in text, (name, part)
