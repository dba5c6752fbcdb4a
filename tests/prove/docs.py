"""Every block of README.md and docs/ that can be run, from an empty cache, and the notebook. PART=docs."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from tests import documents, notebook


def main() -> int:
    wrong = 0
    for page in documents.PAGES:
        with tempfile.TemporaryDirectory(prefix="dse-docs-") as name:
            os.environ["DSE_CACHE"] = str(Path(name) / "cache")
            started = time.monotonic()
            found = list(documents.faults(page, documents.prepared(Path(name) / "here"), long=True))
            blocks = sum(
                one.kind in documents.RUNNABLE and not one.mark.startswith("not run")
                for one in documents.blocks(page)
            )
            seconds = time.monotonic() - started
            print(
                "\n".join(
                    [
                        f"{page.relative_to(documents.ROOT)}: {blocks} blocks, {len(found)} faults, "
                        f"{seconds:.0f} s",
                        *found,
                    ]
                ),
                flush=True,
            )
            wrong += len(found)
    with tempfile.TemporaryDirectory(prefix="dse-docs-") as name:
        os.environ["DSE_CACHE"] = str(Path(name) / "cache")
        cells, other = notebook.executed(
            documents.ROOT / "docs" / "notebook.ipynb", documents.prepared(Path(name) / "here")
        )
        print(
            "\n".join([f"docs/notebook.ipynb: {cells} cells run, {len(other)} show something else", *other]),
            flush=True,
        )
        wrong += len(other)
    return int(wrong > 0)
