"""A real gateway process in front of a node, and bare HTTP to it: what is sent is what the test says."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.worlds.served_node import DURAMEN, STOP_SECONDS_MAX, free_port

ANSWER_SECONDS_MAX = 30


class HttpAnswer(NamedTuple):
    """What came back. headers: by small letters."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def next(self) -> str:
        return self.headers["stream-next-offset"]

    def json(self) -> Any:
        return json.loads(self.body)


class ServedGateway:
    """One gateway process; it may be started again after a kill, at the same port."""

    def __init__(self, folder: Path, bootstrap: str, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.bootstrap = bootstrap
        self.settings = settings or {}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it says that it is ready."""
        words = [word for name, text in self.settings.items() for word in ("--set", f"{name}={text}")]
        with (self.folder / "gateway.log").open("ab") as log:
            self.process = subprocess.Popen(
                [DURAMEN, "gateway", "--bootstrap", self.bootstrap, "--listen", self.url, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert b"is ready" in line, self.log()

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self._gone()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS_MAX)
        finally:
            self.kill()

    def _gone(self) -> None:
        assert self.process is not None
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None

    def log(self) -> str:
        return (self.folder / "gateway.log").read_text()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), ANSWER_SECONDS_MAX)

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> HttpAnswer:
        """One request on a connection of its own. headers: with _ for -."""
        with self.connect() as connection:
            connection.sendall(request(method, path, body, **headers))
            answer = answer_from(connection, has_body=method != "HEAD")
            return answer

    @contextmanager
    def events(self, path: str) -> Iterator[Iterator[tuple[str, str]]]:
        """The server-sent events of a path, as (name, data)."""
        with self.connect() as connection:
            connection.sendall(request("GET", path))
            with connection.makefile("rb") as file:
                status, _ = head_from(file)
                assert status == 200, status
                yield _events(_chunks(file))


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """The bytes of a request."""
    given = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if body or method in ("POST", "PUT"):
        given.setdefault("content-length", str(len(body)))
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return head.encode() + b"\r\n" + body


def answer_from(connection: socket.socket, *, has_body: bool = True) -> HttpAnswer:
    """The next answer on a connection."""
    with connection.makefile("rb") as file:
        status, headers = head_from(file)
        if not has_body or status in (204, 304):
            return HttpAnswer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return HttpAnswer(status, headers, b"".join(_chunks(file)))
        return HttpAnswer(status, headers, file.read(int(headers["content-length"])))


def head_from(file: Any) -> tuple[int, dict[str, str]]:
    """Status and headers."""
    line = file.readline()
    assert line, "the connection was closed without an answer"
    status = int(line.split()[1])
    headers = {}
    while (line := file.readline().rstrip(b"\r\n")) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        assert name.lower() not in headers or name.lower() == "set-cookie", f"{name} twice"
        headers[name.lower()] = value.strip()
    return status, headers


def report_lines(file: Any) -> Iterator[dict[str, Any]]:
    """The lines of a chunked answer as they come."""
    while size := int(file.readline(), 16):
        yield from map(json.loads, file.read(size).splitlines())
        file.readline()
    file.readline()


def _chunks(file: Any) -> Iterator[bytes]:
    while size := int(file.readline() or b"0", 16):
        yield file.read(size)
        file.readline()


def _events(chunks: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    text = ""
    for chunk in chunks:
        text += chunk.decode()
        *blocks, text = text.split("\n\n")
        for block in blocks:
            fields = [line.partition(":")[::2] for line in block.split("\n")]
            names = [value.strip() for name, value in fields if name == "event"]
            if names:
                yield names[0], "\n".join(value.removeprefix(" ") for name, value in fields if name == "data")
