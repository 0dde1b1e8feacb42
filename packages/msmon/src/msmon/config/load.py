"""From a file or a mapping to a checked Config, or to one message that lists every problem."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import attrs

import msmon_alert
from msmon.config.checks import checked_fields, parse_fields
from msmon.config.consistency import made_consistent
from msmon.config.json_text import parse_object
from msmon.config.model import AlertConfig, CcConfig, Config, L2Config
from msmon.config.problems import Problems, join
from msmon.config.reading import path_name, read_file
from msmon.config.second_form import SecondForm

_NESTED = {"alert": AlertConfig, "cc_distribution": CcConfig, "l2_targets": L2Config}
_PATHS = tuple(join(key, name) for key, cls in _NESTED.items() for name in checked_fields(cls))
_SECOND_FORM = checked_fields(SecondForm).keys() - checked_fields(Config).keys()
_WAY_OUT = "give the file to msmon.monitor_v2.TrainerMonitorV2, or turn it into the first: msmon convert-config"


def load_config(path: str | os.PathLike[str], parse: Callable[..., Config] | None = None) -> Config:
    """Read and check a configuration file.

    Args:
        path: a JSON file in UTF-8.
        parse: what checks its object; default: `parse_config`.

    Raises:
        ConfigError: the file is missing, unreadable, not strict JSON, or has problems; the message lists all of them.
    """
    data, _ = read_file(path)
    name = path_name(path)
    return (parse or parse_config)(parse_object(data, name), source=name)


def parse_config(mapping: Mapping[str, Any], source: str = "configuration") -> Config:
    """Check a configuration that is already a JSON-like object; `source` names it in messages.

    Raises:
        ConfigError: there are problems; the message lists all of them.

    >>> parse_config({"wg_distribution": True, "ops": ["norm", "max"]}).ops
    ('norm', 'max')
    """
    problems = Problems(source)
    if isinstance(mapping, Mapping):
        foreign = mapping.keys() & _SECOND_FORM
        for key in sorted(foreign):
            problems.error(key, f"a key of the second form of configuration; {_WAY_OUT}")
        mapping = {key: value for key, value in mapping.items() if key not in foreign}
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
