"""The MindSpore half: `attach` puts every hook that a monitor needs onto a network and its optimizer."""

try:
    import mindspore as _mindspore  # noqa: F401
except ImportError as error:
    raise ImportError("msmon_hooks.mindspore needs MindSpore: pip install 'msmon-hooks[mindspore]'") from error

from msmon_hooks.mindspore.attach import attach
from msmon_hooks.mindspore.process_groups import ProcessGroups, group_ranks, when_ranks_are_known

__all__ = ["ProcessGroups", "attach", "group_ranks", "when_ranks_are_known"]
