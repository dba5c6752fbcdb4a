"""python -m dse: the command where no script is on the path."""

import sys

from dse.cli import main

sys.exit(main())
