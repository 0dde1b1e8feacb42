"""Regular expressions that come from a file: compiled, and refused where they could run for ever.

A backtracking matcher needs exponential time where a repetition that can match in several ways is repeated itself, and
a high power of the text's length where repetitions follow each other with nothing definite between them. Both are
visible in the parsed pattern, whose number of ways to match a code line is estimated here and bounded.
"""

import re
import warnings
from typing import Any

from msmon.config.problems import Problems, kind

LONGEST_PATTERN = 200
LONGEST_TEXT = 256
_MOST_PATTERNS = 100
_MOST_FIXED = 1000
_MOST_WAYS = 2e7
# How often one character occurs in a code line, roughly: so many are the places where `.*/` can end.
_OCCURRENCES = 16

_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


class _Refused(Exception):
    pass


def check_patterns(value: object, path: str, problems: Problems) -> tuple[str, ...]:
    """The check of a list of regular expressions."""
    if not isinstance(value, (list, tuple)):
        problems.refuse(path, value, "a list of regular expressions", f"not {kind(value)}")
        return ()
    if len(value) > _MOST_PATTERNS:
        problems.error(path, f"{len(value)} patterns, at most {_MOST_PATTERNS} are allowed; join some with |")
        return ()
    for i, pattern in enumerate(value):
        where = f"{path}[{i}]"
        if not isinstance(pattern, str):
            problems.refuse(where, pattern, "a regular expression", f"not {kind(pattern)}")
        else:
            reason = why_refused(pattern)
            if reason:
                problems.refuse(where, pattern, "a regular expression that ends soon", reason)
    return tuple(p for p in value if isinstance(p, str))


def why_refused(pattern: str) -> str | None:
    """Why `pattern` must not be matched, or None if it is valid and its cost is bounded."""
    if len(pattern) > LONGEST_PATTERN:
        return f"{len(pattern)} characters, at most {LONGEST_PATTERN} are allowed"
    try:
        # "Possible nested set" and the like are about Python's future, not about this file.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
            _check(_parsed(pattern))
    except re.error as error:
        return f"invalid: {error}"
    except (OverflowError, RecursionError):
        return "invalid: too large"
    except _Refused as error:
        return str(error)
    return None


def any_matches(patterns: tuple[str, ...], text: str) -> bool:
    """Whether one of the checked patterns occurs in the last LONGEST_TEXT characters of `text`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return any(re.search(pattern, text[-LONGEST_TEXT:]) for pattern in patterns)


def _parsed(pattern: str) -> Any:
    try:
        from re import _parser as parser  # type: ignore[attr-defined]
    except ImportError:  # before Python 3.11
        import sre_parse as parser
    return parser.parse(pattern)


def _check(parsed: Any) -> None:
    ways, _ = _ways(parsed, 1, False)
    if ways * LONGEST_TEXT > _MOST_WAYS:
        raise _Refused("too many open repetitions such as .* together; use fewer, with fixed characters between them")


def _ways(parsed: Any, repeated: int, in_row: bool) -> tuple[float, bool]:
    """In how many ways a parsed sequence can match, and whether a repetition is at its end.

    `repeated` is how often the sequence itself may be repeated; `in_row`, whether a repetition stands right before it.
    """
    ways = 1.0
    for operation, argument in parsed:
        name = str(operation)
        if name in _REPEATS:
            found, in_row = _ways_of_repeat(argument, repeated, in_row)
            ways *= found
        elif name == "BRANCH":
            if repeated > 1:
                raise _Refused("alternatives inside a repetition are not allowed")
            branches = [_ways(branch, repeated, in_row) for branch in argument[1]]
            ways *= sum(found for found, _ in branches)
            in_row = any(row for _, row in branches)
        elif name.startswith("GROUPREF"):
            raise _Refused("references to groups are not allowed")
        elif name == "LITERAL":
            in_row = False
        else:
            for part in _parts(argument):
                found, in_row = _ways(part, repeated, in_row)
                ways *= found
    return ways, in_row


def _ways_of_repeat(repeat: Any, repeated: int, in_row: bool) -> tuple[float, bool]:
    least, most, inner = repeat
    fixed = least == most
    if repeated > 1 and not fixed:
        raise _Refused("a repetition inside a repetition is not allowed")
    times = repeated * min(int(most), _MOST_FIXED + 1)
    if repeated > 1 and times > _MOST_FIXED:
        raise _Refused(f"more than {_MOST_FIXED} nested repetitions")
    ways, inner_row = _ways(inner, times, in_row)
    if fixed:
        return ways, inner_row
    width = min(int(most) - int(least) + 1, LONGEST_TEXT)
    return ways * (width if in_row else min(width, _OCCURRENCES)), True


def _parts(argument: Any) -> list[Any]:
    """Parsed patterns directly inside a node's argument: groups, lookarounds, conditionals."""
    if type(argument).__name__ == "SubPattern":
        return [argument]
    if isinstance(argument, (tuple, list)):
        return [p for p in argument if type(p).__name__ == "SubPattern"]
    return []
