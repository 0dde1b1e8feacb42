"""The PyTorch half: `attach` puts every hook that a monitor needs onto a model and its optimizer."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("msmon_hooks.torch needs PyTorch: pip install 'msmon-hooks[torch]'") from error

from msmon_hooks.torch.attach import attach
from msmon_hooks.torch.process_groups import ProcessGroups, group_ranks, when_ranks_are_known

__all__ = ["ProcessGroups", "attach", "group_ranks", "when_ranks_are_known"]
