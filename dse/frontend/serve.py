"""A run's report that follows the run: served on 127.0.0.1, to be read only."""

from __future__ import annotations

import html
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dse.frontend import check, report_data, runs, tables
from dse.run import folder

HOSTS = ("127.0.0.1", "localhost")  # names that a browser may call this server by
WAITING = "<!doctype html><meta http-equiv=refresh content=2><title>dse</title><p>{}</p>"


@dataclass(slots=True)
class Live:
    """The pages of a run. A report is built once for each generation that the run has committed."""

    root: Path
    others: Sequence[runs.Run] = ()
    generation: int = -1  # of `page`
    page: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def report(self) -> str:
        """Returns the report of the rows committed so far; a page that waits while there are none."""
        try:
            generation = folder.read(self.root).generation
            with self.lock:
                if generation != self.generation:
                    facts = {"live": True, "generation": generation}
                    self.page = report_data.document(runs.open(self.root), self.others, facts)
                    self.generation = generation
                return self.page
        except ValueError as fault:
            return WAITING.format(html.escape(str(fault)))

    def status(self) -> str:
        """Returns what the page asks for again and again: a line for its head, and the generation."""
        facts = check.status(self.root, skip_damaged=True)
        counts = ("done", "planned", "ok", "infeasible", "pruned", "error", "front", "rate", "left_s")
        shown = [f"{name} {value}" for name, value in tables.labelled({k: facts.get(k) for k in counts})]
        return json.dumps(
            {
                "line": ", ".join([str(facts["state"]), *shown]),
                "running": facts["state"] == "running",
                "generation": folder.read(self.root).generation,
            }
        )


def server(live: Live, port: int) -> ThreadingHTTPServer:
    """Returns a server of the report on 127.0.0.1. port: 0: any that is free. Raises ValueError."""
    pages: dict[str, tuple[str, Callable[[], str]]] = {
        "/": ("text/html; charset=utf-8", live.report),
        "/status.json": ("application/json", live.status),
    }
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), _handler(pages))
    except (OSError, OverflowError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else "ports end at 65535"
        raise ValueError(f"--serve {port}: 127.0.0.1:{port} ({why}); give another port") from None


def _handler(pages: dict[str, tuple[str, Callable[[], str]]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers GET of the pages, to browsers on this machine that call it by a name of HOSTS."""

        def do_GET(self) -> None:
            """Serves one request."""
            if self.headers.get("Host", "").rpartition(":")[0] not in HOSTS or self.path not in pages:
                self.send_error(404)
                return
            kind, page = pages[self.path]
            try:
                body = page().encode()
            except ValueError as fault:
                self.send_error(503, explain=str(fault))
                return
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    return Handler
