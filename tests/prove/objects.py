"""Run folders on servers of S3 (moto) and Google Cloud Storage (fake-gcs-server) that refuse, drop and cut,
and of Azure blobs (azurite) without faults: a run that is killed at random times and resumed,
with its local copy or without, gives the rows of an undisturbed run in a folder; of two runs at once one is
refused.

    make prove PART=objects        # makes build/objects, which has the servers
    python -m tests.prove objects [--store gs] [--times 1] [--seed 7] [--keep DIR]

DIR gets, of a store that does not hold, the requests with their faults, the run's copy and the folder.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import pyarrow.fs as pafs

ROUNDS, FEW_ROUNDS, SEED = 12, 3, 7
FAULTS = {
    "503": 0.04,
    "no request": 0.02,
    "no answer": 0.02,
    "half an answer": 0.02,
    "silence": 0.003,
}  # share of the requests
STUDY = ("studies/first.yaml", "--workers", "0", "--set", "search.generation=16")
QUERY = "FROM designs ORDER BY machine, schedule"
ROOT = Path(__file__).parents[2]
SERVER = ROOT / "build/objects/bin/moto_server"
GCS = next(ROOT.glob("build/objects/lib/*/site-packages/fake_gcs_server*/vendor/*/bin/*-linux-amd64"), None)
AZURITE = ROOT / "build/objects/node_modules/.bin/azurite-blob"  # where npm could install it
# the account that azurite has, and its key, which is no secret
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
HOP_BY_HOP = ("connection", "transfer-encoding", "content-length", "date", "server")


class Request(NamedTuple):
    """One that a proxy saw."""

    at_s: float  # time.time() of its end
    fault: str  # of FAULTS, or ""
    method: str
    path: str
    part: str  # Content-Range or Range
    sent: int  # bytes
    status: int  # of the server's answer, 0: it saw none
    answered: int  # bytes


def _proxy(port: int, draws: random.Random, requests: list[Request]) -> ThreadingHTTPServer:
    """A server that passes requests on to `port`, with FAULTS."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = b"".join(iter(self._chunk, b"")) if self.headers.get("Transfer-Encoding") else b""
            body += self.rfile.read(int(self.headers.get("Content-Length") or 0))
            del self.headers["Transfer-Encoding"], self.headers["Content-Length"], self.headers["Expect"]
            self.close_connection = True
            drawn, fault = draws.random(), ""
            for name, share in FAULTS.items():
                drawn -= share
                if drawn < 0:
                    fault = name
                    break
            part = self.headers.get("Content-Range") or self.headers.get("Range") or ""
            seen = Request(time.time(), fault, self.command, self.path, part, len(body), 0, 0)
            if fault == "503":
                self.send_response(503)
                self.send_header("Content-Length", "0")
                self.end_headers()
            if fault == "silence":
                time.sleep(60.0)
            if fault in ("503", "no request", "silence"):
                requests.append(seen)
                return
            server = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            server.request(self.command, self.path, body, dict(self.headers))
            answer = server.getresponse()
            data = answer.read()
            length = answer.headers.get("Content-Length", str(len(data)))
            server.close()
            requests.append(seen._replace(at_s=time.time(), status=answer.status, answered=len(data)))
            if fault == "no answer":
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if fault == "half an answer" else data)

        def _chunk(self) -> bytes:
            data = self.rfile.read(int(self.rfile.readline().split(b";")[0], 16))
            self.rfile.readline()
            return data

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that was killed is no error."""

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _dse(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dse", *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _said(*command: str) -> tuple[int, str]:
    process = _dse(*command)
    out, _ = process.communicate(timeout=600)
    return process.returncode, out


def _prove(url: str, temporary: Path, draws: random.Random, rounds: int) -> str:
    """Returns what does not hold, or ""."""
    shutil.rmtree(temporary / "cache/remote", ignore_errors=True)
    run = ("run", *STUDY, "--out")
    code, said = _said(*run, str(temporary / "folder"))
    _, wanted = _said("sql", str(temporary / "folder"), QUERY, "--format", "csv")
    if code or wanted.count("\n") < 100:
        return f"the run in a folder: {said}{wanted}"
    cut = 0
    for number in range(rounds):
        sink = draws.choice(["driver", "worker"])  # may change when a run goes on
        process = _dse(*run, url, "--set", f"sink={sink}")
        if number == 0:
            while not list((temporary / "cache/remote").glob("*/.head")):
                if process.poll() is not None:
                    return f"the first run: {process.communicate()[0]}"
                time.sleep(0.1)
            process.send_signal(signal.SIGSTOP)
            code, said = _said(*run, url)
            if code != 1 or "another run writes into this folder" not in said:
                return f"a second run: {code} {said}"
        try:
            process.wait(timeout=draws.uniform(3.0, 12.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            cut += 1
        if draws.random() < 0.5:
            shutil.rmtree(temporary / "cache/remote", ignore_errors=True)
    code, said = _said(*run, url)
    print(f"  {cut} times killed; {said.splitlines()[0] if said else code}", flush=True)
    if code:
        return f"the last run: {said}"
    shutil.rmtree(temporary / "cache/remote")
    _, found = _said("sql", url, QUERY, "--format", "csv")
    return "" if found == wanted else f"rows differ: {found[:500]}"


@contextmanager
def s3_server(draws: random.Random, requests: list[Request]) -> Iterator[tuple[str, Path]]:
    """Yields the options of URLs s3://bucket/... on a server that fails now and then, and the folder of
    $DSE_CACHE, both gone afterwards.
    """
    temporary = Path(tempfile.mkdtemp(prefix="dse-objects-"))
    os.environ.update(
        DSE_CACHE=str(temporary / "cache"),
        AWS_ACCESS_KEY_ID="none",
        AWS_SECRET_ACCESS_KEY="none",
        AWS_EC2_METADATA_DISABLED="true",
    )
    port = draws.randrange(20_000, 30_000)
    moto = subprocess.Popen(
        [SERVER, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(100):
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port)
                connection.request("PUT", "/bucket")
                connection.getresponse()
                break
            except OSError:
                time.sleep(0.3)
        proxy = _proxy(port, draws, requests)
        yield f"endpoint_override=127.0.0.1:{proxy.server_port}&scheme=http&region=us-east-1", temporary
    finally:
        moto.terminate()
        moto.wait()
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _served(*command: str | Path, port: int) -> Iterator[None]:
    """A server that a command starts at a port."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with suppress(OSError):
                http.client.HTTPConnection("127.0.0.1", port).connect()
                break
            time.sleep(0.3)
        yield
    finally:
        server.terminate()
        server.wait()


