"""The status of a run for monitors: Prometheus' text and JSON, over HTTP, on 127.0.0.1 only."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cluster.store import RunFault

# name -> (kind, meaning, field of driver.Status)
METRICS = {
    "dse_machines_done_total": ("counter", "machines with rows, over all sessions", "done"),
    "dse_machines_ok_total": ("counter", "machines with a schedule", "ok"),
    "dse_machines_infeasible_total": ("counter", "machines that nothing fits", "infeasible"),
    "dse_machines_pruned_total": ("counter", "machines that were not solved", "pruned"),
    "dse_machines_error_total": ("counter", "machines that failed", "error"),
    "dse_machines_planned": ("gauge", "machines that the whole run asks for", "planned"),
    "dse_machines_queued": ("gauge", "machines asked for, not yet sent to a worker", "queue"),
    "dse_machines_in_flight": ("gauge", "machines that workers have", "in_flight"),
    "dse_machines_per_second": ("gauge", "machines solved per second, this session", "rate"),
    "dse_workers": ("gauge", "workers wanted", "workers"),
    "dse_workers_live": ("gauge", "workers that answer", "workers_live"),
    "dse_workers_busy": ("gauge", "workers that answer and have a lease", "workers_busy"),
    "dse_longest_lease_seconds": ("gauge", "age of the lease that is in flight longest", "longest_s"),
    "dse_worker_seconds": ("gauge", "seconds that workers spent on leases, this session", "worker_time_s"),
    "dse_utilization": ("gauge", "share of the workers' time spent on leases, this session", "utilization"),
    "dse_retries_total": ("counter", "leases sent again, this session", "retries"),
    "dse_cache_hits_total": ("counter", "answers found in $DSE_CACHE, this session", "cache_hits"),
    "dse_cache_misses_total": ("counter", "answers solved and stored there, this session", "cache_misses"),
    "dse_front_points": ("gauge", "points on the front", "front"),
    "dse_worst_gap": ("gauge", "largest optimality gap of a point", "worst_gap"),
    "dse_hypervolume": ("gauge", "hypervolume of the front", "hypervolume"),
    "dse_seconds_total": ("counter", "wall-clock seconds of all sessions", "seconds"),
}


def prometheus(status: Any) -> str:
    """Returns a driver.Status in Prometheus' text format 0.0.4."""
    lines = []
    for name, (kind, meaning, field) in METRICS.items():
        value = getattr(status, field)
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", f"{name} {value:.17g}"]
    return "\n".join(lines) + "\n"


@contextmanager
def served(port: int | None, status: Callable[[], Any]) -> Iterator[None]:
    """Serves /metrics and /status.json on 127.0.0.1 while the body runs; nothing if port is None. As long as
    there is no status (None), requests are answered with 503.

    Raises RunFault if the port is taken.
    """
    if port is None:
        yield
        return
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), _handler(status))
    except (OSError, OverflowError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else "ports end at 65535"
        raise RunFault(
            f"--metrics {port}: 127.0.0.1 does not let this process listen there ({why}); give another port"
        ) from fault
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True, name="dse metrics")
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(status: Callable[[], Any]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers with the last status."""

        def do_GET(self) -> None:
            """Serves one request."""
            found = status()
            if found is None or self.path not in ("/metrics", "/status.json"):
                self.send_error(404 if found else 503)
                return
            is_text = self.path == "/metrics"
            body = (prometheus(found) if is_text else json.dumps(asdict(found), indent=1)).encode()
            self.send_response(200)
            self.send_header(
                "Content-Type", "text/plain; version=0.0.4; charset=utf-8" if is_text else "application/json"
            )
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing: the screen is the run's."""

    return Handler
