"""A configuration of one form written as one of the other."""

from typing import Any

from msmon.config.model import Config
from msmon.config.second_form import SHARED

_SWITCHES = {
    "module": "xy_distribution",
    "weight_grad": "wg_distribution",
    "optimizer": "mv_distribution",
    "param": "param_distribution",
}


def as_first_form(config: Config) -> tuple[dict[str, Any], list[str]]:
    """The fields of the first form that are not as by default, and what is not the same in it.

    Args:
        config: made by `parse_second_form`.

    >>> from msmon.config import parse_second_form
    >>> as_first_form(parse_second_form({"monitors": {"module": {"ops": ["max"]}}}))[0]
    {'xy_distribution': True, 'ops': ['max'], 'ndigits': 17}
    """
    made, form = _given(config), config.second_form
    assert form is not None
    notes = ["output_dir: set MONITOR_OUTPUT_DIR in the environment"] if form.output_dir != "./" else []
    parts = form.monitors.module.targets if "module" in form.monitors.enabled() else ()
    if parts:
        made["targets"] = {part: {} for part in parts}
        notes.append(
            "monitors.module.targets: these were parts of names of modules; targets has whole names, of modules and of "
            "parameters: write each"
        )
    if len(set(form.ops().values())) > 1:
        notes.append("ops: all data types have the same in the first form")
    if config.mv_distribution:
        notes.append("exp_avg, exp_avg_sq: in the first form as they stand before the update of a step, not after it")
    return made, notes


def as_second_form(config: Config) -> tuple[dict[str, Any], list[str]]:
    """The object of the second form that collects the same, and what has no place in it.

    Args:
        config: made by `parse_config`.

    >>> from msmon.config import parse_config
    >>> as_second_form(parse_config({"param_distribution": True, "module_ranks": [0], "squash_name": True}))
    ({'rank': [0], 'monitors': {'module': {'enabled': False}, 'param': {'enabled': True, 'ops': ['norm']}}}, \
['squash_name: the second form has nothing like it'])
    """
    given = _given(config)
    made = {key: given.pop(key) for key in (*SHARED, "ndigits") if key in given}
    notes = []
    if "module_ranks" in given:
        made["rank"] = given.pop("module_ranks")
    common: dict[str, Any] = {"ops": given.pop("ops", ["norm"])}
    if "eps" in given:
        common["eps"] = given.pop("eps")
    monitors: dict[str, Any] = {"module": {"enabled": False}}
    for name, switch in _SWITCHES.items():
        if given.pop(switch, False):
            monitors[name] = {"enabled": True, **common}
    targets = given.pop("targets", {})
    if targets:
        if monitors["module"]["enabled"] and not given.pop("all_xy", False):
            monitors["module"]["targets"] = list(targets)
        notes.append(
            "targets: the second form has parts of names of modules there, takes all their tensors, and all parameters"
        )
    given.pop("all_xy", None)
    if given.pop("monitor_mbs_grad", False) and "weight_grad" in monitors:
        monitors["weight_grad"]["monitor_mbs_grad"] = True
    calls = given.pop("cc_distribution", {})
    if calls.pop("enable", False):
        monitors["cc"] = {"enabled": True, **common, **{key: value for key, value in calls.items() if value}}
    if config.mv_distribution:
        notes.append("exp_avg, exp_avg_sq: in the second form as they stand after the update of a step, not before it")
    notes += [f"{key}: the second form has nothing like it" for key in given]
    return {**made, "monitors": monitors}, notes


def _given(config: Config) -> dict[str, Any]:
    default = Config().to_dict()
    return {key: value for key, value in config.to_dict().items() if value != default[key]}
