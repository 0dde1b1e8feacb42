"""Where two runs first differ."""

from .page import write_diff_page
from .result import Difference, DiffResult
from .rules import NameRules, read_rules
from .runs import diff_runs

__all__ = ["DiffResult", "Difference", "NameRules", "diff_runs", "read_rules", "write_diff_page"]
