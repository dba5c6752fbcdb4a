"""A command in a pseudo-terminal of so many columns: the lines it writes, without what moves the cursor."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from pathlib import Path

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


def lines(folder: Path, columns: int, *command: str) -> list[str]:
    """What a terminal would have to fold is a line longer than `columns`. A line that is drawn over itself
    stands there as often.
    """
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe(
            command[0],
            command,
            {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
            | {"TERM": "xterm"},
        )
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    said = b""
    try:
        while chunk := os.read(terminal, 1 << 16):
            said += chunk
    except OSError:  # the other side is closed
        pass
    os.close(terminal)
    os.waitpid(child, 0)
    return re.split(r"[\r\n]+", ESCAPE.sub("", said.decode()))
