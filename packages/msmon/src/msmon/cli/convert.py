"""Convert the CSV files of a run to Parquet files, with many processes.

Needs msmon[parquet].
"""

from msmon_io.cli import add_convert_arguments as add_arguments
from msmon_io.cli import run

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  msmon convert monitor_output
  msmon convert monitor_output -p 8 -t grad_reduced -o tables

exit status:
  0  converted; broken lines are reported and left out
  1  could not be converted
  2  wrong arguments"""
