"""Time stamps of run directories, such as Dec03_21-34-40."""

import re

from msmon.config.problems import Problems, kind

_STAMP = re.compile(r"([A-Z][a-z]{2})(\d\d)_(\d\d)-(\d\d)-(\d\d)\Z", re.ASCII)
# English whatever the locale, and a leap day is possible since the year is not known: so not strptime.
_DAYS = dict(
    zip(
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"],
        (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31),
        strict=True,
    )
)
_FORM = "a time stamp such as Dec03_21-34-40"

_YEAR = 366 * 24 * 3600


def is_timestamp(text: str) -> bool:
    """Whether `text` is month, day and time of a possible moment, in the form Dec03_21-34-40."""
    match = _STAMP.match(text)
    if match is None or match[1] not in _DAYS:
        return False
    day, hour, minute, second = (int(part) for part in match.groups()[1:])
    return 1 <= day <= _DAYS[match[1]] and hour < 24 and minute < 60 and second < 60


def parse_range(value: object, path: str, problems: Problems) -> tuple[str, ...]:
    """The check of `append_output`: nothing, or the first and the last time stamp."""
    allowed = '[] or two time stamps such as ["Dec03_21-34-40", "Dec03_21-34-41"]'
    if not isinstance(value, (list, tuple)):
        problems.refuse(path, value, allowed, f"not {kind(value)}")
        return ()
    if len(value) not in (0, 2):
        problems.refuse(path, value, allowed, f"not {len(value)} of them")
    for i, stamp in enumerate(value):
        if not isinstance(stamp, str):
            problems.refuse(f"{path}[{i}]", stamp, _FORM, f"not {kind(stamp)}")
        elif not is_timestamp(stamp):
            problems.refuse(f"{path}[{i}]", stamp, _FORM)
    if len(value) == 2 and all(isinstance(v, str) and is_timestamp(v) for v in value):
        first, last = (_seconds(v) for v in value)
        # Without a year, December to January is a range too; the shorter way round the year is meant.
        if (last - first) % _YEAR > _YEAR / 2:
            problems.refuse(path, value, allowed, "the earlier one comes first")
    return tuple(value)


def _seconds(stamp: str) -> int:
    """Since the start of a leap year."""
    month, day, hour, minute, second = stamp[:3], stamp[3:5], stamp[6:8], stamp[9:11], stamp[12:]
    days = sum(_DAYS[m] for m in list(_DAYS)[: list(_DAYS).index(month)]) + int(day)
    return ((days * 24 + int(hour)) * 60 + int(minute)) * 60 + int(second)
