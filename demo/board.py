"""A page in a browser follows one day's departures over HTTP, while the gateway that it reads from is killed.

The page is an ordinary one, with `EventSource` and nothing else. Where there is no Chromium, a reader in Python plays
its part by the same rules: it goes on behind the last event that it has seen whole.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from confluent_kafka import Consumer, KafkaError, TopicPartition

from demo import flights
from demo.display import Display
from demo.node import free_port
from demo.proof import Finding, finding

PAGE = Path(__file__).with_name("board.html")
STREAM, TOPIC = "/v1/stream/board/departures", "board.departures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
)
AT_A_TIME = 12
PAUSE_SECONDS = 0.1
"""Between two requests of the writer."""
KILL_AT = 0.5
AWAY_SECONDS = 0.5
WAIT_SECONDS_MAX = 40
JSON = {"content-type": "application/json"}


class Seen(NamedTuple):
    """What a page says that it has: rows in the order in which they came, and how often it lost its connection."""

    rows: list[int]
    breaks: int
    over: bool


class Page:
    """The page's own small server: the page, and what the page says it has seen."""

    def __init__(self) -> None:
        self.seen = Seen([], 0, False)
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path.partition("?")[0] == "/"
                body = PAGE.read_bytes() if found else b""
                self.send_response(200 if found else 404)
                self.send_header("content-type", "text/html; charset=utf-8")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                said = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if not page.seen.over:  # they may overtake each other
                    page.seen = Seen(said["rows"], said["breaks"], said["over"])
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Gateway:
    """A `duramen gateway` process on a free port."""

    def __init__(self, cluster: str, origin: str, log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._words = [str(Path(sys.executable).parent / "duramen"), "gateway", "--bootstrap", cluster]
        self._words += ["--listen", self.url, "--set", f"gateway.origins={origin}"]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Seconds until it answers."""
        began = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        while time.monotonic() - began < WAIT_SECONDS_MAX and self._process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.ask("GET", "/healthz")
                return time.monotonic() - began
            time.sleep(0.02)
        raise SystemExit(f"the gateway does not answer; see {self._log}")

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> int:
        """The status of one request; OSError or HTTPException where it gets no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body or None, headers or {})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()


