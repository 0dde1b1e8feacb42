"""Is a parallel training computing what it should?"""

from msmon.verifying.follow import follow
from msmon.verifying.report import Outcome, Report, Violation
from msmon.verifying.verification import verify

__all__ = ["Outcome", "Report", "Violation", "follow", "verify"]
