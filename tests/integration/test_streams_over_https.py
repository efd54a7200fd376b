"""The streams library and the command line at a gateway with TLS and tokens."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest
from tests.integration.test_gateway_logins import make_certificate
from tests.worlds.served_gateway import ServedGateway
from tests.worlds.served_node import Served

from duramen import streams
from duramen.cli.main import main
from duramen.errors import ClosedError, ErrorCode, KafkaError, NetworkError, TlsError
from duramen.gateway.access.principal import parse_permission
from duramen.gateway.access.token_lines import fresh_token, token_line
from duramen.streams import aio, gateway_connection

AT_ONCE_S = 20.0
"""Without being tried again: that goes on for as long as a call may take, which is 30 s."""

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


class Guarded(NamedTuple):
    port: int
    ca_file: str
    admin: str
    reader: str
    writer: str
    gateway: ServedGateway

    @property
    def address(self) -> str:
        return f"duramen+https://localhost:{self.port}/finance"


@pytest.fixture(scope="module")
def guarded(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    settings = make_certificate(folder)
    tokens = {name: fresh_token() for name in ("admin", "reader", "writer")}
    rights = {"admin": "admin=*", "reader": "read=finance.*", "writer": "write=finance.*"}
    lines = [token_line(name, token, [parse_permission(rights[name])]) for name, token in tokens.items()]
    (folder / "tokens").write_text("\n".join(lines))
    gateway = ServedGateway(folder, served.bootstrap, settings | {"gateway.tokens.file": str(folder / "tokens")})
    gateway.url = f"https://127.0.0.1:{gateway.port}"
    gateway.start()
    yield Guarded(gateway.port, settings["gateway.tls.certificate"], **tokens, gateway=gateway)
    assert not [token for token in tokens.values() if token in gateway.log()]
    gateway.kill()


def test_a_token_and_a_certificate_reach_it(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"s-{uuid4().hex}"
    with streams.open(guarded.address, token=guarded.admin, ca_file=guarded.ca_file) as space:
        stream = space.create(name)
        assert stream.append([b"one", b"two"]).end == 2
        stream.close_stream()
        assert name in space.list()
    monkeypatch.setenv("DURAMEN_TOKEN", guarded.reader)
    monkeypatch.setenv("DURAMEN_CA_FILE", guarded.ca_file)

    async def read() -> list[bytes | None]:
        async with await aio.open(guarded.address) as space:
            return [record.value async for record in await (await space.stream(name)).reader(follow=True)]

    assert asyncio.run(read()) == [b"one", b"two"]
    with streams.open(guarded.address) as space, pytest.raises(KafkaError, match="needs write=finance") as refused:
        space.create(f"{name}-more")
    assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with streams.open(guarded.address, token=guarded.writer) as space:
        assert space.create(f"{name}-blind").append([b"a", b"b"]).end == 2
        with pytest.raises(KafkaError, match=r"line 1.timestamp: it is missing"):
            space.create(f"{name}-numbered", txid="application").append(b"a")
        with pytest.raises(KafkaError, match="permission read="):
            space.stream(name)


def test_who_has_no_token_is_told_so(guarded: Guarded) -> None:
    for token, said in ((None, "needs a bearer token"), ("wrong", "does not know the bearer token")):
        with streams.open(guarded.address, token=token, ca_file=guarded.ca_file) as space:
            for ask in (lambda: space.list(), lambda: space.exists("s"), lambda: space.create("s")):
                with pytest.raises(KafkaError, match=f"{said}.*token=, or in DURAMEN_TOKEN") as found:
                    ask()
                assert found.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever tries again does it for long."""
    monkeypatch.setattr(gateway_connection, "FIRST_CONTACT_S", 60.0)


@pytest.mark.usefixtures("patience")
def test_each_side_says_where_the_other_speaks_tls(guarded: Guarded, shared_gateway: ServedGateway) -> None:
    began = time.monotonic()
    with (
        streams.open(f"duramen+http://localhost:{guarded.port}/finance", token=guarded.admin) as space,
        pytest.raises(TlsError, match=r"speaks TLS.*duramen\+https://"),
    ):
        space.exists("s")
    with (
        streams.open(f"duramen+https://localhost:{shared_gateway.port}/finance", token=guarded.admin) as space,
        pytest.raises(TlsError, match=r"does not speak TLS.*duramen\+http://"),
    ):
        space.exists("s")
    assert time.monotonic() - began < AT_ONCE_S


