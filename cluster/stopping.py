"""Ends a run from another process: by a request in its folder, which the driver reads on whichever host."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cluster.store import RunFault, as_store_fault, refuse_links
from dse.run import folder

POLL_S = 0.3  # seconds between checks of the folder
STOP, NOW = b"stop", b"now"  # content of a request; STOP acts as Ctrl-C, NOW as a second Ctrl-C


def stop(text: str | Path, now: bool = False, waiting: Callable[[], None] = lambda: None) -> Path:
    """Ends the run that writes into a folder, and waits until it has ended. Returns the folder, or of a URL a
    copy.

    now: leases in flight are given up, as a second Ctrl-C does; else they finish and are committed
    waiting: called about every 0.3 s

    Raises ValueError if there is no run folder, RunFault if no run writes into it.
    """
    request = NOW if now else STOP
    if folder.is_url(text):
        from cluster import objects

        return objects.stop(str(text), request, waiting)
    out = Path(text)
    folder.raise_if_no_run(out)
    refuse_links(out)
    if not folder.is_locked(out):
        raise RunFault(
            f"{out}: no run writes into this folder; `dse status {out}` says how the last one ended"
        )
    with as_store_fault(out, is_open=True):
        folder.write_bytes(out / folder.STOP, request, durable=False)
    while folder.is_locked(out):
        waiting()
        time.sleep(POLL_S)
    withdraw(out)
    return out


def withdraw(out: Path) -> None:
    """Removes a request, e.g. one that a run did not live to read."""
    with suppress(OSError):
        (out / folder.STOP).unlink()


@contextmanager
def obeyed(out: Path, interrupt: Callable[[bool], None]) -> Iterator[None]:
    """Calls `interrupt` from a thread when a request arrives while the body runs. Its argument: whether the
    request is NOW. A request that an earlier run left is removed first.
    """
    withdraw(out)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(POLL_S):
            if (request := _read(out)) is not None:
                withdraw(out)
                interrupt(request == NOW)

    thread = threading.Thread(target=look, daemon=True, name="dse stop")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _read(out: Path) -> bytes | None:
    """Returns the request in a folder; None without one."""
    with suppress(OSError):
        handle = os.open(out / folder.STOP, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return os.read(handle, len(STOP))
        finally:
            os.close(handle)
    return None
