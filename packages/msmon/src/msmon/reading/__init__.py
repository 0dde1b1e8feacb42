"""Reading a run from its output files: a summary, a page to look at, and where two runs differ. Needs no framework."""

try:
    import pyarrow as _pyarrow  # noqa: F401
except ImportError as error:
    raise ImportError(
        "reading a run needs pyarrow, which reads its CSV and Parquet files: pip install 'msmon[report]'"
    ) from error

from msmon.reading.diff import diff_runs, write_diff_page
from msmon.reading.errors import UnusableRun
from msmon.reading.report import write_report
from msmon.reading.run import Run, open_run
from msmon.reading.summary import summarize

__all__ = ["Run", "UnusableRun", "diff_runs", "open_run", "summarize", "write_diff_page", "write_report"]
