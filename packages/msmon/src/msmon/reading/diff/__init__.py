"""Where two runs first differ."""

from msmon.reading.diff.page import write_diff_page
from msmon.reading.diff.result import Difference, DiffResult
from msmon.reading.diff.rules import NameRules, read_rules
from msmon.reading.diff.runs import diff_runs

__all__ = ["DiffResult", "Difference", "NameRules", "diff_runs", "read_rules", "write_diff_page"]