class Board:
    """The act. Everything that it starts has ended when its block has."""

    def __init__(self, display: Display, cluster: str, folder: Path) -> None:
        self.display = display
        self.cluster = cluster
        self.folder = folder
        self.page = Page()
        self.gateway = Gateway(cluster, self.page.origin, folder / "gateway.log")
        self.browser = next(filter(None, map(shutil.which, BROWSERS)), None)
        self._follower: subprocess.Popen[bytes] | None = None
        self._number = 0
        self._again = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._follower is not None:
            self._follower.kill()
            self._follower.wait()
        self.gateway.kill()
        self.page.close()

    def run(self, archive: Path) -> list[Finding]:
        """Write the day, kill the gateway meanwhile, and hold what the page has seen against what was written."""
        names = flights.airlines(archive)
        day = [json.loads(each.value) for each in takewhile(is_new_year, flights.flights(archive))]
        rows = [json.dumps({**each, "airline": names.get(each["carrier"], "")}).encode() for each in day]
        seconds = self.gateway.start()
        self.display.say(f"gateway ready on {self.gateway.url} after {seconds:.2f} s")
        if self.gateway.ask("PUT", STREAM, headers=JSON) != 201:
            raise SystemExit(f"the gateway makes no stream; see {self.folder}/gateway.log")
        address = f"{self.page.origin}/?stream={quote(self.gateway.url + STREAM, safe='')}"
        self.display.say(f"a page follows the departures of one day: {address}")
        self._follow(address)
        self._write(rows)
        self._wait(lambda: self.page.seen.over, "the page to see the end")
        seen = self.page.seen
        if self.browser:
            self._picture(address)
        self.display.say(f"the page has {len(seen.rows):,} flights, over {seen.breaks} lost connection(s)")
        return prove(seen, [each["row"] for each in day], self._stored(), self._again)

    def _follow(self, address: str) -> None:
        if self.browser is None:
            self.display.say("no Chromium here: a reader in Python plays the page's part")
            words = [sys.executable, "-m", "demo.page_reader", address]
        else:
            words = [
                self.browser,
                *QUIET,
                f"--user-data-dir={self.folder / 'browser'}",
                "--remote-debugging-port=0",
                address,
            ]
        with (self.folder / "browser.log").open("wb") as log:
            self._follower = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _write(self, rows: Sequence[bytes]) -> None:
        """In requests of a named writer, each sent again until it is answered."""
        bodies = [b"[" + b",".join(rows[at : at + AT_A_TIME]) + b"]" for at in range(0, len(rows), AT_A_TIME)]
        self.display.bar("flights on the page", len(rows))
        for number, body in enumerate(bodies):
            if number == int(len(bodies) * KILL_AT):
                self._wait(lambda: len(self.page.seen.rows) > 0, "the page's first flight")
                self._kill_while_writing(number, body)
            else:
                self._send(number, body, last=number == len(bodies) - 1)
            self.display.update("flights on the page", len(self.page.seen.rows))
            time.sleep(PAUSE_SECONDS)

    def _kill_while_writing(self, number: int, body: bytes) -> None:
        killer = threading.Thread(target=self.gateway.kill)
        killer.start()
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._post(number, body, last=False)
        killer.join()
        self.display.say(f"[red]kill -9[/red] of the gateway, after {len(self.page.seen.rows):,} flights on the page")
        time.sleep(AWAY_SECONDS)
        seconds = self.gateway.start()
        self.display.say(f"gateway ready again after {seconds:.2f} s; the writer sends its request once more")
        self._again += 1
        self._send(number, body, last=False)

    def _send(self, number: int, body: bytes, *, last: bool) -> None:
        until = time.monotonic() + WAIT_SECONDS_MAX
        while time.monotonic() < until:
            with contextlib.suppress(OSError, http.client.HTTPException):
                status = self._post(number, body, last=last)
                if status in (200, 204):
                    return
                if status < 500:
                    raise SystemExit(f"request {number} got {status}; see {self.folder}/gateway.log")
            time.sleep(0.1)
        raise SystemExit(f"request {number} was not answered within {WAIT_SECONDS_MAX} seconds")

    def _post(self, number: int, body: bytes, *, last: bool) -> int:
        writer = {"producer-id": "tower", "producer-epoch": "0", "producer-seq": str(number)}
        return self.gateway.ask("POST", STREAM, body, {**JSON, **writer, **({"stream-closed": "true"} if last else {})})

    def _wait(self, ready: Any, what: str) -> None:
        until = time.monotonic() + WAIT_SECONDS_MAX
        while not ready():
            if time.monotonic() > until:
                raise SystemExit(f"waited {WAIT_SECONDS_MAX} seconds in vain for {what}; see {self.folder}/browser.log")
            time.sleep(0.05)
        self.display.update("flights on the page", len(self.page.seen.rows))

    def _picture(self, address: str) -> None:
        picture = self.folder / "board.png"
        words = [str(self.browser), *QUIET, f"--user-data-dir={self.folder / 'camera'}", f"--screenshot={picture}"]
        words += ["--window-size=1180,760", "--virtual-time-budget=2000", f"{address}&still"]
        with contextlib.suppress(subprocess.TimeoutExpired), (self.folder / "browser.log").open("ab") as log:
            subprocess.run(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=20, check=False)
        if picture.exists():
            self.display.say(f"how it looked: {picture}")

    def _stored(self) -> list[int]:
        """The rows in the log, as a Kafka client reads them."""
        settings = {"bootstrap.servers": self.cluster, "group.id": "board-proof", "enable.partition.eof": True}
        consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0})
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        try:
            return list(stored_rows(consumer))
        finally:
            consumer.close()


def stored_rows(consumer: Consumer) -> Iterator[int]:
    """Until the end of the partition."""
    until = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < until:
        message = consumer.poll(0.5)
        if message is None:
            continue
        error = message.error()
        if error is None:
            yield json.loads(message.value() or b"")["row"]
        elif error.code() == KafkaError._PARTITION_EOF:
            return
    raise SystemExit(f"{TOPIC} was not read to its end within {WAIT_SECONDS_MAX} seconds")


def is_new_year(flight: flights.Flight) -> bool:
    """The first day of the input."""
    found = json.loads(flight.value)
    return bool((found["month"], found["day"]) == (1, 1))


def prove(seen: Seen, written: Sequence[int], stored: Sequence[int], again: int) -> list[Finding]:
    """The act's claims."""
    count = f"{len(written):,}"
    return [
        finding(f"the page has each of {count} departures once, in order", differences(seen.rows, written)),
        finding(f"the log has each of them once, and {again} request was sent twice", differences(stored, written)),
        finding("the page lost its connection on the way", [] if seen.breaks else ["it did not: nothing was shown"]),
    ]


def differences(found: Sequence[int], wanted: Sequence[int]) -> list[str]:
    """Where two lists of rows part, in words."""
    if list(found) == list(wanted):
        return []
    at = next(
        (n for n, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]),
        min(len(found), len(wanted)),
    )
    return [f"{len(found):,} instead of {len(wanted):,}; they differ from place {at + 1} on"]
