"""Pages in a real Chromium, and the JavaScript client of the protocol, while the gateway that they use is killed.

    make conformance-browsers       fetches playwright and the client first (Debian's chromium, Node 18, npm)

Skipped, with the reason, where one of them is not at hand.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.served_gateway import ServedGateway
from tests.worlds.served_node import Served

JSON = "application/json"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
NPM_CLIENT = Path(__file__).resolve().parent.parent.parent / ".cache" / "durable-streams-client"
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
SWITCHES += ["--disable-background-networking", "--disable-component-update"]
SECONDS_MAX = 60
COUNT = 200

EVENT_SOURCE = """path => {
  window.seen = []; window.breaks = 0; window.over = false
  const stream = new EventSource(path + "?offset=-1&live=sse")
  stream.addEventListener("data", event => window.seen.push(...JSON.parse(event.data)))
  stream.addEventListener("error", () => window.breaks += 1)
  stream.addEventListener("control", event => {
    if (JSON.parse(event.data).streamClosed) { stream.close(); window.over = true }
  })
}"""
WEB_SOCKET = """path => {
  window.seen = []; window.breaks = 0; window.over = false
  let position = "-1"
  const connect = () => {
    const socket = new WebSocket(path.replace("http", "ws") + "/.socket")
    socket.onopen = () => socket.send(JSON.stringify({from: position, credits: 5}))
    socket.onmessage = event => {
      const message = JSON.parse(event.data)
      window.seen.push(...message.records.map(record => record.value))
      position = message.position
      if (message.closed) window.over = true
      else if (message.records.length) socket.send(JSON.stringify({credits: message.records.length}))
    }
    socket.onclose = () => { if (!window.over) { window.breaks += 1; setTimeout(connect, 300) } }
  }
  connect()
}"""
FOREIGN = """async path => {
  const found = {}
  const tried = async (name, work) => { try { found[name] = await work() } catch (error) { found[name] = error.name } }
  await tried("read", async () => (await fetch(path)).status)
  const headers = {"content-type": "application/json"}
  await tried("write", async () => (await fetch(path, {method: "POST", body: '"x"', headers})).status)
  await tried("simple", async () => (await fetch(path, {method: "POST", body: '"x"', mode: "no-cors"})).type)
  found.socket = await new Promise(done => {
    const socket = new WebSocket(path.replace("http", "ws") + "/.socket")
    socket.onopen = () => done("open")
    socket.onclose = () => done("refused")
  })
  return found
}"""


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    """Where the pages come from; `localhost` instead of the address is another origin."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>a page</title>")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    try:
        playwright = importlib.import_module("playwright.sync_api")
    except ImportError:
        pytest.skip("playwright is not installed: make conformance-browsers")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on PATH")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def script() -> list[str]:
    """The command of a program with the JavaScript client."""
    node = shutil.which("node")
    if node is None or not (NPM_CLIENT / "node_modules").is_dir():
        pytest.skip("@durable-streams/client is not at hand: make conformance-browsers")
    script = NPM_CLIENT / "write_and_follow.mjs"
    shutil.copy(Path(__file__).with_name("write_and_follow.mjs"), script)
    return [node, str(script)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    node = Served(tmp_path_factory.mktemp("node"))
    node.start()
    yield node
    node.kill()


@pytest.fixture
def gateway(served: Served, origin: str, tmp_path: Path) -> Iterator[ServedGateway]:
    started = ServedGateway(tmp_path, served.bootstrap, {"gateway.origins": origin})
    started.start()
    yield started
    started.kill()


def _write_over_a_kill(gateway: ServedGateway, path: str, ready: Callable[[], bool]) -> None:
    for number in range(COUNT):
        if number == COUNT // 2:
            _until(ready)
            gateway.kill()
            time.sleep(0.3)
            gateway.start()
        answer = gateway.ask("POST", path, b"%d" % number, content_type=JSON)
        assert answer.status == 204, answer
    assert gateway.ask("POST", path, stream_closed="true").status == 204


def _until(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("follow", [EVENT_SOURCE, WEB_SOCKET], ids=["EventSource", "WebSocket"])
def test_a_page_follows_over_a_kill(
    browser: Any, gateway: ServedGateway, origin: str, follow: str, request: pytest.FixtureRequest
) -> None:
    path = f"/v1/stream/pages/{request.node.callspec.id.lower()}"
    gateway.ask("PUT", path, content_type=JSON)
    page = browser.new_page()
    page.goto(origin)
    page.evaluate(follow, gateway.url + path)
    _write_over_a_kill(gateway, path, lambda: page.evaluate("window.seen.length") > 0)
    _until(lambda: page.evaluate("window.over"))
    assert page.evaluate("window.seen") == list(range(COUNT))
    assert page.evaluate("window.breaks") >= 1
    page.close()


def test_a_page_of_another_origin_changes_nothing_and_reads_nothing(
    browser: Any, gateway: ServedGateway, origin: str
) -> None:
    path = "/v1/stream/pages/foreign"
    gateway.ask("PUT", path, b'"mine"', content_type=JSON)
    page = browser.new_page()
    page.goto(origin.replace("127.0.0.1", "localhost"))
    assert page.evaluate(FOREIGN, gateway.url + path) == {
        "read": "TypeError",
        "write": "TypeError",
        "simple": "opaque",
        "socket": "refused",
    }
    assert gateway.ask("GET", path).body == b'["mine"]'
    page.goto(origin)
    found = page.evaluate(FOREIGN, gateway.url + path)
    assert (found["read"], found["write"], found["socket"]) == (200, 204, "open")
    page.close()


def test_the_javascript_client_writes_and_follows_over_a_restart(script: list[str], gateway: ServedGateway) -> None:
    environment = {**os.environ, "STREAM_URL": f"{gateway.url}/v1/stream/pages/client", "COUNT": str(COUNT)}
    with subprocess.Popen(script, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            assert process.stdout.readline() == "half\n"
            gateway.kill()
            time.sleep(0.3)
            gateway.start()
            process.stdin.write("\n")
            process.stdin.flush()
            said = json.loads(process.stdout.readline() or "null")
        finally:
            process.kill()
    wanted = list(range(COUNT))
    assert said == {"followed": wanted, "errors": []}
    assert json.loads(gateway.ask("GET", "/v1/stream/pages/client").body) == wanted
