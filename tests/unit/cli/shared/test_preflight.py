"""What a command says of an address where no node is, or one that cannot be talked to as it is."""

from __future__ import annotations

import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import pytest
from tests.worlds.served_node import Served

from duramen.cli.main import main
from duramen.cli.shared.preflight import find_gateway, find_node, with_ports
from duramen.errors import DeadlineError, NetworkError
from duramen.swaps.losses import Losses

RUN = [sys.executable, "-m", "duramen.cli.main"]

Answer = Callable[[socket.socket], None]


@pytest.fixture
def listening() -> Iterator[Callable[[Answer], str]]:
    """Starts somebody who does `answer` with each connection, and returns the address."""
    doors: list[socket.socket] = []

    def listen(answer: Answer) -> str:
        door = socket.create_server(("127.0.0.1", 0))
        doors.append(door)

        def serve() -> None:
            try:
                while True:
                    connection, _ = door.accept()
                    with connection:
                        answer(connection)
            except OSError:
                pass

        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{door.getsockname()[1]}"

    yield listen
    for door in doors:
        door.shutdown(socket.SHUT_RDWR)
        door.close()


def a_node(connection: socket.socket) -> None:
    asked = connection.recv(100)
    connection.sendall(b"\0\0\0\x0a")
    connection.sendall(asked[8:12] + bytes(6))


def node_that_tells(*told: tuple[str, int]) -> Answer:
    """One that sends clients to these addresses, and knows nothing of SASL."""
    brokers = b"".join(
        struct.pack(">ih", number, len(host)) + host.encode() + struct.pack(">ih", port, -1)
        for number, (host, port) in enumerate(told)
    )

    def answer(connection: socket.socket) -> None:
        while asked := connection.recv(100):
            body = bytes(6) if asked[5] == 18 else struct.pack(">i", len(told)) + brokers + bytes(8)
            connection.sendall(struct.pack(">i", 4 + len(body)) + asked[8:12] + body)

    return answer


def node_without_login(connection: socket.socket) -> None:
    while asked := connection.recv(100):
        body = bytes(6) if asked[5] == 18 else b"\0\x22" + bytes(4)
        connection.sendall(struct.pack(">i", 4 + len(body)) + asked[8:12] + body)


def node_of_kafka(connection: socket.socket) -> None:
    """What it takes for a frame beyond its bound ends the connection, as a TLS hello does."""
    asked = connection.recv(1000)
    if asked[0] == 0:
        connection.sendall(b"\0\0\0\x0a" + asked[8:12] + bytes(6))


def http(connection: socket.socket) -> None:
    connection.recv(100)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def tls(connection: socket.socket) -> None:
    connection.recv(100)
    connection.sendall(b"\x15\x03\x03\0\x02\x02\x0a")


def nobody(connection: socket.socket) -> None:
    connection.recv(100)
    connection.recv(100)


def test_a_node_is_found_also_behind_others(listening: Callable[[Answer], str]) -> None:
    node = listening(a_node)
    find_node(node, 5.0)
    find_node(f"127.0.0.1:1, {listening(http)} ,{listening(nobody)},{node}", 0.3)


@pytest.mark.parametrize("answer", [http, tls, socket.socket.close])
def test_who_speaks_otherwise_is_told_at_once(answer: Answer, listening: Callable[[Answer], str]) -> None:
    """Each command said after half a minute that the connection broke."""
    address = listening(answer)
    with pytest.raises(click.ClickException, match=f"{address} does not speak Kafka's protocol in plain text") as told:
        find_node(address, 30.0)
    assert "-X security.protocol=ssl" in told.value.message
    find_node(address, 30.0, "ssl")


@pytest.fixture
def dropping() -> Iterator[tuple[str, int]]:
    """An address that answers nobody: whoever comes when nobody may wait any more is dropped."""
    with socket.socket() as door, ExitStack() as waiting:
        door.bind(("127.0.0.1", 0))
        door.listen(0)
        for _ in range(4):
            each = waiting.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex(door.getsockname())
        yield door.getsockname()


