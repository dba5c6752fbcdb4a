"""A small process that says what happened when Ray ends the driver.

Ray's C++ code calls `_exit(1)` in every process whose raylet is gone, also after an orderly `ray stop`: no
`finally`, no `atexit`, no line. So the driver starts this file as a process of its own, which reads a pipe.
If the pipe ends without `ENDED` and Ray is gone, it prints one line and writes the state of the run. A
driver that is killed leaves a cluster that it joined behind; then `dse status` says so.

Only the standard library is imported until then, so that it costs few milliseconds and little memory.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ENDED = b"ended\n"
ENDING_S = 10.0  # Ray's processes still take connections for a while after they ended the driver
SHOW_CURSOR = "\r\x1b[K\x1b[?25h"  # a live line of progress is left behind, and the cursor hidden


@contextmanager
def watched(out: Path, shown: str, address: str | None, servers: Sequence[tuple[str, int]]) -> Iterator[None]:
    """Watches this process while the body runs.

    shown: the run folder's name for messages
    address: of the cluster that was joined; None: this process started it
    servers: (host, port) of Ray's processes that it needs
    """
    if address:
        state, reason = "failed", f"the Ray cluster at {address} was stopped, and took this process along"
        start = "start a cluster (ray start --head), then "
    else:  # one goes with the other, whichever was ended first
        state, reason = "killed", "its process and its Ray cluster were ended from outside (kill, ray stop)"
        start = ""
    asked = {"out": str(out), "shown": shown, "servers": servers, "state": state, "reason": reason}
    asked["next"] = f"{start}run the same command again, or dse resume {shown}; what was committed is safe"
    # in a session of its own, so that Ctrl-C does not end it
    child = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, start_new_session=True)
    assert child.stdin
    with suppress(OSError):
        child.stdin.write(json.dumps(asked).encode() + b"\n")
        child.stdin.flush()
    try:
        yield
    finally:
        with suppress(OSError):
            child.stdin.write(ENDED)
            child.stdin.close()
        child.wait()


def _is_gone(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=2.0).close()
    except OSError:
        return True
    return False


def _any_ends(servers: Sequence[tuple[str, int]]) -> bool:
    """Returns whether any of the servers is gone, now or within ENDING_S."""
    end = time.monotonic() + ENDING_S
    while not (found := any(_is_gone(*server) for server in servers)) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def _write_state(out: Path, state: str, reason: str) -> None:
    """Writes state and reason into status.json, unless another driver has the folder by now."""
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from cluster import store
    from dse.run import folder

    with suppress(ValueError), store.lock_folder(out):
        manifest = folder.read(out)
        facts = folder.status(out, manifest.identity)
        if facts is None or facts.get("state") != "running":
            return
        facts = folder.committed(out, manifest, facts)
        facts |= {"state": state, "reason": reason, "left_s": None, "time": time.time()}
        facts |= {"identity": manifest.identity, "published": manifest.generation}
        folder.write_bytes(out / folder.STATUS, folder.seal("status", facts))


def main() -> None:
    """Waits for the end of the driver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir("/")  # keeps no folder busy
    pipe = sys.stdin.buffer
    asked = json.loads(pipe.readline() or b"{}")
    if not asked or pipe.readline() == ENDED or not _any_ends(asked["servers"]):
        return
    line = f"{asked['shown']}: {asked['reason']}; {asked['next']}"
    print(f"{SHOW_CURSOR * sys.stderr.isatty()}{line}", file=sys.stderr, flush=True)
    with suppress(OSError):
        _write_state(Path(asked["out"]), asked["state"], f"{asked['reason']}; {asked['next']}")


if __name__ == "__main__":
    main()
