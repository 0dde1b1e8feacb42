"""Anomaly rules for training statistics, and which anomaly came first."""

__version__ = "0.1.0"
