"""A gateway before a real node: streams by bare HTTP and by the Python client of the protocol, and what is refused."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import durable_streams
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.served_gateway import ServedGateway, answer_from, request
from tests.worlds.served_node import DURAMEN, Served

from duramen.client import Cluster
from duramen.dlsn import parse_dlsn
from duramen.model import TopicPartition
from duramen.wire.batch import build_batch

JSON = "application/json"
LIMITS = {
    "gateway.long.poll.ms": "400",
    "gateway.sse.ms": "3000",
    "gateway.body.max.bytes": "20000",
    "gateway.head.max.bytes": "4096",
    "gateway.head.timeout.ms": "700",
    "gateway.origins": "https://app.example",
    "gateway.expiry.delay.ms": "400",
    "gateway.request.timeout.ms": "2000",
}


@pytest.fixture(scope="module")
def gateway(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    found = ServedGateway(tmp_path_factory.mktemp("gateway"), served.bootstrap, LIMITS)
    found.start()
    yield found
    found.kill()


def test_a_json_stream(gateway: ServedGateway, served: Served) -> None:
    path = "/v1/stream/finance/eu/ledger"
    made = gateway.ask("PUT", path, content_type=JSON)
    assert (made.status, made.headers["location"]) == (201, f"http://localhost{path}")
    assert gateway.ask("PUT", path, content_type="Application/JSON; charset=utf-8").status == 200
    assert gateway.ask("PUT", path, content_type="text/plain").status == 409
    first = gateway.ask("POST", path, b'{"id": 9007199254740993, "d": 1.10}', content_type=JSON)
    second = gateway.ask("POST", path, b"[[1], 18446744073709551616 ]", content_type=JSON)
    assert (first.status, second.status) == (204, 204)
    assert made.next < first.next < second.next
    whole = gateway.ask("GET", path)
    assert whole.body == b'[{"id": 9007199254740993, "d": 1.10},[1],18446744073709551616]'
    assert (whole.next, whole.headers["stream-up-to-date"]) == (second.next, "true")
    assert gateway.ask("GET", f"{path}?offset={first.next}").body == b"[[1],18446744073709551616]"
    assert gateway.ask("GET", f"{path}?offset={second.next}").body == b"[]"
    unchanged = gateway.ask("GET", path, if_none_match=f'"other", {whole.headers["etag"]}')
    assert (unchanged.status, unchanged.body) == (304, b"")
    described = gateway.ask("HEAD", path)
    assert (described.headers["content-type"], described.next) == (JSON, second.next)
    with Cluster(served.bootstrap) as cluster:  # and it is an ordinary topic
        assert cluster.partitions("finance.eu.ledger") == [0]
        foreign = [(b"k", value, (), 1) for value in (b'"kafka"', b"text", None)]
        cluster.produce(TopicPartition("finance.eu.ledger", 0), build_batch(foreign))
    assert gateway.ask("GET", f"{path}?offset={second.next}").json() == ["kafka", {"not-json": "dGV4dA=="}, None]
    assert gateway.ask("DELETE", path).status == 204
    assert gateway.ask("DELETE", path).status == 404
    assert gateway.ask("GET", path).status == 404


def test_readers_follow(gateway: ServedGateway) -> None:
    path = "/v1/stream/followed"
    gateway.ask("PUT", path, b"one", content_type="text/plain")
    waited = gateway.ask("GET", f"{path}?offset=now&live=long-poll")
    assert (waited.status, waited.headers["stream-up-to-date"]) == (204, "true")
    writer = threading.Timer(0.1, lambda: gateway.ask("POST", path, b"two\r\nevent: x", content_type="text/plain"))
    with gateway.events(f"{path}?offset=-1&live=sse") as events:
        assert next(events) == ("data", "one")
        name, control = next(events)
        assert (name, json.loads(control)["upToDate"]) == ("control", True)
        writer.start()
        while (polled := gateway.ask("GET", f"{path}?offset={waited.next}&live=long-poll")).status == 204:
            assert polled.next == waited.next  # its time was up
        assert (polled.status, polled.body) == (200, b"two\r\nevent: x")
        assert next(events) == ("data", "two\nevent: x")
        assert json.loads(next(events)[1])["streamNextOffset"] == polled.next
        began = time.monotonic()
        assert list(events) == []
        assert time.monotonic() - began < 20  # of 60 that are the default
    writer.join()


def test_bytes_and_a_ttl(gateway: ServedGateway, served: Served) -> None:
    path = "/v1/stream/raw"
    assert gateway.ask("PUT", path, b"\x00\xff", stream_ttl="2").status == 201
    assert gateway.ask("HEAD", path).headers["stream-ttl"] == "2"
    with gateway.events(f"{path}?offset=-1&live=sse") as events:
        assert next(events) == ("data", "AP8=")
    until = time.monotonic() + 2.2
    while (asked := time.monotonic()) < until:
        assert gateway.ask("GET", path).body == b"\x00\xff"  # which renews it
        time.sleep(0.1)
    while gateway.ask("HEAD", path).status == 200:  # which does not
        assert time.monotonic() < asked + 20
        time.sleep(0.1)
    assert time.monotonic() > asked + 1
    assert gateway.ask("GET", path).status == 404
    assert gateway.ask("PUT", path, content_type="text/plain").status == 201
    assert gateway.ask("GET", path).body == b""
    gateway.ask("PUT", "/v1/stream/swept", stream_ttl="0")
    with Cluster(served.bootstrap) as cluster:
        end = time.monotonic() + 10
        while "swept" in (there := cluster.metadata().topics) and time.monotonic() < end:
            time.sleep(0.1)
    assert "swept" not in there
    assert "raw" in there


def test_the_client_of_the_protocol(gateway: ServedGateway) -> None:
    url = f"{gateway.url}/v1/stream/by-client"
    with durable_streams.DurableStream.create(url, content_type=JSON) as stream:
        for number in range(5):
            stream.append({"n": number})
        with stream.stream(offset="-1", live=False) as found:
            assert found.read_json() == [{"n": number} for number in range(5)]
    with pytest.raises(durable_streams.StreamNotFoundError):
        durable_streams.DurableStream.connect(f"{gateway.url}/v1/stream/none").head()


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "code"),
    [
        ("GET", "/v1/stream/none", b"", {}, 404, "no-such-stream"),
        ("POST", "/v1/stream/none", b"1", {"content_type": JSON}, 404, "no-such-stream"),
        ("PUT", "/v1/stream/a/../b", b"", {}, 400, "bad-request"),
        ("PUT", "/v1/stream/a%2Fb%00", b"", {}, 400, "bad-request"),
        ("PUT", "/v1/stream/a//b", b"", {}, 400, "bad-request"),
        ("PUT", "/v1/stream/" + "a" * 250, b"", {}, 400, "bad-request"),
        ("PUT", "/v1/stream/a/%2e%2e%2fb", b"", {}, 400, "bad-request"),
        ("PUT", "/v1/stream/a%2F..", b"", {}, 404, "no-such-stream"),
        ("PUT", "/v1/stream/a%00b", b"", {}, 400, "bad-request"),
        ("PUT", "/v1/stream/a%c0%afb", b"", {}, 400, "bad-request"),
        ("PUT", "/v1/stream/%ff%fe", b"", {}, 400, "bad-request"),
        ("PUT", "/v1/stream/a%0d%0aset-cookie:b", b"", {}, 404, "not-found"),
        ("PUT", "/v1/stream/x", b"", {"content_type": "text/\xe9"}, 400, "bad-request"),
        ("GET", "/v1/stream/a/.nothing", b"", {}, 404, "no-such-stream"),
        ("GET", "/v1/stream/a/.position?offset=1", b"", {}, 404, "no-such-stream"),
        ("POST", "/v1/stream/a/.truncate", b'{"before": {"offset": 1}}', {}, 404, "no-such-stream"),
        ("POST", "/v1/stream/a/.truncate", b"{}", {}, 400, "bad-request"),
        ("GET", "/v1/stream/x?on_truncated=1", b"", {}, 400, "bad-request"),
        ("GET", "/v1/stream/__consumer_offsets", b"", {}, 400, "bad-request"),
        ("PUT", "/v1/stream/x", b"", {"stream_ttl": "1.5"}, 400, "bad-request"),
        ("PUT", "/v1/stream/x", b"[1,", {"content_type": JSON}, 400, "bad-request"),
        ("PUT", "/v1/stream/x", b"", {"content_type": "json"}, 400, "bad-request"),
        ("PUT", "/v1/stream/x", b"", {"origin": "https://evil.example"}, 403, "foreign-origin"),
        ("GET", "/v1/stream/x", b"", {"host": "evil.example"}, 421, "host-not-listed"),
        ("GET", "/v1/stream/x", b"", {"Host": "localhost"}, 421, "host-not-listed"),
        ("POST", "/v1/stream/x", b"a" * 20_001, {"content_type": "text/plain"}, 413, "body-too-large"),
        ("POST", "/v1/stream/x", b"gz", {"content_encoding": "gzip"}, 415, "unsupported-type"),
        ("PATCH", "/v1/stream/x", b"", {}, 405, "no-such-method"),
        ("POST", "/v1/stream/x/.writer", b"", {}, 405, "no-such-method"),
        ("PUT", "/v1/stream/x/.truncate", b"", {}, 405, "no-such-method"),
        ("DELETE", "/v1/stream/x/.position", b"", {}, 405, "no-such-method"),
        ("POST", "/v1/stream/x/.socket", b"", {}, 405, "no-such-method"),
        ("GET", "/v2", b"", {}, 404, "not-found"),
        ("GET", "/v1/stream/x?offset=1,2", b"", {}, 400, "bad-request"),
        ("GET", "/v1/stream/x?live=sse", b"", {}, 400, "bad-request"),
        ("GET", "/v1/stream/x?ofset=3", b"", {}, 400, "bad-request"),
        ("GET", "/v1/stream/x?foo=3", b"", {}, 404, "no-such-stream"),
        ("GET", "/v1/stream/x/.socket?from=3", b"", {}, 400, "bad-request"),
        ("GET", "/v1/topics/x/records?formt=ndjson", b"", {}, 400, "bad-request"),
        ("POST", "/v1/stream/x/.truncate?before=3", b"{}", {}, 400, "bad-request"),
    ],
)
def test_what_is_refused(
    gateway: ServedGateway, method: str, path: str, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    answer = gateway.ask(method, path, body, **headers)
    assert (answer.status, answer.json()["type"]) == (status, f"urn:duramen:{code}")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["detail"]


def test_heads_have_bounds(gateway: ServedGateway) -> None:
    assert gateway.ask("GET", "/healthz", x="a" * 5000).status == 431
    with gateway.connect() as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert answer_from(slow).status == 408
    with gateway.connect() as starving:
        starving.sendall(request("POST", "/v1/stream/x", b"", content_length="10", content_type=JSON) + b"1")
        assert answer_from(starving).status == 408
    with gateway.connect() as chunked:
        chunked.sendall(
            request("POST", "/v1/stream/x", transfer_encoding="chunked").replace(b"content-length: 0\r\n", b"")
        )
        for _ in range(5):
            chunked.sendall(b"1388\r\n" + b"a" * 5000 + b"\r\n")
        assert answer_from(chunked).status == 413
    for more in (b"", b"content-length: 9\r\n", b"x: a\0b\r\n", b"x: a\rb\r\n"):
        with gateway.connect() as smuggler:
            head = b"POST /v1/stream/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n"
            smuggler.sendall(head + b"transfer-encoding: chunked\r\n"[: 99 * (not more)] + more + b"\r\n0\r\n\r\n")
            refused = answer_from(smuggler)
            assert (refused.status, refused.json()["type"]) == (400, "urn:duramen:bad-request")
    gateway.ask("PUT", "/v1/stream/half-a-body", content_type="text/plain")
    for head in ({"content_length": "9"}, {"transfer_encoding": "chunked"}):
        with gateway.connect() as cut:
            whole = request("POST", "/v1/stream/half-a-body", b"3\r\nabc\r\n", content_type="text/plain", **head)
            cut.sendall(whole.replace(b"content-length: 8\r\n", b""))
            cut.shutdown(socket.SHUT_WR)
            assert cut.recv(1) == b""
    assert gateway.ask("GET", "/v1/stream/half-a-body").body == b""
    with gateway.connect() as several:  # on one connection, each with a head and a body of its own
        for _ in range(3):
            several.sendall(request("PUT", "/v1/stream/kept", b"a" * 3000))
            assert answer_from(several).status in (200, 201)


def test_a_kept_connection_is_answered_at_once(gateway: ServedGateway) -> None:
    """Where the system holds back the body of an answer for the acknowledgement of its head, none takes below 40 ms."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)) as connection:
        seconds: list[float] = []
        while len(seconds) < 6 or (min(seconds[1:]) >= 0.03 and len(seconds) < 100):  # some wait for the processor
            began = time.monotonic()
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
            seconds.append(time.monotonic() - began)
    assert min(seconds[1:]) < 0.03, seconds


