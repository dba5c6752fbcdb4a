"""A Ray cluster with a token, on 127.0.0.1: joined with the right one, and in one line of Ray's own words why
not with another or none.

    python -m tests.prove tokens

A head of its own (`ray start --head`), in a folder of its own; some 15 CPU seconds.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.test_pool import children

ROOT = Path(__file__).parents[2]
RIGHT, WRONG = "a" * 40, "b" * 40
AUTH = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS")
JOIN = """
import sys
from cluster import pool
try:
    with pool.cluster(sys.argv[1], 1) as cpus: print("joined", cpus)
except pool.PoolFault as fault: print(fault)
"""
CASES: dict[str, tuple[dict[str, str], str]] = {  # environment of the driver, what it must say
    "the right token": ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": RIGHT}, "joined 1"),
    "another token": (
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": WRONG},
        "InvalidAuthToken: Authentication token is missing or incorrect; set RAY_AUTH_MODE",
    ),
    "no token": (
        {"RAY_AUTH_MODE": "disabled"},
        "InvalidAuthToken: Authentication token is missing or incorrect; set RAY_AUTH_MODE",
    ),
    "a token that is not there": (
        {"RAY_AUTH_MODE": "token"},
        "Ray says: Token authentication is enabled but no authentication token was found; set RAY_AUTH",
    ),
}


def environment(folder: Path, own: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in AUTH}
    return (
        kept
        | {
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "RAY_TMPDIR": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        | own
    )


@contextmanager
def head(folder: Path) -> Iterator[str]:
    """Address of a head with the right token; all of its processes end with it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--head",
        "--block",
        "--node-ip-address=127.0.0.1",
        f"--port={port}",
        "--num-cpus=1",
        "--include-dashboard=false",
        "--object-store-memory=80000000",
        "--min-worker-port=0",
        "--max-worker-port=0",
    ]
    own = environment(folder, CASES["the right token"][0])
    child = subprocess.Popen(words, env=own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        family = children(child.pid)
        child.terminate()
        child.wait(30)
        for pid in family:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, 9)


def main() -> int:
    wrong = 0
    folder = Path(tempfile.mkdtemp(prefix="dse-token-", dir="/tmp"))
    try:
        with head(folder) as address:
            for name, (own, line) in CASES.items():
                for _ in range(10):  # the head may not listen yet
                    began = time.monotonic()
                    command = [sys.executable, "-c", JOIN, address]
                    said = subprocess.run(
                        command, env=environment(folder, own), capture_output=True, text=True, timeout=120
                    ).stdout
                    if "no Ray cluster answers" not in said:
                        break
                    time.sleep(2)
                held = line in said and said.count("\n") == 1
                wrong += not held
                print(
                    f"  {name}: {'' if held else 'WRONG, '}{time.monotonic() - began:.0f} s, {said.strip()}",
                    flush=True,
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(wrong > 0)