@pytest.mark.parametrize(
    "command",
    [["topic", "list"], ["status", "--once"], ["produce", "t"], ["consume", "t"], ["consume", "t", "-g", "g"]],
)
def test_an_address_told_to_clients_that_is_closed(
    command: list[str], listening: Callable[[Answer], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command waited for all of its time and asked whether the node is busy."""
    node = listening(node_that_tells(("127.0.0.1", 1)))
    began = time.monotonic()
    assert main([*command, "--bootstrap", node]) == 1
    assert time.monotonic() - began < 15  # of 30
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"the node at {node} tells clients to use 127.0.0.1:1, which cannot be reached (Connection refused)" in said
    assert "advertised.listeners" in said


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full door refuses")
def test_an_address_told_to_clients_that_drops_them(
    dropping: tuple[str, int], listening: Callable[[Answer], str]
) -> None:
    node = listening(node_that_tells(dropping))
    with pytest.raises(click.ClickException, match=f"use 127.0.0.1:{dropping[1]}, .*no answer in 0.3 s"):
        find_node(node, 0.3)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (http, "where nobody speaks Kafka's protocol in plain text"),
        (socket.socket.close, "where nobody speaks Kafka's protocol in plain text"),
        (nobody, "where connections are taken and not answered"),
    ],
)
def test_an_address_told_to_clients_where_no_node_is(
    answer: Answer, said: str, listening: Callable[[Answer], str]
) -> None:
    """A port that a container or a proxy forwards takes connections: each command said later that the node is busy."""
    host, _, port = listening(answer).partition(":")
    node = listening(node_that_tells((host, int(port))))
    with pytest.raises(
        click.ClickException, match=f"the node at {node} tells clients to use {host}:{port}, {said}; see"
    ):
        find_node(node, 0.5)
    several = listening(node_that_tells((host, int(port)), ("127.0.0.1", 1)))
    with pytest.raises(click.ClickException, match=r"and 1 more, none of which leads to a node"):
        find_node(several, 0.5)
    find_node(listening(node_that_tells((host, int(port)), (host, int(listening(a_node).partition(":")[2])))), 0.5)


def test_of_several_addresses_one_is_enough(listening: Callable[[Answer], str]) -> None:
    """A node of a cluster may be away. Where none can be reached, the first is named."""
    there = ("127.0.0.1", int(listening(a_node).partition(":")[2]))
    find_node(listening(node_that_tells(("127.0.0.1", 1), ("", 70_000), there)), 30.0)
    none = listening(node_that_tells(("::1", 1), ("a" * 70, 1), ("127.0.0.1", 70_000)))
    with pytest.raises(click.ClickException, match=r"use \[::1\]:1 and 2 more, none of which can be reached"):
        find_node(none, 30.0)


def test_a_node_that_does_not_say_where_it_sends_clients_is_one(listening: Callable[[Answer], str]) -> None:
    find_node(listening(node_that_tells()), 30.0)

    def cut_off(connection: socket.socket) -> None:
        a_node(connection)
        connection.sendall(b"\0\0\0\x0a" + connection.recv(100)[8:12] + b"\0\0\0\x09\0\0")

    find_node(listening(cut_off), 30.0)


@pytest.mark.parametrize("protocol", ["ssl", "SASL_SSL"])
def test_tls_where_plain_text_is_spoken(
    protocol: str, listening: Callable[[Answer], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It waited for half a minute and asked whether the node is busy."""
    node = listening(node_of_kafka)
    began = time.monotonic()
    assert main(["topic", "list", "-X", f"security.protocol={protocol}", "--bootstrap", node]) == 1
    assert time.monotonic() - began < 15
    meant = "plaintext" if protocol == "ssl" else "sasl_plaintext"
    said = f"{node} speaks Kafka's protocol in plain text, not TLS. Use -X security.protocol={meant}, "
    assert said in capsys.readouterr().err


def node_of_kafka_without_login(connection: socket.socket) -> None:
    asked = connection.recv(1000)
    if asked[0] == 0:
        connection.sendall(b"\0\0\0\x0a" + asked[8:12] + bytes(6))
        node_without_login(connection)


def test_tls_and_a_login_where_there_is_neither(
    listening: Callable[[Answer], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The advice was sasl_plaintext, which was refused in turn."""
    node = listening(node_of_kafka_without_login)
    assert main(["topic", "list", "-X", "security.protocol=sasl_ssl", "--bootstrap", node]) == 1
    assert "not TLS, and has no login. Use -X security.protocol=plaintext, " in capsys.readouterr().err


def test_a_login_where_there_is_none(listening: Callable[[Answer], str], capsys: pytest.CaptureFixture[str]) -> None:
    node = listening(node_without_login)
    login = [word for key in ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN") for word in ("-X", key)]
    assert main(["topic", "list", *login, "--bootstrap", node]) == 1
    assert f"{node} has no login: its listener is PLAINTEXT" in capsys.readouterr().err
    find_node(listening(a_node), 30.0, "sasl_plaintext", "PLAIN")


def test_a_node_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    # Something that accepts connections and never says a word: a stopped process looks like that.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        for arguments in (
            ("group", "list"),
            ("topic", "list"),
            ("topic", "create", "t"),
            ("topic", "delete", "t", "-y"),
        ):
            assert main([*arguments, "--bootstrap", where, "--timeout", "0.5"]) == 1
            said = capsys.readouterr().err
            assert said.count("\n") == 1
            assert "takes connections and does not answer" in said


# Looks every five seconds, and tells after ten, otherwise. Its first argument: after how many it tells here.
FOLLOW = """
import sys
import duramen.cli.shared.message_source
import duramen.cli.shared.retry
from duramen.cli.main import main

duramen.cli.shared.message_source.LOOK_SECONDS = 0.3
duramen.cli.shared.retry.TELL_SECONDS = float(sys.argv[1])
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("tells", "options"),
    [("4", ["--timeout", "3"]), ("1", []), ("1", ["--group", "g"])],  # behind calls that gave up, or amid the first
    ids=["short calls", "alone", "group"],
)
def test_a_follower_tells_once_that_its_node_is_away(tmp_path: Path, tells: str, options: list[str]) -> None:
    """It waited without a word, or told after as long as a call tries by itself."""
    node = Served(tmp_path, {"group.initial.rebalance.delay.ms": "0"})
    node.start()
    where = ["--bootstrap", node.bootstrap]
    lines = tmp_path / "lines"
    lines.write_text("a\n")
    assert main(["produce", "t", str(lines), *where]) == 0
    follow = [sys.executable, "-c", FOLLOW, tells, "consume", "t", "--follow", *options, *where]
    with subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == "a\n"
            for following in ("b\n", "c\n"):
                node.kill()
                killed = time.monotonic()
                told = process.stderr.readline()
                if told == "joining group g …\n":  # which took longer than a second, before the first record
                    told = process.stderr.readline()
                assert told.startswith("waiting for the node: ")
                assert time.monotonic() - killed < 20, "it tells while the client still tries"
                time.sleep(2)  # more looks
                node.start()
                lines.write_text(following)
                assert main(["produce", "t", str(lines), *where]) == 0
                assert process.stdout.readline() == following
                time.sleep(1)
            process.terminate()  # while there is a node: the library ends no commit without one
            assert process.stderr.read() == ""
            process.wait(60)
        finally:
            process.kill()
            node.kill()


def test_a_follower_outlives_a_node_that_goes_behind_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it went between the records and the question for their topic's id, the command ended without them."""
    among, failures = Losses.among, [DeadlineError("not done within 30 s", NetworkError("hung up"))]

    def failing_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return among(*arguments)

    monkeypatch.setattr(Losses, "among", failing_once)
    node = Served(tmp_path, {})
    node.start()
    try:
        (tmp_path / "lines").write_text("a\n")
        assert main(["produce", "t", str(tmp_path / "lines"), "--bootstrap", node.bootstrap]) == 0
        assert main(["consume", "t", "--follow", "-n", "1", "--bootstrap", node.bootstrap]) == 0
        assert not failures
    finally:
        node.kill()


# As if the node had fallen silent behind the look at where the records are.
CONSUME = """
import sys
import duramen.cli.commands.consume
from confluent_kafka import TopicPartition
from duramen.cli.main import main

duramen.cli.commands.consume._start = lambda *_: [TopicPartition("t", 0, 0)]
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "command", [[*RUN, "topic", "list"], [sys.executable, "-c", CONSUME, "consume", "t"]], ids=["admin", "consumer"]
)
def test_ctrl_c_does_not_wait_for_a_node_that_does_not_answer(command: list[str]) -> None:
    """The client library came back when its own time was up, whatever signal had come."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            process = subprocess.Popen(
                [*command, "--bootstrap", where, "--timeout", "600"], stderr=subprocess.PIPE, text=True
            )
        finally:
            signal.signal(signal.SIGINT, before)
        try:
            connections = [silent.accept()[0]]
            connections[0].sendall(b"\0\0\0\x0a" + connections[0].recv(100)[8:12] + bytes(6))
            connections[0].shutdown(socket.SHUT_RDWR)  # where it sends clients, it does not say
            connections.append(silent.accept()[0])  # the client library's
            assert connections[1].recv(4)
            time.sleep(0.5)  # until it asks, which it does when it is connected
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60)[1].strip() == ""
            assert process.returncode == 130
        finally:
            process.kill()
            process.wait()
            for connection in connections:
                connection.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "--bootstrap '': it is empty; an address is HOST[:PORT], such as 127.0.0.1:9092."),
        ("127.0.0.1:1,", "--bootstrap '': it is empty"),
        (":21092", "--bootstrap :21092: it names no host; here it would be 127.0.0.1:21092."),
        ("a:99999", "--bootstrap a:99999: a port is at most 65535."),
        ("a:1234567", "--bootstrap a:1234567: a port is at most 65535."),
        ("::1", "--bootstrap ::1: a host of IPv6 stands in brackets, [HOST]:PORT, such as [::1]:9092."),
        ("nowhere:", "--bootstrap nowhere:: it is not HOST[:PORT]"),
        ("http://a:1", "--bootstrap http://a:1: it is not HOST[:PORT]"),
    ],
)
def test_what_is_no_address_is_told_as_what_it_is(given: str, said: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        find_node(given, 0.1)
    assert caught.value.message.startswith(said)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("localhost", "localhost:9092"),
        ("a, b:19092", "a:9092,b:19092"),
        ("[::1]", "[::1]:9092"),
        ("[::1]:1", "[::1]:1"),
        ("a:", "a:"),
        ("::1", "::1"),
    ],
)
def test_a_host_alone_means_the_port_of_kafka(given: str, meant: str) -> None:
    assert with_ports(given) == meant


