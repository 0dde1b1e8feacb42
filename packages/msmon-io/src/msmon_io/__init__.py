"""Training statistics to files (CSV, TensorBoard, Parquet) and files to other files."""

from msmon_io._background import Background
from msmon_io._csv_reader import BrokenLine, data_type_of, read_csv
from msmon_io._csv_writer import CsvWriter
from msmon_io._files import OutsideError, write_json
from msmon_io._losses import Losses
from msmon_io._memory_writer import MemoryWriter
from msmon_io._numbers import format_number
from msmon_io._run_dirs import RunDir, create_run_dir, find_run_dir, newest_run_dirs, run_dirs, run_dirs_between
from msmon_io._table import Table

__version__ = "0.1.0"

__all__ = [
    "Background",
    "BrokenLine",
    "CsvWriter",
    "Losses",
    "MemoryWriter",
    "OutsideError",
    "RunDir",
    "Table",
    "create_run_dir",
    "data_type_of",
    "find_run_dir",
    "format_number",
    "newest_run_dirs",
    "read_csv",
    "run_dirs",
    "run_dirs_between",
    "write_json",
]
