"""Regular expressions that come from a file: checked when it is read, and never matched for longer than a moment.

A backtracking matcher may need exponential time on a pattern that looks harmless. The `regex` package ends a match
that takes too long.
"""

import logging

import regex

from msmon.config.problems import Problems, kind

logger = logging.getLogger("msmon")

LONGEST_PATTERN = 200
LONGEST_TEXT = 256
SECONDS_A_MATCH = 0.1
"""A pattern that needs longer matches nothing from then on."""
_MOST_PATTERNS = 100

_endless: set[str] = set()


def check_patterns(value: object, path: str, problems: Problems) -> tuple[str, ...]:
    """The check of a list of regular expressions."""
    if not isinstance(value, (list, tuple)):
        problems.refuse(path, value, "a list of regular expressions", f"not {kind(value)}")
        return ()
    if len(value) > _MOST_PATTERNS:
        problems.error(path, f"{len(value)} patterns, at most {_MOST_PATTERNS} are allowed; join some with |")
        return ()
    for i, pattern in enumerate(value):
        reason = why_refused(pattern) if isinstance(pattern, str) else f"not {kind(pattern)}"
        if reason:
            problems.refuse(f"{path}[{i}]", pattern, "a regular expression", reason)
    return tuple(p for p in value if isinstance(p, str))


def why_refused(pattern: str) -> str | None:
    """Why `pattern` cannot be matched, or None.

    >>> why_refused("[a")
    'invalid: unterminated character set at position 2'
    """
    if len(pattern) > LONGEST_PATTERN:
        return f"{len(pattern)} characters, at most {LONGEST_PATTERN} are allowed"
    try:
        regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError) as error:
        return f"invalid: {error}"
    return None


def any_matches(patterns: tuple[str, ...], text: str) -> bool:
    """Whether one of the checked patterns occurs in the last LONGEST_TEXT characters of `text`."""
    return any(_matches(pattern, text[-LONGEST_TEXT:]) for pattern in patterns if pattern not in _endless)


def _matches(pattern: str, text: str) -> bool:
    try:
        return regex.search(pattern, text, timeout=SECONDS_A_MATCH) is not None
    except TimeoutError:
        _endless.add(pattern)
        logger.error(
            "cc_codeline: %r takes too long on %r and matches nothing from now on; use fewer repetitions like .*",
            pattern,
            text,
        )
        return False
