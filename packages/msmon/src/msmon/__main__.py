"""`python -m msmon` is the command `msmon`."""

import sys

from msmon.cli import main

sys.exit(main())
