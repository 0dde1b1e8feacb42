"""MindSpore's executor of dynamic graphs, and what it says of the gradient that is being recorded."""

from __future__ import annotations

from typing import Any

import mindspore


def _find_executor() -> Any:
    try:
        from mindspore.graph.api import _pynative_executor
    except ImportError:  # before 2.9
        from mindspore.common.api import _pynative_executor
    return _pynative_executor


executor = _find_executor()
"""The one executor of the process."""

# Private, as is the executor. The first is also False under `_no_grad`; where it does not exist the second serves.
is_recording = getattr(executor, "requires_grad", None) or executor.grad_flag
"""Whether operators that run now are recorded for a gradient."""


def in_graph_mode() -> bool:
    """Whether a Cell that is called now is compiled as a whole."""
    return bool(mindspore.get_context("mode") == mindspore.GRAPH_MODE)
