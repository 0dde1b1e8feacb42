"""The tensors that go through collectives: what is sent, before the call; what has arrived, after it."""

from msmon_hooks.torch.collectives.hooks import CollectiveHooks

__all__ = ["CollectiveHooks"]
