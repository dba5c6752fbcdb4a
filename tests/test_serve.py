"""The report that follows a run: what it serves, to whom, and what it does without rows."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

import dse
from dse.frontend import serve
from tests.test_cli import STUDY

pytestmark = pytest.mark.xdist_group("report")


def asked(port: int, path: str, host: str = "127.0.0.1", method: str = "GET") -> tuple[int, str]:
    """Status and body of one request."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers={"Host": f"{host}:{port}"})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@contextmanager
def serving(run: Path) -> Iterator[int]:
    """The port at which a run's report is served."""
    with serve.server(serve.Live(run), 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_a_served_report_follows_its_run_and_answers_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(STUDY)
    dse.sweep(tmp_path / "small.yaml", out=tmp_path / "run", workers=0, **{"stop.machines": 4})
    with serving(tmp_path / "run") as port:
        code, page = asked(port, "/")
        assert (code, '"live":true' in page, "connect-src 'self';" in page) == (200, True, True)
        first = json.loads(asked(port, "/status.json")[1])
        assert "done 4" in first["line"]
        assert f'"generation":{first["generation"]}' in page
        assert asked(port, "/")[1] == page
        dse.sweep(tmp_path / "small.yaml", out=tmp_path / "run", workers=0)
        second = json.loads(asked(port, "/status.json")[1])
        assert second["generation"] > first["generation"]
        assert f'"generation":{second["generation"]}' in asked(port, "/")[1]
        assert asked(port, "/", host="evil.example")[0] == 404
        assert asked(port, "/../study.yaml")[0] == 404
        assert asked(port, "/", method="POST")[0] == 501
        with pytest.raises(ValueError, match="give another port"):
            serve.server(serve.Live(tmp_path / "run"), port)
    (tmp_path / "run/manifest.json").unlink()  # as before a run has written it
    assert "http-equiv=refresh" in serve.Live(tmp_path / "run").report()
