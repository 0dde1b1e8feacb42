"""Regular expressions of `cc_codeline`: bad ones are refused, useful ones match, none is matched for ever."""

import logging

import pytest

from msmon.config import CcConfig
from msmon.config.patterns import LONGEST_PATTERN, LONGEST_TEXT, why_refused

REFUSED = [
    ("a{9999999999999999999999}", "invalid: repeat count too big at position 2"),
    ("*a", "invalid: nothing to repeat at position 0"),
    ("[a", "invalid: unterminated character set at position 2"),
    ("a" * (LONGEST_PATTERN + 1), f"{LONGEST_PATTERN + 1} characters, at most {LONGEST_PATTERN} are allowed"),
]


@pytest.mark.parametrize(("pattern", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_refused(pattern, reason):
    assert why_refused(pattern) == reason


def test_where_a_call_comes_from():
    cc = CcConfig(cc_codeline=(r"train\.py\[\d+\]", "core/.*reduce", r"(\w)\1\1", "(?i)DEEP(speed|er)+"))
    assert cc.wants("/home/me/train.py[120]")
    assert cc.wants("megatron/core/x/reduce.py[3]")
    assert cc.wants("/home/aaa.py[1]")
    assert cc.wants("deepspeed/x.py[1]")
    assert not cc.wants("/home/me/train_py[120]")
    assert CcConfig().wants("anything")
    # Only the end of a long line is looked at.
    assert not CcConfig(cc_codeline=("^head",)).wants("head" + "x" * LONGEST_TEXT)


@pytest.mark.parametrize("pattern", ["(x+x+)+y", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_a_pattern_that_would_run_for_ever_is_ended_and_said_once(pattern, caplog):
    cc = CcConfig(cc_codeline=(pattern, "train"))
    with caplog.at_level(logging.ERROR):
        # The limit of the whole test is what a hang would meet.
        assert cc.wants("x" * 240 + "train.py[1]")
        for line in range(100):
            assert not cc.wants("x" * 250 + f"[{line}]")
    assert [record.getMessage().split(" takes")[0] for record in caplog.records] == [f"cc_codeline: {pattern!r}"]
