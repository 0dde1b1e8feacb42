"""The package's README: its code runs, its figures are the package's."""

import json
import re
from pathlib import Path

import attrs
import numpy as np

import msmon_alert
from msmon_alert import Monitor, rules_from_config

from .faults.training import CONFIG, RECOMMENDED

README = (Path(__file__).parents[2] / "packages" / "msmon-alert" / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_ten_lines(capsys):
    example = blocks("python")[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    exec(example, {})
    assert capsys.readouterr().out == "70 fc2.weight AnomalySpike norm\n"


def test_a_rule_of_ones_own():
    names = {}
    exec(blocks("python")[1], names)
    (alert,) = Monitor([names["AnomalyNegative"]()]).observe(0, ["a"], ["mean"], np.array([[-1.0]]))
    assert alert.rule == "AnomalyNegative"


def test_the_recommended_rules_are_those_of_the_bench():
    recommended = json.loads(blocks("json")[0])
    assert recommended == RECOMMENDED
    rules_from_config(recommended)
    assert str(CONFIG["ops"]).replace("'", '"') in README


def test_the_table_of_rules_is_complete_and_has_the_defaults():
    rows = re.findall(r"^\| `(Anomaly\w+)\((.*?)\)` \|", README, re.MULTILINE)
    assert {name for name, _ in rows} == {name for name in msmon_alert.__all__ if name.startswith("Anomaly")} - {
        "AnomalyFile"
    }
    for name, arguments in rows:
        rule = getattr(msmon_alert, name)
        expected = [
            field.name
            if field.default is attrs.NOTHING
            else f"{field.name}={field.default:g}"
            if field.default is not None
            else f"{field.name}=None"
            for field in attrs.fields(rule)
        ]
        assert arguments == ", ".join(expected)
