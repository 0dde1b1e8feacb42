"""Regular expressions of `cc_codeline`: bad and explosive ones are refused, useful ones match."""

import subprocess
import sys

import pytest

from msmon.config import CcConfig
from msmon.config.patterns import LONGEST_PATTERN, LONGEST_TEXT, why_refused

NESTED = "a repetition inside a repetition is not allowed"
MANY = "too many open repetitions such as .* together; use fewer, with fixed characters between them"

REFUSED = [
    ("(a+)+", NESTED),
    ("(a*)*b", NESTED),
    ("(?:a?){40}a", NESTED),
    ("(?:ab?)*", NESTED),
    ("(?:(?:a+){2}){2}", NESTED),
    ("(?=(a+)+b)c", NESTED),
    ("(a|aa)+$", "alternatives inside a repetition are not allowed"),
    ("(.*)(.*)(.*)x", MANY),
    (".*.*.*x", MANY),
    (".*a?b?c?.*.*x", MANY),
    (r"\w?" * 30 + "!", MANY),
    (".*e" * 8, MANY),
    (r"(x)\1", "references to groups are not allowed"),
    (r"(x)(?(1)y|z)", "references to groups are not allowed"),
    ("((a{99}){99}){99}", "more than 1000 nested repetitions"),
    ("((){999}){999}", "more than 1000 nested repetitions"),
    ("a{9999999999}", "invalid: too large"),
    ("*a", "invalid: nothing to repeat at position 0"),
    ("[a", "invalid: unterminated character set at position 0"),
    ("a" * (LONGEST_PATTERN + 1), f"{LONGEST_PATTERN + 1} characters, at most {LONGEST_PATTERN} are allowed"),
]

ACCEPTED = [
    r"train\.py\[\d+\]",
    r"megatron/core/.*\.py\[1\d+\]",
    ".*/a/.*/b/.*/c/.*",
    "megatron.*|deepspeed.*reduce.*|.*foo.*",
    "(?i)Reduce",
    r"(\d\d-){3}x",
    "(?=.*core)distributed",
    "(a?)" * 8 + "b",
    ".*.*=",
    r".*\w+!",
    "",
]


@pytest.mark.parametrize(("pattern", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_refused(pattern, reason):
    assert why_refused(pattern) == reason


@pytest.mark.parametrize("pattern", ACCEPTED)
def test_accepted(pattern):
    assert why_refused(pattern) is None


def test_where_a_call_comes_from():
    cc = CcConfig(cc_codeline=(r"train\.py\[\d+\]", "core/.*reduce"))
    assert cc.wants("/home/me/train.py[120]")
    assert cc.wants("megatron/core/x/reduce.py[3]")
    assert not cc.wants("/home/me/train_py[120]")
    assert CcConfig().wants("anything")
    # Only the end of a long line is looked at.
    assert not CcConfig(cc_codeline=("^head",)).wants("head" + "x" * LONGEST_TEXT)


def test_accepted_patterns_end_on_a_text_made_to_fail():
    code = (
        "import sys; from msmon.config import CcConfig\n"
        "for p in sys.argv[1:]:\n"
        "    for text in ('a' * 256, '/home/' + 'core/' * 50 + 'x.py[1]', 'ab/' * 80):\n"
        "        CcConfig(cc_codeline=(p,)).wants(text)\n"
        "print('done')"
    )
    # The limit is a hang, not a speed: all of these take about a second together.
    done = subprocess.run([sys.executable, "-c", code, *ACCEPTED], capture_output=True, text=True, timeout=120)
    assert done.stdout == "done\n", done.stderr
