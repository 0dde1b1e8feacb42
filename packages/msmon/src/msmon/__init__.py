"""A training-state monitor for PyTorch and MindSpore that is cheap enough to leave on."""

__version__ = "0.1.0"
