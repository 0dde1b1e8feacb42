"""Where in the user's program a module is called."""

from __future__ import annotations

import linecache
import sys
from types import FrameType

_OWN = ("msmon_hooks", "msmon")


def call_stack(skip: tuple[str, ...] = ()) -> str:
    """The calls that led here, innermost first, one frame a line: `File x.py, line 3, in forward: self.fc(x)`.

    Args:
        skip: name prefixes of Python modules whose frames are left out, besides msmon's own: what a framework
            puts between a module and its caller.

    Example:
        >>> program = {"__name__": "train", "call_stack": call_stack}
        >>> exec(compile("def forward(): return call_stack()", "train.py", "exec"), program)
        >>> program["forward"]().splitlines()[0]
        'File train.py, line 1, in forward: '
    """
    left_out = (*_OWN, *skip)
    lines = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not any(module == name or module.startswith(name + ".") for name in left_out):
            code, line = frame.f_code, frame.f_lineno
            source = linecache.getline(code.co_filename, line, frame.f_globals).strip()
            lines.append(f"File {code.co_filename}, line {line}, in {code.co_name}: {source}")
        frame = frame.f_back
    return "\n".join(lines)
