"""`python -m msmon.run [options] train.py ...`: for launchers that start a Python module in each process."""

import sys

from msmon.cli.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
