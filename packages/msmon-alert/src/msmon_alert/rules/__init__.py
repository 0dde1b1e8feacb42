"""The rules that come with the package."""

from msmon_alert.rules.nan import AnomalyNan
from msmon_alert.rules.turbulence import AnomalyTurbulence

__all__ = ["AnomalyNan", "AnomalyTurbulence"]
