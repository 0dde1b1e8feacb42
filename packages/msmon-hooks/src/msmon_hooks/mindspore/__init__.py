"""The MindSpore half: `attach` puts every hook that a monitor needs onto a network and its optimizer."""

try:
    import mindspore as _mindspore  # noqa: F401
except ImportError as error:
    raise ImportError("msmon_hooks.mindspore needs MindSpore: pip install 'msmon-hooks[mindspore]'") from error

from msmon_hooks.mindspore.attach import Attachment, attach
from msmon_hooks.mindspore.groups import Groups, group_ranks

__all__ = ["Attachment", "Groups", "attach", "group_ranks"]
