"""The rules that come with the package."""

from msmon_alert.rules.constant import AnomalyConstant
from msmon_alert.rules.dead import AnomalyDead
from msmon_alert.rules.frozen import AnomalyFrozen
from msmon_alert.rules.nan import AnomalyNan
from msmon_alert.rules.overwritten import AnomalyOverwritten
from msmon_alert.rules.spike import AnomalySpike
from msmon_alert.rules.turbulence import AnomalyTurbulence
from msmon_alert.rules.vanish import AnomalyVanish

__all__ = [
    "AnomalyConstant",
    "AnomalyDead",
    "AnomalyFrozen",
    "AnomalyNan",
    "AnomalyOverwritten",
    "AnomalySpike",
    "AnomalyTurbulence",
    "AnomalyVanish",
]
