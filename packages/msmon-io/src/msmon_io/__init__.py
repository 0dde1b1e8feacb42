"""Training statistics to files (CSV, TensorBoard, Parquet) and files to other files."""

from typing import TYPE_CHECKING, Any

from msmon_io.background import Background
from msmon_io.cells import decode_cell, utf8
from msmon_io.csv2parquet import convert_to_parquet
from msmon_io.csv2tensorboard import csv2tensorboard_by_step
from msmon_io.csv_reader import BrokenLine, data_type_of, read_csv
from msmon_io.csv_writer import CsvWriter, write_text_csv
from msmon_io.files import OutsideError, append_bytes, replace_file, write_json
from msmon_io.losses import Losses
from msmon_io.memory_writer import MemoryWriter
from msmon_io.run_dirs import (
    RunDir,
    create_run_dir,
    find_run_dir,
    newest_run_dirs,
    run_dirs,
)
from msmon_io.table import TEXT_OPS, Table
from msmon_io.tags import tag
from msmon_io.writers import (
    Writer,
    WriterContext,
    WriterFactory,
    open_writer,
    writer_names,
)

if TYPE_CHECKING:
    from msmon_io.parquet_writer import ParquetWriter as ParquetWriter
    from msmon_io.tensorboard_writer import TensorBoardWriter as TensorBoardWriter

__version__ = "0.1.0"

# Public too, but not for `import *`, which must work without the extras: ParquetWriter and TensorBoardWriter.
__all__ = [
    "TEXT_OPS",
    "Background",
    "BrokenLine",
    "CsvWriter",
    "Losses",
    "MemoryWriter",
    "OutsideError",
    "RunDir",
    "Table",
    "Writer",
    "WriterContext",
    "WriterFactory",
    "append_bytes",
    "convert_to_parquet",
    "create_run_dir",
    "csv2tensorboard_by_step",
    "data_type_of",
    "decode_cell",
    "find_run_dir",
    "newest_run_dirs",
    "open_writer",
    "read_csv",
    "replace_file",
    "run_dirs",
    "tag",
    "utf8",
    "write_json",
    "write_text_csv",
    "writer_names",
]


def __getattr__(name: str) -> Any:
    # These need packages that only the extras bring.
    if name == "TensorBoardWriter":
        from msmon_io.tensorboard_writer import TensorBoardWriter

        return TensorBoardWriter
    if name == "ParquetWriter":
        from msmon_io.parquet_writer import ParquetWriter

        return ParquetWriter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
