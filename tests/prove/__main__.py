"""The long proofs: python -m tests.prove [PART]. Each part exits non-zero at the first claim that does not
hold.
"""

from __future__ import annotations

import importlib
import sys
import time

PARTS = (
    "nests",
    "bounds",
    "cases",
    "exchange",
    "fronts",
    "smaug",
    "mappers",
    "together",
    "ragged",
    "time",
    "layouts",
    "assign",
    "reuse",
    "prune",
    "schedules",
    "join",
    "fused",
    "network",
    "kapla",
    "claims",
    "chains",
    "mutants",
    "corruption",
    "crashes",
    "hostile",
    "report",
    "docs",
    "models",
    "share",
    "kills",
    "objects",
    "tokens",
    "tests",
)


def main(wanted: str) -> int:
    parts = PARTS if wanted == "all" else (wanted,)
    if wanted not in (*PARTS, "all"):
        print(f"PART = {wanted} is none of {', '.join(PARTS)}, all", file=sys.stderr)
        return 2
    failed = []
    for part in parts:
        started = time.monotonic()
        code = importlib.import_module(f"tests.prove.{part}").main()
        print(f"{part}: {'holds' if code == 0 else 'FAILS'}, {time.monotonic() - started:.0f} s", flush=True)
        failed += [part] if code else []
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "all"))
