"""Debian's Chromium without a window, driven over its pipe of commands (the DevTools protocol)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium")
# The browser reads its descriptor 3 and writes 4.
_AT_3_AND_4 = """
import fcntl, os, sys
given = [fcntl.fcntl(int(number), fcntl.F_DUPFD_CLOEXEC, 5) for number in sys.argv[1:3]]
for target, number in zip((3, 4), given):
    os.dup2(number, target)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """A page of a browser of its own; ``console`` has its errors and warnings."""

    def __init__(self, url: str, profile: Path) -> None:
        assert PROGRAM is not None
        to_browser, self._commands = os.pipe()
        self._answers, from_browser = os.pipe()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _AT_3_AND_4, str(to_browser), str(from_browser), PROGRAM),
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--remote-debugging-pipe", "--no-first-run", "--window-size=900,700"),
                *(f"--user-data-dir={profile}", "about:blank"),
            ],
            pass_fds=[to_browser, from_browser],
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.console: list[str] = []
        self._held, self._count = b"", 0
        self._session: str | None = None
        targets = self._call("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in targets if each["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        self._call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript, once it is settled."""
        options = {"awaitPromise": True, "returnByValue": True}
        answer = self._call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 120) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"not true: {expression}; {self.console}"
            time.sleep(0.1)

    def press(self, key: str) -> None:
        """Press and release a key; one character, or a name such as Enter."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        given = {"key": key, "windowsVirtualKeyCode": codes.get(key, 0), "text": text}
        self._call("Input.dispatchKeyEvent", type="keyDown", **given)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def accessible(self) -> list[tuple[str, str]]:
        """Return role and name of what a screen reader tells."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        shown = (each for each in nodes if not each["ignored"])
        return [(each["role"]["value"], each.get("name", {}).get("value", "")) for each in shown]

    def screenshot(self) -> str:
        """Return a picture, PNG in base64."""
        return self._call("Page.captureScreenshot")["data"]

    def close(self) -> None:
        """End the browser."""
        self._session = None
        self._call("Browser.close")
        self._process.wait(60)
        os.close(self._commands)
        os.close(self._answers)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        call = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            call["sessionId"] = self._session
        os.write(self._commands, json.dumps(call).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._count:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        details = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.console.append(json.dumps(details["exceptionDetails"]))
        if message.get("method") == "Log.entryAdded":
            self.console.append(details["entry"]["text"])
        if message.get("method") == "Runtime.consoleAPICalled":
            self.console.append(json.dumps(details["args"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._held:
            part = os.read(self._answers, 2**16)
            assert part, "the browser has ended"
            self._held += part
        message, self._held = self._held.split(b"\0", 1)
        return json.loads(message)
