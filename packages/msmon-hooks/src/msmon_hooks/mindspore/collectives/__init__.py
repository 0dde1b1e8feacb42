"""Collectives of MindSpore, and the tensors that go through them."""

from msmon_hooks.mindspore.collectives.hooks import CollectiveHooks

__all__ = ["CollectiveHooks"]