def test_an_address_that_stands_still_is_asked_behind_those_that_answer(listening: Callable[[Answer], str]) -> None:
    def stand_still(connection: socket.socket) -> None:
        connection.recv(1)
        time.sleep(30)

    still, node = listening(stand_still), listening(a_node)
    began = time.monotonic()
    assert find_node(f"{still},{node}", 20.0) == node
    assert time.monotonic() - began < 4.0, "a fifth of what it may take to answer, where it is alone"


# ---- gateways -------------------------------------------------------------------------------------------------


def test_whoever_speaks_http_may_be_a_gateway(listening: Callable[[Answer], str]) -> None:
    find_gateway(listening(http), 5, "--at", is_https=False)
    find_gateway(listening(tls), 5, "--at", is_https=False)  # the library says what to do
    find_gateway(listening(nobody), 5, "--at", is_https=True)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda connection: connection.recv(1000), "does not speak HTTP. Name a gateway with --at duramen+http://"),
        (a_node, "a node is named by duramen://HOST:PORT"),
        (nobody, "does not answer. Is the gateway busy, or is it none? --timeout waits longer, --at names another."),
    ],
    ids=["hangs up", "a node", "silent"],
)
def test_who_is_no_gateway(answer: Answer, said: str, listening: Callable[[Answer], str]) -> None:
    with pytest.raises(click.ClickException, match=re.escape(said)):
        find_gateway(listening(answer), 0.3, "--at", is_https=False)


def test_streams_say_at_once_that_nothing_listens(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        address = f"127.0.0.1:{door.getsockname()[1]}"
    began = time.monotonic()
    for uri, what, start in (
        (f"duramen+http://{address}/n", "gateway", "gateway"),
        (f"duramen+https://{address}", "gateway", "gateway"),
        (f"duramen://{address}/n", "node", "serve"),
    ):
        assert main(["stream", "list", "--at", uri]) == 1
        assert capsys.readouterr().err == (
            f"duramen: cannot reach a {what} at {address} (Connection refused). Start one with `duramen {start}`, "
            "or name another with --at.\n"
        )
    assert main(["stream", "list", "--bootstrap", address]) == 1
    assert "or name another with --bootstrap." in capsys.readouterr().err
    assert time.monotonic() - began < 5


def test_streams_are_not_sent_to_tls_that_they_have_not(
    listening: Callable[[Answer], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stream", "list", "--at", f"duramen://{listening(http)}"]) == 1
    said = capsys.readouterr().err
    assert "a gateway is named by --at duramen+http://HOST:PORT." in said
    assert "-X" not in said
