"""All tests: the same examples in every default run, no deadline of hypothesis (cores are shared), no socket
beyond 127.0.0.1, a $DSE_CACHE of their own, and faults of batches raised.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.amount import FULL, amount

settings.register_profile("default", deadline=None, derandomize=not FULL, max_examples=amount(100))
settings.load_profile("default")

LOCAL = ("127.", "::1", "localhost", "::ffff:127.")


def _refuse_the_outside(event: str, args: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"):
        target = args[0] if event == "socket.getaddrinfo" else args[1]
        host = target[0] if isinstance(target, tuple) else target
        nowhere = host in (None, "", b"") and event != "socket.bind"
        inside = (
            nowhere
            or str(host).startswith(LOCAL)
            or not isinstance(target, tuple | str)
            or str(host).startswith(("/", "\0"))
        )
        if not inside and not (event == "socket.getaddrinfo" and str(host).replace(".", "").isdigit()):
            raise PermissionError(f"a test reached out: {event} {target!r}")


sys.addaudithook(_refuse_the_outside)


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["DSE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["DSE_RAISE"] = "1"  # a fault of a batch of machines is no slower run, but a failed test


@pytest.fixture(scope="session")
def head(_cache: None) -> Iterator[str]:
    """Address of a Ray cluster of two cores on this machine, which the tests of the group `ray` share. Its
    actors keep the $DSE_CACHE of the session.
    """
    from ray.cluster_utils import Cluster

    from cluster import pool

    folder = tempfile.mkdtemp(prefix="dse-head-", dir="/tmp")
    with pool.restore_environment(["RAY_TMPDIR"]), pool.loopback():
        os.environ["RAY_TMPDIR"] = folder
        one = {
            "num_cpus": 2,
            "include_dashboard": False,
            "include_log_monitor": False,
            "node_ip_address": "127.0.0.1",
            "object_store_memory": 100 << 20,
        }
        made = Cluster(initialize_head=True, head_node_args=one)
    yield made.address
    made.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
