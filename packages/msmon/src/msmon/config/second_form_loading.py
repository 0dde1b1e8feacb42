"""From a file of the second form to a checked Config."""

import os
from collections.abc import Mapping
from typing import Any

import attrs

from msmon.config.checks import checked_fields, parse_fields
from msmon.config.load import load_config, parse_config
from msmon.config.model import Config
from msmon.config.problems import Problems
from msmon.config.second_form import SHARED, SecondForm

_FIRST_FORM = {
    "xy_distribution": "monitors.module.enabled",
    "all_xy": "monitors.module.targets",
    "targets": "monitors.module.targets",
    "wg_distribution": "monitors.weight_grad.enabled",
    "monitor_mbs_grad": "monitors.weight_grad.monitor_mbs_grad",
    "mv_distribution": "monitors.optimizer.enabled",
    "param_distribution": "monitors.param.enabled",
    "cc_distribution": "monitors.cc",
    "module_ranks": "rank",
    "ops": "ops in each of monitors",
    "eps": "eps in each of monitors",
}


def is_second_form(mapping: object) -> bool:
    """Whether an object is meant as a configuration of the second form."""
    return isinstance(mapping, Mapping) and "monitors" in mapping


def load_either(path: str | os.PathLike[str]) -> Config:
    """Read and check a configuration file of either form.

    Raises:
        ConfigError: the file is missing, unreadable, not strict JSON, or has problems; the message lists all of them.
    """

    def parse(mapping: Mapping[str, Any], source: str) -> Config:
        return (parse_second_form if is_second_form(mapping) else parse_config)(mapping, source)

    return load_config(path, parse)


def parse_second_form(mapping: Mapping[str, Any], source: str = "configuration") -> Config:
    """Check a configuration of the second form; see `msmon.config.parse_config`.

    Returns:
        The configuration of the first form that collects the same; its `second_form` is what was read.

    Raises:
        ConfigError: there are problems; the message lists all of them.

    >>> parse_second_form({"monitors": {"param": {"enabled": True, "ops": ["max"]}}}).monitors
    ('param_distribution', 'xy_distribution')
    """
    problems = Problems(source)
    known = {*checked_fields(SecondForm), *SHARED}
    own, shared = {}, {}
    for key, value in mapping.items():
        if key in SHARED:
            shared[key] = value
        elif key in checked_fields(Config) and key not in known:
            place = _FIRST_FORM.get(key)
            there = f"write {place}" if place else "this one has nothing like it; TrainerMon takes files of the first"
            problems.error(key, f"a key of the first form of configuration; {there}")
        elif key in known:
            own[key] = value
        else:
            problems.unknown_key("", key, sorted(known))
    form = parse_fields(SecondForm, own, "", problems)
    problems.raise_if_any()
    assert form is not None
    form = attrs.evolve(form, shared=shared)
    first = form.first_form(problems)
    problems.raise_if_any()
    config = parse_config(first, source)
    if form.stop_step is not None:
        steps = range(config.start_step, form.stop_step, config.step_interval)
        config = attrs.evolve(config, collect_times=min(len(steps), config.collect_times))
    return attrs.evolve(config, second_form=form, warnings=(*problems.warnings, *config.warnings))