def test_pages_that_are_listed(gateway: ServedGateway) -> None:
    preflight = gateway.ask("OPTIONS", "/v1/stream/x", origin="https://app.example")
    assert preflight.status == 204
    assert "if-none-match" in preflight.headers["access-control-allow-headers"]
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-origin" not in gateway.ask("GET", "/healthz", origin="https://evil.example").headers


def test_its_own_pages(gateway: ServedGateway) -> None:
    assert gateway.ask("GET", "/healthz").body == b"ok\n"
    assert gateway.ask("GET", "/readyz").body == b"ready\n"
    assert gateway.ask("GET", "/openapi.json").json()["openapi"] == "3.1.0"
    assert b'duramen_gateway_requests_total{operation="health",status="200"}' in gateway.ask("GET", "/metrics").body


def test_a_signal_lets_readers_go(served: Served, tmp_path: Path) -> None:
    gateway = ServedGateway(tmp_path, served.bootstrap)
    gateway.start()
    gateway.ask("PUT", "/v1/stream/left")
    with gateway.events("/v1/stream/left?offset=-1&live=sse") as events, gateway.connect() as idle:
        assert next(events)[0] == "control"
        began = time.monotonic()
        assert gateway.stop() == 0
        assert time.monotonic() - began < 20  # of 60 that the events may go on
        assert list(events) == []
        assert idle.recv(1) == b""


