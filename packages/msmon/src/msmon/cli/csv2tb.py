"""Convert the CSV files of a run to TensorBoard event files, with many processes.

Needs msmon[tensorboard]. The same as csv2tensorboard_by_step() in Python.
"""

from msmon_io.cli import add_csv2tb_arguments as add_arguments
from msmon_io.cli import run

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  msmon csv2tb monitor_output
  msmon csv2tb monitor_output -p 8 -t grad_reduced actv -o events
  msmon csv2tb monitor_output --start Dec03_21-34-40 --end Dec04_08-00-00

exit status:
  0  converted; broken lines are reported and left out
  1  could not be converted
  2  wrong arguments"""