@pytest.mark.usefixtures("patience")
def test_a_certificate_that_is_not_trusted_is_an_error_at_once(guarded: Guarded, tmp_path: Path) -> None:
    began = time.monotonic()
    with (
        streams.open(guarded.address, token=guarded.admin) as space,
        pytest.raises(NetworkError, match=r"self-signed certificate.*ca_file= or DURAMEN_CA_FILE"),
    ):
        space.exists("s")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(guarded.ca_file, Path(guarded.ca_file).with_name("key.pem"))
    listener = socket.create_server(("127.0.0.2", 0))  # which is not in the certificate
    threading.Thread(target=_shake_hands_once, args=(listener, context), daemon=True).start()
    elsewhere = f"duramen+https://127.0.0.2:{listener.getsockname()[1]}/finance"
    with (
        streams.open(elsewhere, token=guarded.admin, ca_file=guarded.ca_file) as space,
        pytest.raises(TlsError, match=r"IP address mismatch.*'127.0.0.2'\)$"),
    ):
        space.exists("s")
    assert time.monotonic() - began < AT_ONCE_S


def _shake_hands_once(listener: socket.socket, context: ssl.SSLContext) -> None:
    with listener, contextlib.suppress(OSError):
        client, _ = listener.accept()
        with client, context.wrap_socket(client, server_side=True):
            pass


def test_a_namespace_is_closed_while_it_waits(guarded: Guarded) -> None:
    with streams.open(guarded.address, token=guarded.admin, ca_file=guarded.ca_file) as space:
        reader = space.create(f"s-{uuid4().hex}").reader(follow=True)
        ended: list[str] = []

        def follow() -> None:
            try:
                next(reader)
            except ClosedError as error:
                ended.append(str(error))

        thread = threading.Thread(target=follow)
        thread.start()
        time.sleep(0.3)
        space.close()
        thread.join(30)
        assert ended == ["this namespace was closed"]


def test_the_command_line(
    guarded: Guarded, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, at = f"s-{uuid4().hex}", ("--at", guarded.address)
    file = tmp_path / "token"
    file.write_text(f"{guarded.admin}\n")
    given = ("--token-file", str(file), "--ca-file", guarded.ca_file)
    assert main(["stream", "create", name, *at, *given]) == 0
    monkeypatch.setenv("DURAMEN_CA_FILE", guarded.ca_file)
    capfd.readouterr()
    for words, code, said in (
        ((*at,), 1, "DURAMEN_TOKEN"),
        ((*at, "--ca-file", str(tmp_path / "absent")), 2, "No such file"),
        ((*at, "--token-file", str(tmp_path / "absent")), 2, "No such file"),
        ((*at, "--token-file", str(tmp_path / "empty")), 2, "no bearer token"),
        (("--at", "duramen://127.0.0.1:1", "--token-file", str(file)), 2, "--token-file is for a gateway"),
        (("--at", "duramen+http://10.0.0.1:1", "--token-file", str(file)), 2, "in the clear"),
        (("--at", f"duramen+https://{guarded.admin}@localhost:1"), 2, "holds no login"),
        (("--at", f"duramen+http://localhost:{guarded.port}"), 1, "duramen+https://"),
    ):
        (tmp_path / "empty").touch()
        assert main(["stream", "list", *words]) == code, words
        out, err = capfd.readouterr()
        assert (out, err.count("\n")) == ("", 1), err
        assert said in err
        assert guarded.admin not in err
    monkeypatch.setenv("DURAMEN_TOKEN", guarded.admin)
    assert main(["stream", "list", *at, name]) == 0
    assert capfd.readouterr().out == f"{name}\n"
    monkeypatch.delenv("DURAMEN_CA_FILE")
    assert main(["stream", "read", name, *at]) == 1
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "DURAMEN_CA_FILE" in said
