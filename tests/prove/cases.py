"""Every shared case file, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cases import RUNNERS
from tests.cases import main as run

DATA = Path(__file__).parents[1] / "data"


def main() -> int:
    return run(
        [
            str(path)
            for path in sorted(DATA.glob("*.json"))
            if json.loads(path.read_text()).get("kind") in RUNNERS
        ]
    )
