"""The command line in this process: what `dse ...` prints and how it ends, without the start of a process
each time.
"""

from __future__ import annotations

import io
import os
import signal
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

from dse.frontend import cli


def called(*command: str, folder: Path) -> int:
    """How a command ends in a folder; its output is the process's."""
    before = signal.getsignal(signal.SIGPIPE)  # the command takes it for its process
    try:
        with chdir(folder):
            return cli.main(list(command))
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        signal.signal(signal.SIGPIPE, before)


def dse(*command: str, folder: Path) -> CompletedProcess[str]:
    """As a shell in a folder runs `dse COMMAND`, its output no terminal."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = called(*command, folder=folder)
    out.flush()
    return CompletedProcess(list(command), code, out.buffer.getvalue().decode(), err.getvalue())  # type: ignore[attr-defined]


def good(*command: str, folder: Path) -> str:
    """What a command prints that ends well; os.environ is the test's."""
    said = dse(*command, folder=folder)
    assert said.returncode == 0, (os.getcwd(), said.stderr)
    assert "Traceback" not in said.stderr, (os.getcwd(), said.stderr)
    return said.stdout
