"""Anomaly rules for training statistics, and which anomaly came first."""

from msmon_alert.alert import Alert, Fired
from msmon_alert.anomaly_file import AnomalyFile
from msmon_alert.config import rules_from_config
from msmon_alert.monitor import Monitor
from msmon_alert.record import anomaly_record
from msmon_alert.rule import ColumnRule, Rule
from msmon_alert.rules import (
    AnomalyConstant,
    AnomalyDead,
    AnomalyFrozen,
    AnomalyNan,
    AnomalyOverwritten,
    AnomalySpike,
    AnomalyTurbulence,
    AnomalyVanish,
)
from msmon_alert.saved import load_state, save_state
from msmon_alert.sorting import SortedAnomalies, find_anomaly_files, first_anomalies
from msmon_alert.table import printable

__version__ = "0.1.0"

__all__ = [
    "Alert",
    "AnomalyConstant",
    "AnomalyDead",
    "AnomalyFile",
    "AnomalyFrozen",
    "AnomalyNan",
    "AnomalyOverwritten",
    "AnomalySpike",
    "AnomalyTurbulence",
    "AnomalyVanish",
    "ColumnRule",
    "Fired",
    "Monitor",
    "Rule",
    "SortedAnomalies",
    "anomaly_record",
    "find_anomaly_files",
    "first_anomalies",
    "load_state",
    "printable",
    "rules_from_config",
    "save_state",
]
