"""The long proofs: python -m tests.prove PART. A part by itself would do nothing, and seem to hold: it is
refused.
"""

import sys

if (
    sys.argv[0] == "-m"
    and (part := sys.orig_argv[sys.orig_argv.index("-m") + 1].partition("tests.prove.")[2])
    and "." not in part
    and part[0] != "_"
):
    sys.exit(f"python -m tests.prove {part}")
