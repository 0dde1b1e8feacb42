import sys

from msmon_alert.cli import main

sys.exit(main())
