import sys

from msmon_io.cli import main

sys.exit(main())