def test_without_a_cluster_it_says_so(tmp_path: Path) -> None:
    gateway = ServedGateway(tmp_path, "127.0.0.1:1", {"gateway.request.timeout.ms": "500"})
    gateway.start()
    try:
        assert gateway.ask("GET", "/healthz").status == 200
        assert gateway.ask("GET", "/readyz").status == 503
        answer = gateway.ask("GET", "/v1/stream/x")
        assert (answer.status, answer.headers["retry-after"], answer.json()["retriable"]) == (503, "1", True)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
            ran = subprocess.run([DURAMEN, "gateway", "--listen", url], capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
        assert "cannot be listened on" in ran.stderr
    finally:
        gateway.kill()


def test_a_stream_is_closed(gateway: ServedGateway) -> None:
    path = "/v1/stream/closed"
    gateway.ask("PUT", path, b"1", content_type=JSON)
    last = gateway.ask("POST", path, b"2", content_type=JSON, stream_closed="true")
    assert (last.status, last.headers["stream-closed"]) == (204, "true")
    refused = gateway.ask("POST", path, b"3", content_type=JSON)
    assert (refused.status, refused.headers["stream-closed"]) == (409, "true")
    assert refused.json()["type"] == "urn:duramen:closed"
    assert gateway.ask("POST", path, stream_closed="true").status == 204
    assert gateway.ask("PUT", path, content_type=JSON).status == 409
    assert gateway.ask("PUT", path, content_type=JSON, stream_closed="true").status == 200
    read = gateway.ask("GET", path)
    assert (read.json(), read.headers["stream-closed"]) == ([1, 2], "true")
    for where in (read.next, last.next, refused.next, "now"):
        at_end = gateway.ask("GET", f"{path}?offset={where}&live=long-poll")
        assert (at_end.status, at_end.headers.get("stream-closed")) == (204, "true"), where
    with gateway.events(f"{path}?offset=-1&live=sse") as events:
        assert [name for name, _ in events] == ["data", "control"]


def test_a_named_writer_writes_once(gateway: ServedGateway, served: Served) -> None:
    path = "/v1/stream/named"
    gateway.ask("PUT", path, content_type=JSON)

    def write(epoch: int, sequence: int, body: bytes = b"[1,2]", **headers: str) -> tuple[int, dict[str, str]]:
        who = {"producer_id": "écrivain".encode().decode("latin-1"), "producer_epoch": str(epoch)}
        answer = gateway.ask("POST", path, body, content_type=JSON, producer_seq=str(sequence), **who, **headers)
        return answer.status, {name: text for name, text in answer.headers.items() if name.startswith("producer-")}

    assert write(0, 0) == (200, {"producer-epoch": "0", "producer-seq": "0"})
    assert write(0, 1, b"3") == (200, {"producer-epoch": "0", "producer-seq": "1"})
    gateway.kill()  # who writes is known by the log alone
    served.kill()
    served.start()
    gateway.start()
    assert write(0, 0) == (204, {"producer-epoch": "0", "producer-seq": "1"})
    assert write(0, 3) == (409, {"producer-expected-seq": "2", "producer-received-seq": "3"})
    assert write(1, 1)[0] == 400
    assert write(1, 0, b"4") == (200, {"producer-epoch": "1", "producer-seq": "0"})
    assert write(0, 2) == (403, {"producer-epoch": "1"})
    assert write(0, 2, b"", stream_closed="true")[0] == 403
    assert write(32_768, 0)[0] == 400
    assert gateway.ask("GET", path).json() == [1, 2, 3, 4]
    assert write(1, 1, b"", stream_closed="true") == (204, {"producer-epoch": "1", "producer-seq": "1"})
    assert write(1, 1, b"", stream_closed="true")[0] == 204
    assert write(1, 1, b"5")[0] == 409


def test_an_append_where_the_end_is_expected(gateway: ServedGateway) -> None:
    path = "/v1/stream/expected"
    made = gateway.ask("PUT", path)
    first = gateway.ask("POST", path, b"a", content_type="application/octet-stream", stream_expected_offset=made.next)
    assert first.status == 204
    second = gateway.ask("POST", path, b"b", content_type="application/octet-stream", stream_expected_offset=made.next)
    assert (second.status, second.next) == (409, first.next)
    for sequence, status in (("2", 204), ("10", 409), ("2", 409), ("20", 204), ("3", 204)):
        answer = gateway.ask("POST", path, b"s", content_type="application/octet-stream", stream_seq=sequence)
        assert answer.status == status, sequence
        gateway.ask("POST", path, b"-", content_type="application/octet-stream")
    gateway.kill()
    gateway.start()
    assert gateway.ask("POST", path, b"s", content_type="application/octet-stream", stream_seq="3").status == 409
    assert gateway.ask("POST", path, b"s", content_type="application/octet-stream", stream_seq="4").status == 204
    assert gateway.ask("GET", path).body == b"as--" + b"-s-s-s"


def test_receipts_and_positions_of_one_history(gateway: ServedGateway, served: Served) -> None:
    path = "/v1/stream/history"
    made = gateway.ask("PUT", path, b"[1, 2]", content_type=JSON)
    first = json.loads(made.headers["stream-receipt"])
    assert (first["offset"], first["durability"], first["copies"]) == (0, "stable", 1)
    assert parse_dlsn(first["dlsn"]).leader_epoch == first["epoch"]
    who = {"producer_id": "w", "producer_epoch": "0", "producer_seq": "0"}
    served.stop()
    served.start()  # which leads in a new epoch
    written = gateway.ask("POST", path, b"[3, 4]", content_type=JSON, **who)
    receipt = json.loads(written.headers["stream-receipt"])
    assert (receipt["offset"], receipt["epoch"] > first["epoch"]) == (2, True)
    again = gateway.ask("POST", path, b"[3, 4]", content_type=JSON, **who)
    assert (again.status, json.loads(again.headers["stream-receipt"])) == (204, receipt)
    for where, found in ((made.next, [3, 4]), (first["dlsn"], [1, 2, 3, 4]), (receipt["dlsn"], [3, 4])):
        assert gateway.ask("GET", f"{path}?offset={where}").json() == found
    lost = parse_dlsn(receipt["dlsn"])._replace(lssn=first["epoch"] + 1)  # of the leader before
    behind = lost._replace(slot=2)  # it ends at offset 4, too
    refused = gateway.ask("POST", path, b"5", content_type=JSON, stream_expected_offset=str(behind))
    assert (refused.json()["type"], refused.next) == ("urn:duramen:position-diverged", written.next)
    assert gateway.ask("POST", path, b"5", content_type=JSON, stream_expected_offset=receipt["dlsn"]).status == 409
    assert gateway.ask("POST", path, b"5", content_type=JSON, stream_expected_offset=written.next).status == 204
    for where in (lost, lost.next, lost._replace(slot=2), lost._replace(entry=9)):
        for live in ("", "&live=long-poll", "&live=sse"):
            answer = gateway.ask("GET", f"{path}?offset={where}{live}")
            assert (answer.status, answer.json()["type"]) == (409, "urn:duramen:position-diverged"), where


def test_a_stream_is_truncated(gateway: ServedGateway, served: Served) -> None:
    path = "/v1/stream/shortened"
    first = json.loads(gateway.ask("PUT", path, b"[0, 1, 2, 3]", content_type=JSON).headers["stream-receipt"])
    for _ in range(2):
        answer = gateway.ask("POST", f"{path}/.truncate", b'{"before": {"offset": 2}}')
        assert (answer.status, answer.json()["offset"]) == (200, 2)
    kept = answer.json()["dlsn"]
    served.kill()
    served.start()
    assert gateway.ask("GET", path).json() == [2, 3]
    assert gateway.ask("GET", f"{path}?offset={kept}").json() == [2, 3]
    for live in ("", "&live=long-poll", "&live=sse"):
        gone = gateway.ask("GET", f"{path}?offset={first['dlsn']}{live}")
        assert (gone.status, gone.json()["type"], gone.next) == (410, "urn:duramen:truncated", kept)
        moved = gateway.ask("GET", f"{path}?offset={first['dlsn']}&on_truncated=advance{live}")
        assert (moved.status, moved.headers["stream-advanced-to"]) == (200, kept)
        assert b"[2,3]" in moved.body
    assert "stream-advanced-to" not in gateway.ask("GET", f"{path}?offset={kept}&on_truncated=advance").headers
    found = gateway.ask("GET", f"{path}/.position?dlsn={kept}").json()
    assert (found["offset"], found["dlsn"], found["epoch"]) == (2, kept, first["epoch"])
    for wish in (f"offset={found['offset']}", f"time={found['time']}", "time=1999-01-01T00:00:00Z", "offset=-1"):
        assert gateway.ask("GET", f"{path}/.position?{wish}").json() == found
    assert gateway.ask("GET", f"{path}/.position?time=9999999999999").json()["at_end"] is True
    for wish, status in (
        (f"dlsn={first['dlsn']}", 410),
        ("offset=1", 410),
        ("offset=5", 409),
        (f"dlsn={parse_dlsn(kept)._replace(lssn=99)}", 409),
        ("txid=1", 400),
        ("", 400),
    ):
        assert gateway.ask("GET", f"{path}/.position?{wish}").status == status, wish
    everything = gateway.ask("POST", f"{path}/.truncate", b'{"before": {"offset": "now"}}').json()
    assert (everything["offset"], everything["at_end"]) == (4, True)
    assert gateway.ask("GET", f"{path}?offset={everything['dlsn']}").json() == []
    gateway.ask("POST", path, b"4", content_type=JSON)
    assert gateway.ask("GET", f"{path}?offset={everything['dlsn']}").json() == [4]
    closed = gateway.ask("POST", path, stream_closed="true")
    assert gateway.ask("POST", f"{path}/.truncate", b'{"before": {"offset": "now"}}').status == 200
    assert gateway.ask("GET", f"{path}?offset={closed.next}").headers["stream-closed"] == "true"


def test_positions_by_transaction_id(gateway: ServedGateway, served: Served) -> None:
    path = "/v1/stream/by-txid"
    settings = {"duramen.txid": "application", "duramen.stream.content.type": JSON}
    admin = AdminClient({"bootstrap.servers": served.bootstrap, "log_level": 0})
    (made,) = admin.create_topics([NewTopic("by-txid", 1, 1, config=settings)]).values()
    made.result(30)
    with Cluster(served.bootstrap) as cluster:
        tp = TopicPartition("by-txid", 0)
        cluster.produce(tp, build_batch([(None, b"%d" % txid, (), txid) for txid in (10, 20, 20, 30)]))
    found = gateway.ask("GET", f"{path}/.position?txid=15").json()
    assert (found["offset"], found["txid"]) == (1, 20)
    assert gateway.ask("GET", f"{path}?offset={found['dlsn']}").json() == [20, 20, 30]
    assert gateway.ask("POST", f"{path}/.truncate", b'{"before": {"txid": 21}}').json()["txid"] == 30
    assert gateway.ask("GET", path).json() == [30]
    assert gateway.ask("GET", f"{path}/.position?time=15").status == 400


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_page_does_what_it_says(gateway: ServedGateway) -> None:
    page = (Path(__file__).parents[2] / "docs/streams.md").read_text()
    blocks = [block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "curl" in block]
    script = "\n".join(blocks).replace("http://127.0.0.1:8082", gateway.url).replace("curl ", "curl -sS ")
    script = re.sub(r"\?offset=now&live=long-poll", "?offset=-1&live=long-poll", script)
    ran = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, timeout=30, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert '[{"id": 9007199254740993, "price": 1.10},{"id": 2},{"id": 3}]' in ran.stdout
    assert "event: control" in ran.stdout
    assert "stream-advanced-to: 0000" in ran.stdout
    path = "/v1/stream/finance/orders"
    assert [each["id"] for each in gateway.ask("GET", path).json()] == [2, 3, 4, 5]


def test_kills_between_a_writer_and_a_reader(tmp_path: Path) -> None:
    node = Served(tmp_path)
    node.start()
    gateway = ServedGateway(tmp_path, node.bootstrap)
    gateway.start()
    path = "/v1/stream/killed"
    seen: list[int] = []

    def write(number: int) -> int:
        who = {"producer_id": "w", "producer_epoch": "0", "producer_seq": str(number)}
        return gateway.ask("POST", path, b"%d" % number, content_type=JSON, **who).status

    def take(events: Iterator[tuple[str, str]], until: int) -> str:
        position = ""
        while len(seen) < until:
            name, values = next(events)
            assert name == "data"
            seen.extend(json.loads(values))
            position = json.loads(next(events)[1])["streamNextOffset"]
        return position

    try:
        gateway.ask("PUT", path, content_type=JSON)
        with gateway.events(f"{path}?offset=-1&live=sse") as events:
            assert next(events)[0] == "control"
            assert [write(number) for number in range(5)] == [200] * 5
            node.kill()
            back = threading.Timer(0.3, node.start)
            back.start()
            assert write(5) in (200, 204)  # it waited for the node
            back.join()
            position = take(events, 6)  # on the same connection
            gateway.kill()
        gateway.start()
        assert [write(number) for number in (5, 6)] == [204, 200]
        with gateway.events(f"{path}?offset={position}&live=sse") as events:
            take(events, 7)
        assert seen == gateway.ask("GET", path).json() == list(range(7))
    finally:
        gateway.kill()
        node.kill()
