"""python -m dse: the command `dse`, also where its script is not on the PATH."""

import sys

from dse.frontend.cli import main

sys.exit(main())
