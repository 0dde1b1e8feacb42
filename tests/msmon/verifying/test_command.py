"""`msmon verify` as it is called: what it prints, and its exit status."""

from __future__ import annotations

import json

import pytest

from msmon.cli import main
from msmon_hooks.layout import Layout

from .runs import write_run

EQUAL = Layout(equal_over={"data": [0, 1]})


@pytest.fixture
def right(tmp_path):
    return write_run(tmp_path / "right", {"param_origin": {"w": lambda r, s: 2.0 - s}}, lambda *_: EQUAL)


@pytest.fixture
def wrong(tmp_path):
    return write_run(tmp_path / "wrong", {"param_origin": {"[b]w": lambda r, s: 2.0 + (r and s > 1)}}, lambda *_: EQUAL)


def test_what_holds(right, capsys):
    assert main(["verify", str(right)]) == 0
    out = capsys.readouterr().out
    assert "Everything that was checked holds." in out
    assert "not checked: param_origin and param_updated not recorded" in out


def test_what_is_broken(wrong, capsys):
    assert main(["verify", str(wrong)]) == 1
    out = capsys.readouterr().out
    assert "Broken: step 2, param_origin, [b]w, ranks 0, 1" in out
    assert "rank 0 2.0   rank 1 3.0" in out


def test_follow_ends_when_the_run_is_closed(right, wrong, capsys):
    assert main(["verify", str(right), "--follow"]) == 0
    assert capsys.readouterr().out.startswith("checked to step 5: holds")
    assert main(["verify", str(wrong), "--follow", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["steps"] == [0, 5, 6]


def test_follow_until_interrupted(right, capsys, monkeypatch):
    """Of a job that was killed nothing says that it has ended."""
    for path in right.glob("*/run.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"end_time": None}))

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    assert main(["verify", str(right), "--follow"]) == 0
    out = capsys.readouterr().out
    assert "checked to step 4: holds" in out
    assert "stopped; the run goes on" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "does not exist"),
        (["{right}", "{wrong}", "--follow"], "--follow looks at one run"),
        (["{right}", "--baseline", "{wrong}"], "--baseline belongs to a comparison with one device"),
        (["{right}", "-o", "{right}/missing/page.html"], "No such file"),
        (["{right}", "nowhere"], "does not exist"),
    ],
)
def test_what_cannot_be_done(right, wrong, capsys, words, message):
    words = [word.format(right=right, wrong=wrong) for word in words]
    assert main(["verify", *words]) == 2
    assert message in capsys.readouterr().err


def test_damaged_layouts(right, capsys):
    """What no version has written is not known, and stops nothing."""
    (first, second) = sorted(right.glob("*/run.json"))
    for path, layout in ((first, {"equal_over": {"data": "x:y"}}), (second, ["?"])):
        info = json.loads(path.read_text())
        info["tensors"][0]["layout"] = layout
        path.write_text(json.dumps(info))
    assert main(["verify", str(right)]) == 0
    assert "Nothing could be checked." in capsys.readouterr().out
