"""The HTTP listener for metrics and health, with clients that do not behave."""

from __future__ import annotations

import contextlib
import http.client
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from email.message import Message
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.worlds.broker_world import InProcess
from tests.worlds.served_node import has_ipv6

from duramen.errors import ConfigError
from duramen.server.metrics import exposition
from duramen.server.metrics.scrape import text_of
from duramen.server.net.loop import EventLoop


class Answer(NamedTuple):
    """What an HTTP server said."""

    status: int
    headers: Message
    body: bytes


def asked(port: int, method: str, path: str, body: bytes = b"") -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body)
        reply = connection.getresponse()
        return Answer(reply.status, reply.headers, reply.read())
    finally:
        connection.close()


@pytest.fixture
def metrics() -> Iterator[exposition.MetricsServer]:
    """A listener whose loop turns."""
    loop = EventLoop()
    broker = InProcess().broker
    server = exposition.MetricsServer(broker, loop, "127.0.0.1", 0)
    turning = threading.Thread(target=loop.run)
    turning.start()
    yield server
    server.stop()
    loop.call_from_thread(loop.stop)
    turning.join()
    loop.close()


def test_a_connection_that_says_nothing_does_not_keep_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "IDLE_SECONDS", 0.2)
    loop = EventLoop()
    broker = InProcess().broker
    server = exposition.MetricsServer(broker, loop, "127.0.0.1", 0)
    try:
        before = threading.active_count()
        silent = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(5)]
        for each in silent:
            assert each.recv(1) == b"", "it is closed"
            each.close()
        deadline = time.monotonic() + 30
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threading.active_count() <= before
    finally:
        server.stop()
        loop.close()


@pytest.mark.parametrize(("host", "asked"), [("::1", "::1"), ("::", "127.0.0.1"), ("", "::1"), ("", "127.0.0.1")])
def test_the_address_family_is_that_of_the_address(host: str, asked: str) -> None:
    if not has_ipv6():
        pytest.skip("no IPv6 here")
    loop = EventLoop()
    broker = InProcess().broker
    server = exposition.MetricsServer(broker, loop, host, 0)
    try:
        with socket.create_connection((asked, server.port), timeout=30) as connection:
            connection.sendall(b"GET /nothing HTTP/1.0\r\n\r\n")
            with connection.makefile("rb") as answer:
                assert b" 404 " in answer.read()
    finally:
        server.stop()
        loop.close()


def test_an_address_that_cannot_be_used_is_told_with_its_setting() -> None:
    """The message spoke of `listeners`."""
    loop = EventLoop()
    broker = InProcess().broker
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"^metrics.listener 127.0.0.1:{port} is in use.* --set metrics.listener="
        ):
            exposition.MetricsServer(broker, loop, "127.0.0.1", port)
    with pytest.raises(
        ConfigError, match=r"^cannot listen at metrics.listener \[2001:db8::1\]:0 .* --set metrics.listener="
    ):
        exposition.MetricsServer(broker, loop, "2001:db8::1", 0)
    loop.close()


def test_connections_beyond_a_bound_are_closed_and_take_no_descriptors_from_the_files() -> None:
    loop = EventLoop()
    broker = InProcess().broker
    server = exposition.MetricsServer(broker, loop, "127.0.0.1", 0)
    try:
        held = []
        for _ in range(exposition.MOST_CONNECTIONS + 3):
            held.append(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            time.sleep(0.02)
        assert [each.recv(1) for each in held[-3:]] == [b""] * 3
        for each in held[:-3]:
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(1)
        for each in held:
            each.close()
        deadline = time.monotonic() + 30
        status = b""
        while not status and time.monotonic() < deadline:
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as again:
                again.sendall(b"GET /nothing HTTP/1.0\r\n\r\n")
                with contextlib.suppress(ConnectionError):
                    status = again.recv(64)
        assert b" 404 " in status, "there is room again"
    finally:
        server.stop()
        loop.close()


def test_head_is_get_without_a_body_and_other_methods_are_refused(metrics: exposition.MetricsServer) -> None:
    got, head = (asked(metrics.port, method, "/healthz") for method in ("GET", "HEAD"))
    assert (got.status, got.body, head.status, head.body) == (200, b"ok\n", 200, b"")
    assert head.headers["Content-Length"] == "3"
    assert asked(metrics.port, "HEAD", "/nothing").status == 404
    for method, body in (("POST", b""), ("PUT", b"x" * 100_000), ("DELETE", b""), ("OPTIONS", b""), ("ANYTHING", b"")):
        refused = asked(metrics.port, method, "/metrics", body)
        assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD"), method


def test_the_process_is_told_as_by_prometheus_own_libraries() -> None:
    text = b"".join(text_of(exposition._of_process())).decode()
    samples = {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}
    assert samples["process_cpu_seconds_total"] > 0
    assert samples["process_resident_memory_bytes"] > 1 << 20
    assert samples["process_open_fds"] >= 3
    assert samples["process_max_fds"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert abs(samples["process_start_time_seconds"] - time.time()) < 24 * 3600


def test_a_client_that_goes_away_is_not_a_traceback(
    metrics: exposition.MetricsServer, capfd: pytest.CaptureFixture[str]
) -> None:
    before = threading.active_count()
    with socket.create_connection(("127.0.0.1", metrics.port), timeout=30) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(b"GET /heal")  # and then a reset
    assert asked(metrics.port, "GET", "/healthz").status == 200
    deadline = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert capfd.readouterr().err == ""
