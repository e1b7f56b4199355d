"""A headless Chromium, spoken to through a pipe: opens pages, tells errors and requests, takes pictures."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--proxy-server=127.0.0.1:9",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    """Return the browser of this machine."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser process; close it."""

    def __init__(self, program: str, profile: Path) -> None:
        ours, theirs = os.pipe(), os.pipe()

        # it reads from 3 and writes to 4
        script = f'exec "$@" 3<&{ours[0]} 4>&{theirs[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(ours[0], theirs[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._write, self._read = os.fdopen(ours[1], "wb", 0), os.fdopen(theirs[0], "rb", 0)
        self._number, self._rest = 0, b""
        self._events: list[dict[str, Any]] = []

    def close(self) -> None:
        """End the browser and what it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._write.close()
        self._read.close()

    def open(self, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> Page:
        """Open a page from disk and wait until it is loaded."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.ask(f"{domain}.enable")
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        page.ask("Emulation.setEmulatedMedia", features=scheme)
        page.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self._events.clear()
        page.ask("Page.navigate", url=path.absolute().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._next())
        return page

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return what it answers."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters}
        text = json.dumps(asked if session is None else {**asked, "sessionId": session})
        self._write.write(text.encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]
            if "method" in told:
                self._events.append(told)

    def events(self, session: str) -> list[dict[str, Any]]:
        """Return what happened in a page."""
        return [event for event in self._events if event.get("sessionId") == session]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            block = self._read.read(1 << 16)
            assert block, "the browser has ended"
            self._rest += block
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)


class Page:
    """A page that is open."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.ask(method, self._session, **parameters)

    def run(self, script: str) -> Any:
        """Return the value of an expression."""
        told = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def problems(self) -> list[str]:
        """Return errors of scripts, what the console warns of, and requests for anything but the page."""
        found = []
        for event in self._browser.events(self._session):
            told = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(told["exceptionDetails"])[:400])
            elif event["method"] == "Log.entryAdded":
                found.append(told["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
                found.append(json.dumps(told["args"])[:400])
            elif event["method"] == "Network.requestWillBeSent" and not told["request"]["url"].startswith(
                "file:"
            ):
                found.append(told["request"]["url"])
        return found

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write what the page looks like."""
        told = self.ask(
            "Page.captureScreenshot", captureBeyondViewport=whole, **({"clip": self._size()} if whole else {})
        )
        path.write_bytes(base64.b64decode(told["data"]))

    def move(self, x: float, y: float, kind: str = "mouseMoved", **more: Any) -> None:
        """Move the pointer, press (`mousePressed`) or let go (`mouseReleased`)."""
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def _size(self) -> dict[str, float]:
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
