"""A gateway with TLS and tokens: a page logs in, a reader whose token is taken away is let go, and nothing is told."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.worlds.served_gateway import HttpAnswer, ServedGateway
from tests.worlds.served_node import Served

from duramen.cli.main import main

STREAM = "/v1/stream/finance/logins"
WAIT_SECONDS = 15.0
"""Half of what its events may go on."""

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


def make_certificate(folder: Path) -> dict[str, str]:
    """A certificate of localhost, as settings."""
    found = {"gateway.tls.certificate": str(folder / "cert.pem"), "gateway.tls.key": str(folder / "key.pem")}
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    files = ["-out", found["gateway.tls.certificate"], "-keyout", found["gateway.tls.key"]]
    subprocess.run(["openssl", "req", "-x509", *key, *names, *files], check=True, capture_output=True)
    return found


def make_token(capsys: pytest.CaptureFixture[str], name: str, *options: str) -> str:
    assert main(["gateway", "token", name, *options]) == 0
    return capsys.readouterr().out.strip()


class Client:
    """Requests over TLS on one connection, and readers on their own."""

    def __init__(self, gateway: ServedGateway, certificate: str) -> None:
        self._port = gateway.port
        self._context = ssl.create_default_context(cafile=certificate)
        self._connection = self._connected()

    def _connected(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("localhost", self._port, context=self._context, timeout=30)

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> HttpAnswer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, body, given)
        answer = self._connection.getresponse()
        return HttpAnswer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read())

    @contextlib.contextmanager
    def follow(self, path: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
        with contextlib.closing(self._connected()) as connection:
            connection.request("GET", path, headers=headers)
            with connection.getresponse() as response:
                yield response

    def close(self) -> None:
        self._connection.close()


def test_tls_and_tokens(served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = make_certificate(tmp_path)
    tokens = tmp_path / "tokens"
    writer = make_token(capsys, "writer", "--write", "finance/*", "--read", "*", "--file", str(tokens))
    settings |= {"gateway.tokens.file": str(tokens), "gateway.sse.ms": "30000"}
    reader = make_token(capsys, "reader", "--read", "finance/logins", "--file", str(tokens))
    assert tokens.stat().st_mode & 0o077 == 0
    gateway = ServedGateway(tmp_path, served.bootstrap, settings)
    gateway.url = f"https://127.0.0.1:{gateway.port}"
    gateway.start()
    try:
        client = Client(gateway, settings["gateway.tls.certificate"])
        assert client.ask("GET", "/healthz").status == 200
        made = client.ask("PUT", STREAM, b"one", content_type="text/plain", authorization=f"Bearer {writer}")
        assert made.status == 201
        assert client.ask("GET", STREAM).headers["www-authenticate"] == "Bearer"
        assert client.ask("POST", STREAM, b"x", authorization=f"Bearer {reader}").status == 403
        assert client.ask("GET", "/v1/stream/finance/other", authorization=f"Bearer {reader}").status == 403

        session = client.ask("POST", "/v1/session", authorization=f"Bearer {reader}")
        cookie = session.headers["set-cookie"]
        assert {word.strip().lower() for word in cookie.split(";")[1:]} == {
            "httponly", "samesite=strict", "secure", "path=/"
        }  # fmt: skip
        own = cookie.partition(";")[0]
        with client.follow(f"{STREAM}?offset=-1&live=sse", cookie=own) as events:
            assert events.status == 200
            assert b"event: data" in events.readline() + events.readline() + events.readline()
            assert client.ask(
                "POST", STREAM, b"two", content_type="text/plain", authorization=f"Bearer {writer}"
            ).status in (200, 204)
            assert any(b"two" in line for line in iter(events.readline, b""))
            lines = tokens.read_text().splitlines(keepends=True)
            tokens.write_text("".join(line for line in lines if not line.startswith("reader:")))
            began = time.monotonic()
            assert b"event: control" in events.read()  # to its end, which is one in order
            assert time.monotonic() - began < WAIT_SECONDS
        assert client.ask("GET", STREAM, cookie=own).status == 401
        assert client.ask("GET", STREAM, authorization=f"Bearer {writer}").body == b"onetwo"
        client.close()
        check_that_certificates_change(gateway, settings, tmp_path)
        said = gateway.log()
        assert "tokens-changed ended_reads=1" in said
        assert "principal=reader" in said
        assert not [secret for secret in (reader, writer) if secret in said]
        assert gateway.stop() == 0
    finally:
        gateway.kill()


def check_that_certificates_change(gateway: ServedGateway, settings: dict[str, str], folder: Path) -> None:
    certificate = Path(settings["gateway.tls.certificate"])
    before = certificate.read_text()
    (folder / "renewed").mkdir()
    renewed = make_certificate(folder / "renewed")
    address = ("127.0.0.1", gateway.port)
    certificate.write_text("nothing")
    wait_for(lambda: "error certificate-left" in gateway.log())
    assert ssl.get_server_certificate(address) == before
    certificate.write_bytes(Path(renewed["gateway.tls.certificate"]).read_bytes())
    Path(settings["gateway.tls.key"]).write_bytes(Path(renewed["gateway.tls.key"]).read_bytes())
    wait_for(lambda: "info certificate-changed" in gateway.log())
    assert ssl.get_server_certificate(address) == certificate.read_text() != before


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("wrong", ["certificate", "key", "tokens"])
def test_what_cannot_be_used_is_one_line(tmp_path: Path, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = make_certificate(tmp_path)
    tokens = tmp_path / "tokens"
    make_token(capsys, "reader", "--read", "*", "--file", str(tokens))
    if wrong == "certificate":
        Path(settings["gateway.tls.certificate"]).write_text("nothing")
    elif wrong == "key":
        (tmp_path / "other").mkdir()
        settings["gateway.tls.key"] = make_certificate(tmp_path / "other")["gateway.tls.key"]
    else:
        tokens.write_text("nothing")
    settings |= {"gateway.tokens.file": str(tokens), "gateway.listener": "https://127.0.0.1:0"}
    words = [word for name, text in settings.items() for word in ("--set", f"{name}={text}")]
    assert main(["gateway", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert {"certificate": "in PEM", "key": "not that of the certificate", "tokens": "line 1"}[wrong] in said
