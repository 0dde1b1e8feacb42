"""Is a parallel training computing what it should?"""

from msmon.verifying.report import Outcome, Report, Violation
from msmon.verifying.verification import verify

__all__ = ["Outcome", "Report", "Violation", "verify"]
