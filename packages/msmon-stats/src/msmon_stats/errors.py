"""Errors that callers may want to catch."""

from __future__ import annotations


class UnsupportedTensorError(TypeError):
    """A value has no statistics: it holds no data (meta) or its values cannot be read (quantized, strings).

    The message is the reason that `msmon_stats.unsupported_reason` returns for the same value.
    """