def _google(temporary: Path, draws: random.Random, requests: list[Request]) -> str:
    """What does not hold on Google Cloud Storage, or ""."""
    port = draws.randrange(20_000, 25_000)
    address = f"127.0.0.1:{_proxy(port, draws, requests).server_port}"
    assert GCS
    GCS.chmod(0o755)
    listening = ("-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port))
    with _served(GCS, *listening, "-public-host", address, "-external-url", f"http://{address}", port=port):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/storage/v1/b?project=none", json.dumps({"name": "bucket"}))
        assert connection.getresponse().status == 200
        options = f"scheme=http&endpoint_override={address}&retry_limit_seconds=20"
        return _prove(f"gs://anonymous@bucket/runs/first?{options}", temporary, draws, FEW_ROUNDS)


def _azure(temporary: Path, draws: random.Random, _: list[Request]) -> str:
    """What does not hold on Azure Blob Storage, or ""; with a shared access signature. Without faults: the
    Azure client of pyarrow 26.0 ends the process where an answer is cut ("Failed to parse xml").
    """
    port = draws.randrange(25_000, 30_000)
    listening = ("--silent", "--skipApiVersionCheck", "--blobHost", "127.0.0.1", "--blobPort", str(port))
    with _served(AZURITE, *listening, "--location", temporary / "azurite", port=port):
        at = {f"{kind}_storage_authority": f"127.0.0.1:{port}" for kind in ("blob", "dfs")}
        plain = {f"{kind}_storage_scheme": "http" for kind in ("blob", "dfs")}
        pafs.AzureFileSystem(ACCOUNT, account_key=ACCOUNT_KEY, **at, **plain).create_dir("box")
        given = {"sp": "rwdlac", "ss": "b", "srt": "sco", "se": "2099-01-01T00:00:00Z", "sv": "2020-08-04"}
        # account, permissions, services, resource types, start, end, addresses, protocols, version
        signed = (ACCOUNT, "rwdlac", "b", "sco", "", given["se"], "", "", given["sv"], "")
        digest = hmac.new(base64.b64decode(ACCOUNT_KEY), "\n".join(signed).encode(), hashlib.sha256).digest()
        options = urlencode({"enable_tls": "false", **given, "sig": base64.b64encode(digest).decode()})
        url = f"abfs://{ACCOUNT}@127.0.0.1:{port}/box/runs/first?{options}"
        return _prove(url, temporary, draws, FEW_ROUNDS)


def _kept(folder: Path, temporary: Path, requests: list[Request]) -> None:
    """Puts what a fault can be found from into a folder."""
    shutil.copytree(temporary, folder, dirs_exist_ok=True)
    (folder / "requests.txt").write_text("\n".join("\t".join(map(str, request)) for request in requests))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", choices=("s3", "gs", "abfs"), help="this one alone")
    parser.add_argument("--times", type=int, default=1, help="each with the next seed")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--keep", type=Path)
    given, _ = parser.parse_known_args()
    if not SERVER.exists():
        print(f"objects: not run: {SERVER} is missing; make build/objects/ready")
        return 0
    others = {"gs": (GCS, _google), "abfs": (AZURITE.exists(), _azure)}
    fault = ""
    for seed in range(given.seed, given.seed + given.times):
        requests = list[Request]()
        with s3_server(random.Random(seed), requests) as (options, temporary):
            for name in ("s3", *others) if given.store is None else (given.store,):
                if fault:
                    break
                print(f"{name}, seed {seed}:", flush=True)
                shutil.rmtree(temporary / "folder", ignore_errors=True)
                draws = random.Random(seed)
                if name == "s3":
                    fault = _prove(f"s3://bucket/runs/first?{options}", temporary, draws, ROUNDS)
                elif others[name][0]:
                    fault = others[name][1](temporary, draws, requests)
                else:
                    print("  not run, its server is missing; make build/objects/ready")
            if fault and given.keep:
                _kept(given.keep, temporary, requests)
        print(f"  requests: {dict(Counter(request.fault for request in requests))}", flush=True)
        if fault:
            print(fault, file=sys.stderr)
            break
    return int(bool(fault))
