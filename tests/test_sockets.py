"""No socket beyond 127.0.0.1: the hook of conftest refuses one here, and a real run's processes, Ray's
daemons among them, hold none, and import none of the packages of the user's folder.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest

from tests.amount import some
from tests.test_cli import DSE, STUDY

LISTENING, CONNECTED = "0A", "01"


@pytest.mark.parametrize("host", ["192.0.2.1", "8.8.8.8", "2001:db8::1"])
@pytest.mark.parametrize("call", ["connect", "connect_ex", "bind", "sendto", "getaddrinfo"])
def test_a_test_that_reaches_out_is_stopped(host: str, call: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    kind = socket.SOCK_DGRAM if call == "sendto" else socket.SOCK_STREAM
    with socket.socket(family, kind) as outward, pytest.raises(PermissionError, match="a test reached out"):
        outward.settimeout(2)
        match call:
            case "sendto":
                outward.sendto(b"x", (host, 9))
            case "getaddrinfo":
                socket.getaddrinfo("example.invalid", 80)
            case _:
                getattr(outward, call)((host, 9))


def test_listening_on_every_address_is_stopped() -> None:
    with socket.socket() as server, pytest.raises(PermissionError, match="a test reached out"):
        server.bind(("0.0.0.0", 0))
    with socket.socket() as server, pytest.raises(PermissionError, match="a test reached out"):
        server.bind(("", 0))


def test_this_machine_can_be_reached() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=5) as client,
    ):
        client.sendall(b"x")
        assert server.accept()[0].recv(1) == b"x"
    with pytest.raises(OSError), socket.socket(socket.AF_UNIX) as nobody:
        nobody.connect("/nowhere")


DECOYS = ("analysis", "cluster", "hw", "workloads", "tests")


@dataclass(slots=True)
class Watched:
    """A run with one worker, of the installed command, in a folder with packages of our names.

    seen: their sockets, as `sockets` tells them; started: their command lines.
    """

    folder: Path
    env: dict[str, str]
    returncode: int = -1
    said: str = ""
    heard: str = ""
    seen: set[tuple[str, str, str, str]] = field(default_factory=set)
    started: set[str] = field(default_factory=set)


@pytest.fixture(scope="module", params=some(["", "."], 1))
def watched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """params: PYTHONPATH; "." puts the packages of the folder before ours."""
    own = {"PYTHONPATH": request.param} if request.param else {}
    run = Watched(tmp_path_factory.mktemp("watched"), {**os.environ, **own})
    (run.folder / "small.yaml").write_text(STUDY)
    for name in DECOYS:
        (run.folder / name).mkdir()
        (run.folder / name / "__init__.py").write_text(f"raise SystemExit('decoy {name}')\n")
    command_line = [DSE, "run", "small.yaml", "--workers", "1", "--out", "run"]
    with open(run.folder / "said", "w") as said, open(run.folder / "heard", "w") as heard:
        child = subprocess.Popen(command_line, cwd=run.folder, env=run.env, stdout=said, stderr=heard)
        while child.poll() is None:
            members = family(child.pid)
            run.seen |= {found for pid in members for found in sockets(pid)}
            run.started |= {command(pid) for pid in members}
            time.sleep(0.5)
    run.said, run.heard = ((run.folder / name).read_text() for name in ("said", "heard"))
    run.returncode = child.returncode
    return run


@pytest.mark.xdist_group("ray")
def test_a_run_with_workers_stays_on_this_machine(watched: Watched) -> None:
    assert watched.returncode == 0
    programs = {program for program, *_ in watched.seen}
    assert any("raylet" in p for p in programs), programs
    assert any("gcs_server" in p for p in programs), programs
    assert any("ray::Solver" in p for p in programs), programs
    assert any(state == LISTENING for _, state, _, _ in watched.seen)
    assert any(state == CONNECTED for _, state, _, _ in watched.seen)
    outside = {
        one for one in watched.seen if not loopback(one[2]) or (one[1] == CONNECTED and not loopback(one[3]))
    }
    assert not outside, "\n".join(map(str, sorted(outside)))
    # it asks 169.254.169.254 for the cloud that it runs in, too briefly to be seen here
    assert not any("dashboard.py" in line for line in watched.started)


@pytest.mark.xdist_group("ray")
def test_decoy_packages_in_the_users_folder(watched: Watched) -> None:
    assert watched.returncode == 0
    assert "27 in all" in watched.said
    assert "decoy" not in watched.said + watched.heard
    counted = "SELECT status, count(*) AS n FROM machines GROUP BY ALL"
    asked = subprocess.run(
        [DSE, "sql", "run", counted, "--format", "csv"],
        cwd=watched.folder,
        env=watched.env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert asked.stdout.split() == ["status,n", "ok,27"]
    assert asked.stderr == ""


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents.setdefault(
                    int((entry / "stat").read_text().rsplit(") ", 1)[1].split()[1]), []
                ).append(int(entry.name))
            except OSError:
                continue
    found, todo = [pid], [pid]
    while todo:
        new = parents.get(todo.pop(), [])
        found += new
        todo += new
    return found


def sockets(pid: int) -> Iterator[tuple[str, str, str, str]]:
    """(program, state, local address, remote address) of the process's own TCP and UDP sockets; none once it
    has ended.
    """
    try:
        program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
        own = {
            link.name[8:-1]
            for fd in Path(f"/proc/{pid}/fd").iterdir()
            if (link := fd.readlink()).name.startswith("socket:[")
        }
        tables = [
            line.split()
            for kind in ("tcp", "tcp6", "udp", "udp6")
            for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]
        ]
    except OSError:
        return
    for row in tables:
        if row[9] in own:
            yield program, row[3], *(str(address(text)) for text in row[1:3])


def address(text: str) -> IPv4Address | IPv6Address:
    """Of /proc/net: 32 bit words in this machine's byte order, then the port.
    >>> str(address("0100007F:1F90"))
    '127.0.0.1'
    """
    raw = bytes.fromhex(text.split(":")[0])
    found = ip_address(
        b"".join(raw[i : i + 4][:: -1 if sys.byteorder == "little" else 1] for i in range(0, len(raw), 4))
    )
    return getattr(found, "ipv4_mapped", None) or found


def loopback(text: str) -> bool:
    return ip_address(text).is_loopback
