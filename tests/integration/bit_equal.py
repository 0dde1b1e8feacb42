"""What is monitored in the comparisons with an unmonitored training, and the table of their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ALL_OPS = ["min", "max", "mean", "norm", "zeros", "nans", "std", "rms", "absmax", "infs", "shape", "dtype"]
_EACH: dict[str, dict[str, Any]] = {
    "xy": {"xy_distribution": True, "all_xy": True},
    "wg": {"wg_distribution": True},
    "param": {"param_distribution": True},
    "mv": {"mv_distribution": True},
    "mg_direction": {"mg_direction": True},
    "ur": {"ur_distribution": True, "format": ["tensorboard"]},
    "cc": {"cc_distribution": {"enable": True, "cc_pre_hook": True}},
}
_COMMON = {"ops": _ALL_OPS, "dynamic_on": True, "alert": {"rules": [{"rule_name": "AnomalyNan"}], "dump": True}}
_ALL = {key: value for fields in _EACH.values() for key, value in fields.items()}
MONITORS = {name: {**_COMMON, **fields} for name, fields in _EACH.items()} | {
    "all": {**_COMMON, **_ALL, "stack_info": True, "format": ["csv", "tensorboard"]}
}
"""Name of a column to the fields of the configuration."""


def table(rows: Mapping[str, Mapping[str, bool]]) -> str:
    """Engine x monitor: are losses and weights, bit for bit, those of the unmonitored training?"""
    width = max(map(len, rows))
    lines = [f"{'losses and weights':{width}}" + "".join(f"{name:>14}" for name in MONITORS)]
    for engine, found in rows.items():
        cells = ({True: "bit-equal", False: "DIFFERS", None: "-"}[found.get(name)] for name in MONITORS)
        lines.append(f"{engine:{width}}" + "".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines)
