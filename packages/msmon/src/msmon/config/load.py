"""From a file or a mapping to a checked Config, or to one message that lists every problem."""

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from ._checks import checked_fields, parse_fields
from ._consistency import made_consistent
from ._json_text import parse_object
from ._problems import ConfigError, Problems, join, nearest, shown
from .model import AlertConfig, CcConfig, Config, L2Config

RuleCheck = Callable[[list[dict[str, Any]]], object]
"""Such as `msmon_alert.rules_from_config`: raises ValueError for rules that do not exist or wrong arguments."""

_MOST_BYTES = 16 * 2**20
_NESTED = {"alert": AlertConfig, "cc_distribution": CcConfig, "l2_targets": L2Config}
_PATHS = tuple(join(key, name) for key, cls in _NESTED.items() for name in checked_fields(cls))


def load_config(path: str | os.PathLike[str], *, check_rules: RuleCheck | None = None) -> Config:
    """Read and check a configuration file.

    Args:
        path: a JSON file in UTF-8.
        check_rules: checks the arguments of `alert.rules` too; its ValueError becomes part of the report.

    Raises:
        ConfigError: the file is missing, unreadable, not strict JSON, or has problems; the message lists all of them.
    """
    return parse_config(parse_object(read_bytes(path), _name(path)), source=_name(path), check_rules=check_rules)


def parse_config(
    mapping: Mapping[str, Any], source: str = "configuration", *, check_rules: RuleCheck | None = None
) -> Config:
    """Check a configuration that is already a JSON-like object; `source` names it in messages.

    Raises:
        ConfigError: there are problems; the message lists all of them.

    >>> parse_config({"wg_distribution": True, "ops": ["norm", "max"]}).ops
    ('norm', 'max')
    """
    problems = Problems(source)
    config = parse_fields(Config, mapping, "", problems, _PATHS)
    if check_rules is not None and config is not None and not any(e.startswith("alert") for e in problems.errors):
        try:
            check_rules(config.alert.rule_dicts())
        except ValueError as error:
            _fold(str(error), problems)
    problems.raise_if_any()
    assert config is not None
    return made_consistent(attrs.evolve(config, source=source, warnings=tuple(problems.warnings)))


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file of a size that a configuration can have.

    Raises:
        ConfigError: says why there are none.
    """
    name = _name(path)
    try:
        # Non-blocking, so that a pipe without a writer is refused instead of waited for.
        descriptor = os.open(os.fspath(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISDIR(mode):
                raise ConfigError(f"{name}: a directory, expected a JSON file in it, such as config.json")
            if not stat.S_ISREG(mode):
                raise ConfigError(f"{name}: not a regular file, expected a JSON file")
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(_MOST_BYTES + 1)
        finally:
            os.close(descriptor)
    except ConfigError:
        raise
    except FileNotFoundError:
        raise ConfigError(f"{name}: no such file{_near_file(path)}") from None
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror or error}") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: not a path: {error}") from None
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{name}: more than {_MOST_BYTES >> 20} MiB, which no configuration has")
    return data


def _name(path: object) -> str:
    text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else repr(path)
    return text if text and text.isprintable() else shown(text)


def _near_file(path: str | os.PathLike[str]) -> str:
    """Where was looked, and what there is of a similar name."""
    absolute = Path(os.path.abspath(os.fsdecode(path)))
    try:
        near = nearest(absolute.name, os.listdir(absolute.parent))
    except OSError:
        return f"; {absolute.parent} does not exist" if not absolute.parent.exists() else ""
    return f" in {absolute.parent}" + (f", did you mean {near}?" if near else "")


def _fold(text: str, problems: Problems) -> None:
    """Take over the lines of another check's message, with the path from the top where they have one."""
    for line in filter(None, (line.strip(" -*\t") for line in text.splitlines())):
        if line.startswith("rules"):
            line = f"alert.{line}"
        problems.error("" if line.startswith("alert.") else "alert.rules", line)
