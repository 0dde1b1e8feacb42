"""The second form of output of the tool that msmon replaces: its files, and how they call what ours call otherwise.

A directory `rank_<r>` holds `<monitor>_step<first>-<last>.csv` with the columns
`vpp_stage,step,module_name,scope[,micro_step],<statistics>`; a file has the rows of several data types.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from attrs import frozen

from msmon_io.files import PathLike

NO_STAGE = -1
"""`vpp_stage` of a model that is not in chunks."""

_NAME = re.compile(r"(?P<module>.*)\.(?P<side>input|output)(?P<path>_.*)?", re.DOTALL)
_SECOND_NAME = re.compile(r"(?P<module>.*)\.(?:grad_)?(?P<side>input|output)\.(?P<path>.*)", re.DOTALL)
_FILE = re.compile(r"(?P<monitor>[a-z_]+)_step\d+-\d+\.csv")


@frozen
class Place:
    """Where the rows of a data type are."""

    monitor: str
    scope: str
    numbers_micro_steps: bool = False
    """Whether each micro-step has a row; those of modules stand in their order, without a number."""


PLACES = {
    "actv": Place("module", "forward", numbers_micro_steps=True),
    "actv_grad": Place("module", "backward", numbers_micro_steps=True),
    "grad_unreduced": Place("weight_grad", "unreduced", numbers_micro_steps=True),
    "grad_reduced": Place("weight_grad", "reduced"),
    "exp_avg": Place("optimizer", "exp_avg"),
    "exp_avg_sq": Place("optimizer", "exp_avg_sq"),
    "state": Place("optimizer", "state"),
    "param_origin": Place("param", "param_origin"),
    "param_updated": Place("param", "param_updated"),
    "other": Place("cc", "comm"),
}
"""Data type to place, in the order in which a file has them."""

COLUMNS = ("vpp_stage", "step", "module_name", "scope")
"""Before `micro_step`, which only some files have, and the statistics."""


def data_types_in(path: PathLike) -> Sequence[str]:
    """The data types whose rows a file may have; empty: its name is none of the second form.

    >>> data_types_in("rank_0/param_step0-1.csv")
    ['param_origin', 'param_updated']
    """
    match = _FILE.fullmatch(os.path.basename(path))
    return [data_type for data_type, place in PLACES.items() if match and place.monitor == match["monitor"]]


def second_name(data_type: str, name: str) -> str:
    """What the second form calls a tensor.

    >>> second_name("actv", "rnn.output_1_0"), second_name("actv_grad", "fc.input"), second_name("exp_avg", "fc.bias")
    ('rnn.output.1.0', 'fc.grad_input.0', 'fc.bias.exp_avg')
    """
    place = PLACES[data_type]
    match = _NAME.fullmatch(name) if place.monitor == "module" else None
    if match:
        path = re.sub(r"_(?=\d)|(?<=\d)_", ".", (match["path"] or "_0")[1:])
        return f"{match['module']}.{'grad_' if data_type == 'actv_grad' else ''}{match['side']}.{path}"
    return f"{name}.{data_type}" if data_type in ("exp_avg", "exp_avg_sq") else name


def first_name(data_type: str, name: str) -> str:
    """What a tensor is called here that the second form calls `name`.

    >>> first_name("actv", "rnn.output.1.0"), first_name("actv_grad", "fc.grad_input.0")
    ('rnn.output_1_0', 'fc.input')
    """
    match = _SECOND_NAME.fullmatch(name) if PLACES[data_type].monitor == "module" else None
    if match:
        path = "" if match["path"] == "0" else f"_{match['path'].replace('.', '_')}"
        return f"{match['module']}.{match['side']}{path}"
    return name.removesuffix(f".{data_type}") if data_type in ("exp_avg", "exp_avg_sq") else name
