"""python -m dse: the command where no script is on the path."""

import sys

from dse.frontend.cli import main

sys.exit(main())
