"""Tells a callable: this tensor, now. Hooks for modules, parameters, optimizers and collectives."""

__version__ = "0.1.0"
