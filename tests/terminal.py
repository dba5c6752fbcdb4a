"""A command in a pseudo-terminal of so many columns: the lines it writes, without what moves the cursor."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from threading import Thread
from unittest.mock import patch

from tests import commands

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
FILES = (0, 1, 2)


def lines(folder: Path, columns: int, *command: str) -> list[str]:
    """What `dse COMMAND` writes, in this process. What a terminal would have to fold is a line longer than
    `columns`. A line that is drawn over itself stands there as often.
    """
    terminal, end = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    said = bytearray()
    reader = Thread(target=_read, args=(terminal, said))
    reader.start()
    with _standing_for_ours(end), patch.dict(os.environ, {"TERM": "xterm"}):
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)
        commands.called(*command, folder=folder)
    reader.join()
    os.close(terminal)
    return re.split(r"[\r\n]+", ESCAPE.sub("", said.decode()))


def _read(terminal: int, said: bytearray) -> None:
    try:
        while chunk := os.read(terminal, 1 << 16):
            said += chunk
    except OSError:  # the other side is closed
        pass


@contextmanager
def _standing_for_ours(end: int) -> Iterator[None]:
    """The end of a terminal as input, output and errors of this process; closed afterwards."""
    kept = [os.dup(number) for number in FILES]
    try:
        for number in FILES:
            os.dup2(end, number)
        with os.fdopen(end, "w") as out, redirect_stdout(out), redirect_stderr(out):
            yield
    finally:
        for number, own in zip(FILES, kept, strict=True):
            os.dup2(own, number)
            os.close(own)
