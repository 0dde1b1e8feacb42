"""Reading a run from its output files: a summary, a page to look at, and where two runs differ. Needs no framework."""

try:
    import pyarrow as _pyarrow  # noqa: F401
except ImportError as error:
    raise ImportError(
        "reading a run needs pyarrow, which reads its CSV and Parquet files: pip install 'msmon[report]'"
    ) from error

from .errors import UnusableRun
from .run import Run, open_run

__all__ = ["Run", "UnusableRun", "open_run"]
