"""From a file or a mapping to a checked Config, or to one message that lists every problem."""

import os
from collections.abc import Mapping
from typing import Any

import attrs

import msmon_alert
from msmon.config.checks import checked_fields, parse_fields
from msmon.config.consistency import made_consistent
from msmon.config.json_text import parse_object
from msmon.config.model import AlertConfig, CcConfig, Config, L2Config
from msmon.config.problems import Problems, join
from msmon.config.reading import path_name, read_file

_NESTED = {"alert": AlertConfig, "cc_distribution": CcConfig, "l2_targets": L2Config}
_PATHS = tuple(join(key, name) for key, cls in _NESTED.items() for name in checked_fields(cls))


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read and check a configuration file.

    Args:
        path: a JSON file in UTF-8.

    Raises:
        ConfigError: the file is missing, unreadable, not strict JSON, or has problems; the message lists all of them.
    """
    data, _ = read_file(path)
    name = path_name(path)
    return parse_config(parse_object(data, name), source=name)


def parse_config(mapping: Mapping[str, Any], source: str = "configuration") -> Config:
    """Check a configuration that is already a JSON-like object; `source` names it in messages.

    Raises:
        ConfigError: there are problems; the message lists all of them.

    >>> parse_config({"wg_distribution": True, "ops": ["norm", "max"]}).ops
    ('norm', 'max')
    """
    problems = Problems(source)
    config = parse_fields(Config, mapping, "", problems, _PATHS)
    if config is not None and not any(e.startswith("alert") for e in problems.errors):
        try:
            msmon_alert.rules_from_config(config.alert.rule_dicts())
        except ValueError as error:
            _fold(str(error), problems)
    problems.raise_if_any()
    assert config is not None
    return made_consistent(attrs.evolve(config, source=source, warnings=tuple(problems.warnings)))


def _fold(text: str, problems: Problems) -> None:
    """Take over the lines of another check's message, with the path from the top where they have one."""
    for line in filter(None, (line.strip(" -*\t") for line in text.splitlines())):
        if line.startswith("rules"):
            line = f"alert.{line}"
        problems.error("" if line.startswith("alert.") else "alert.rules", line)
