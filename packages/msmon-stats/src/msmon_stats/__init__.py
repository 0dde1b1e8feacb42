"""Statistics of tensors on their own device, in one pass over memory."""

__version__ = "0.1.0"
