"""Chromium without a window, driven over WebDriver as the W3C has it: no library, no network beyond loopback."""

import base64
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.servers.free_port import free_port

QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WAIT_S = 60


class Browser:
    """One window of a browser, with a viewport that is as wide as is said."""

    def __init__(self, session: httpx.Client) -> None:
        self._session = session

    def size(self, width: int, height: int = 1000, *, scheme: str = "light") -> None:
        """The viewport in pixels, and which colours its user prefers."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._devtools("Emulation.setEmulatedMedia", {"features": features})

    def open(self, url: str) -> None:
        """Returns when the page is loaded."""
        self._post("url", url=url)

    def open_tab(self, url: str) -> None:
        """A tab beside those that are open; from now on this one is meant."""
        self._post("window", handle=self._post("window/new", type="tab")["handle"])
        self.open(url)

    def run(self, script: str, *arguments: object) -> Any:  # noqa: ANN401
        """What a script returns, or the promise that it returns."""
        return self._post("execute/sync", script=script, args=arguments)

    def type_into(self, selector: str, text: str) -> None:
        """As a user types, or chooses files: their paths, one a line."""
        (element,) = self._post("element", using="css selector", value=selector).values()
        self._post(f"element/{element}/value", text=text)

    def click(self, selector: str) -> None:
        """As a user does: it fails where something else lies above."""
        (element,) = self._post("element", using="css selector", value=selector).values()
        self._post(f"element/{element}/click")

    def picture(self, path: Path) -> None:
        """The whole page as PNG."""
        found = self._devtools("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(found["data"]))

    def _devtools(self, command: str, parameters: dict[str, object]) -> Any:  # noqa: ANN401
        return self._post("goog/cdp/execute", cmd=command, params=parameters)

    def _post(self, path: str, **told: object) -> Any:  # noqa: ANN401
        answer = self._session.post(path, json=told).json()["value"]
        assert not isinstance(answer, dict) or "error" not in answer, answer["message"]
        return answer


@contextmanager
def browser() -> Iterator[Browser | None]:
    """A browser with an empty profile; None where this machine has none."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        yield None
        return
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvweave-browser-", ignore_cleanup_errors=True))
        port = free_port()
        command = [driver, f"--port={port}", f"--log-path={folder}/log"]
        own = {**os.environ, "HOME": folder, "XDG_CONFIG_HOME": folder}  # or it leaves reports of crashes in the user's
        process = subprocess.Popen(command, env=own, stdout=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        client = stack.enter_context(
            httpx.Client(
                base_url=f"http://127.0.0.1:{port}/",
                timeout=WAIT_S,
                trust_env=False,
                transport=httpx.HTTPTransport(retries=8),  # half a second, then one, two…: until it listens
            )
        )
        options = {"binary": program, "args": [*QUIET, f"--user-data-dir={folder}/profile"]}
        told = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        session = client.post("session", json=told).json()["value"]["sessionId"]
        client.base_url = f"{client.base_url}session/{session}/"
        try:
            yield Browser(client)
        finally:
            client.delete(str(client.base_url).rstrip("/")).raise_for_status()  # or the browser stays
