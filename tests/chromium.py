"""Headless Chromium over a pipe (DevTools protocol): pages, clicks, keys, screenshots, and all that it says
or asks for meanwhile.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
WAIT_S = 300.0


def installed() -> str:
    """Path of the browser, "" if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), "")


class Browser:
    """One page. said: console messages and exceptions; asked: addresses of all requests."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="dse-chromium-")
        (theirs_in, self.out), (self.back, theirs_out) = os.pipe(), os.pipe()
        flags = " ".join(f"'{flag}'" for flag in (*FLAGS, f"--user-data-dir={self.folder}"))
        command = f"exec '{installed()}' {flags} about:blank 3<&{theirs_in} 4>&{theirs_out}"
        self.process = subprocess.Popen(
            ["bash", "-c", command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.number, self.rest, self.said, self.asked, self.session = 0, b"", [], [], ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.back)
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method: str, **params: Any) -> Any:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params} | (
            {"sessionId": self.session} if self.session else {}
        )
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while (found := self._next()).get("id") != self.number:
            self._event(found)
        if "error" in found:
            raise RuntimeError(f"{method}: {found['error']}")
        return found["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            if not (data := os.read(self.back, 1 << 20)):
                raise RuntimeError("the browser is gone")
            self.rest += data
        one, _, self.rest = self.rest.partition(b"\0")
        return json.loads(one)  # type: ignore[no-any-return]

    def _event(self, found: dict[str, Any]) -> None:
        method, params = found.get("method"), found.get("params", {})
        if method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"][:200])
        elif method == "Runtime.exceptionThrown":
            self.said.append(str(params["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.said.append(
                " ".join(str(one.get("value", one.get("description"))) for one in params["args"])[:500]
            )
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.said.append(f"{params['entry']['text']} {params['entry'].get('url', '')[:200]}")

    def open(self, path: Path, wide: int, high: int, dark: bool = False) -> None:
        """A file, at a size; waits until the page says that it is ready."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=wide, height=high, deviceScaleFactor=1, mobile=False
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.until("document.body && document.body.dataset.ready === 'yes'")

    def run(self, script: str) -> Any:
        """The value of an expression. Raises RuntimeError for an exception in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(
                f"{script}: "
                f"{found['exceptionDetails'].get('exception', {}).get('description', found['exceptionDetails'])}"
            )
        return found["result"].get("value")

    def until(self, condition: str) -> None:
        end = time.monotonic() + WAIT_S
        while not self.run(condition):
            if time.monotonic() > end:
                raise RuntimeError(f"never true: {condition}; the page said {self.said}")
            time.sleep(0.05)

    def drag(self, points: list[tuple[float, float]]) -> None:
        """The mouse pressed at the first point, moved over the others, let go at the last."""
        (x, y), (last_x, last_y) = points[0], points[-1]
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
        for px, py in points[1:]:
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=px, y=py, button="left", buttons=1)
            time.sleep(0.05)
        self.call(
            "Input.dispatchMouseEvent", type="mouseReleased", x=last_x, y=last_y, button="left", clickCount=1
        )

    def click(self, x: float, y: float) -> None:
        self.drag([(x, y)])

    def key(self, name: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def picture(self, path: Path, whole: bool = False) -> None:
        path.write_bytes(
            base64.b64decode(
                self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
            )
        )

    def printed(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))
