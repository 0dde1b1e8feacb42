"""Training statistics to files (CSV, TensorBoard, Parquet) and files to other files."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from msmon_io.background import Background
from msmon_io.csv2parquet import convert_to_parquet
from msmon_io.csv2tensorboard import csv2tensorboard_by_step
from msmon_io.csv_reader import BrokenLine, HeaderError, data_type_of, data_types_of, read_csv, read_header, steps_of
from msmon_io.csv_writer import CsvWriter, write_text_csv
from msmon_io.files import OutsideError, append_bytes, replace_file, write_json
from msmon_io.launches import Launch, group_launches, launches, newest_run_dirs, ranges
from msmon_io.losses import Losses
from msmon_io.memory_writer import MemoryWriter
from msmon_io.progress import progress_bar
from msmon_io.run_dirs import (
    RunDir,
    create_run_dir,
    find_run_dir,
    run_dir_named,
    run_dirs,
)
from msmon_io.second_form_writer import SecondFormWriter
from msmon_io.table import FINGERPRINT, TEXT_OPS, Table
from msmon_io.tags import tag
from msmon_io.writers import (
    Writer,
    WriterContext,
    WriterFactory,
    open_writer,
    writer_names,
)

if TYPE_CHECKING:
    from msmon_io.arrow_csv import read_arrow as read_arrow
    from msmon_io.growing_part import row_groups as row_groups
    from msmon_io.growing_part import stream_batches as stream_batches
    from msmon_io.growing_part import stream_path as stream_path
    from msmon_io.parquet_writer import ParquetWriter as ParquetWriter
    from msmon_io.tensorboard_writer import TensorBoardWriter as TensorBoardWriter

__version__ = "0.1.0"

# Public too, but not for `import *`, which must work without the extras: what `_OF_EXTRAS` names.
__all__ = [
    "FINGERPRINT",
    "TEXT_OPS",
    "Background",
    "BrokenLine",
    "CsvWriter",
    "HeaderError",
    "Launch",
    "Losses",
    "MemoryWriter",
    "OutsideError",
    "RunDir",
    "SecondFormWriter",
    "Table",
    "Writer",
    "WriterContext",
    "WriterFactory",
    "append_bytes",
    "convert_to_parquet",
    "create_run_dir",
    "csv2tensorboard_by_step",
    "data_type_of",
    "data_types_of",
    "find_run_dir",
    "group_launches",
    "launches",
    "newest_run_dirs",
    "open_writer",
    "progress_bar",
    "ranges",
    "read_csv",
    "read_header",
    "replace_file",
    "run_dir_named",
    "run_dirs",
    "steps_of",
    "tag",
    "write_json",
    "write_text_csv",
    "writer_names",
]


_OF_EXTRAS = {
    "ParquetWriter": "parquet_writer",
    "TensorBoardWriter": "tensorboard_writer",
    "read_arrow": "arrow_csv",
    "row_groups": "growing_part",
    "stream_batches": "growing_part",
    "stream_path": "growing_part",
}


def __getattr__(name: str) -> Any:
    if name not in _OF_EXTRAS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"msmon_io.{_OF_EXTRAS[name]}"), name)
