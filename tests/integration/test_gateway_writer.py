"""The exclusive writer of a stream over HTTP: through two gateways, and over a node that is killed; transaction ids."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from tests.worlds.served_gateway import HttpAnswer, ServedGateway
from tests.worlds.served_node import Served

JSON = "application/json"
NDJSON = "application/x-ndjson"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("written"))
    found.start()
    yield found
    found.kill()


@pytest.fixture(scope="module")
def gateways(node: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServedGateway]]:
    found = [ServedGateway(tmp_path_factory.mktemp("gateway"), node.bootstrap) for _ in range(2)]
    for gateway in found:
        gateway.start()
    yield found
    for gateway in found:
        gateway.kill()


def opened(gateway: ServedGateway, path: str, name: str = "w") -> str:
    """The token of a writer that was opened now."""
    answer = gateway.ask("PUT", f"{path}/.writer", b'{"name": "%s"}' % name.encode())
    assert answer.status == 200, answer.body
    return str(answer.json()["writer"])


def write(gateway: ServedGateway, path: str, writer: str, seq: int, body: bytes, **headers: str) -> HttpAnswer:
    given = {"content_type": JSON, "stream_writer": writer, "stream_writer_seq": str(seq), **headers}
    return gateway.ask("POST", path, body, **given)


def test_the_writer_writes_alone(gateways: list[ServedGateway]) -> None:
    first, second = gateways
    path = "/v1/stream/owned"
    assert first.ask("PUT", path, content_type=JSON, stream_exclusive="true").status == 201
    assert first.ask("PUT", path, content_type=JSON, stream_exclusive="true").status == 200
    assert first.ask("PUT", path, content_type=JSON).status == 200
    assert first.ask("PUT", path, content_type=JSON, stream_exclusive="false").status == 409
    assert first.ask("HEAD", path).headers["stream-exclusive"] == "true"
    assert first.ask("PUT", "/v1/stream/with-body", b"1", stream_exclusive="true").status == 400
    nobody = first.ask("POST", path, b"1", content_type=JSON)
    assert (nobody.status, nobody.json()["type"]) == (403, "urn:duramen:writer-fenced")
    answer = first.ask("PUT", f"{path}/.writer", '{"name": "Grüße"}'.encode())
    assert answer.json() == {
        "writer": answer.headers["stream-writer"],
        "name": "Grüße",
        "next_seq": 0,
        "dlsn": answer.next,
        "epoch": 0,
    }
    one = answer.headers["stream-writer"]
    stored = write(second, path, one, 0, b"[1, 2]", stream_expected_offset=answer.next)
    assert (stored.status, stored.headers["stream-writer-next-seq"]) == (200, "2")
    again = write(first, path, one, 0, b"[1, 2]", stream_expected_offset=answer.next)
    assert (again.status, again.headers["stream-writer-next-seq"]) == (204, "2")
    assert again.headers["stream-receipt"] == stored.headers["stream-receipt"]
    gap = write(first, path, one, 3, b"4")
    assert (gap.status, gap.headers["stream-writer-next-seq"]) == (409, "2")
    for number in range(2, 9):
        assert write(gateways[number % 2], path, one, number, b"%d" % (number + 1)).status == 200
    old = write(first, path, one, 0, b"[1, 2]")  # it is no longer remembered where it is
    assert (old.status, old.headers["stream-writer-next-seq"]) == (204, "9")
    assert "stream-receipt" not in old.headers
    assert write(first, path, one, 8, b"[9, 10]").status == 409
    other = str(int(one) + 1_000)  # ids are given upwards: no writer has it
    for refused in (
        first.ask("POST", path, b"1", content_type=JSON),
        first.ask("POST", path, stream_closed="true"),
        first.ask("POST", path, b"1", content_type=JSON, producer_id="p", producer_epoch="0", producer_seq="0"),
        first.ask("POST", path, stream_closed="true", producer_id="p", producer_epoch="0", producer_seq="0"),
        write(first, path, other, 0, b"1"),
        first.ask("DELETE", f"{path}/.writer", stream_writer=other),
    ):
        assert refused.status == 403
        assert refused.json()["type"] == "urn:duramen:writer-fenced"
        assert "Grüße" in refused.json()["detail"]
    held = first.ask("GET", f"{path}/.writer").json()["exclusive"]
    assert (held["name"], held["since"] >= 0) == ("Grüße", True)
    two = opened(second, path)
    assert write(first, path, one, 9, b"0").status == 403
    assert write(first, path, one, 0, b"[1, 2]").status == 403
    assert first.ask("POST", path, stream_closed="true", stream_writer=one).status == 403
    assert write(first, path, two, 0, b"10").status == 200
    assert first.ask("DELETE", f"{path}/.writer", stream_writer=one).status == 403
    assert [first.ask("DELETE", f"{path}/.writer", stream_writer=two).status for _ in range(2)] == [204, 204]
    assert first.ask("GET", f"{path}/.writer").json() == {"exclusive": None}
    refused = write(first, path, two, 1, b"0")
    assert (refused.status, "no writer has opened it" in refused.json()["detail"]) == (403, True)
    three = opened(first, path)
    assert first.ask("POST", path, stream_closed="true", stream_writer=three).status == 204
    assert first.ask("PUT", f"{path}/.writer").status == 409
    assert first.ask("GET", path).json() == list(range(1, 11))


@pytest.mark.parametrize(
    ("method", "end", "body", "headers", "field"),
    [
        ("PUT", "/.writer", b'{"name": ""}', {}, "name"),
        ("PUT", "/.writer", b'{"nam": "x"}', {}, "nam"),
        ("PUT", "/.writer", b"[", {}, "body"),
        ("DELETE", "/.writer", b"", {}, "Stream-Writer"),
        ("DELETE", "/.writer", b"", {"stream_writer": "x"}, "stream-writer"),
        ("POST", "", b"1", {"stream_writer": "7"}, "stream-writer-seq"),
        ("POST", "", b"1", {"stream_writer_seq": "7"}, "stream-writer-seq"),
        ("POST", "", b"1", {"stream_writer": "7", "stream_writer_seq": "-1"}, "stream-writer-seq"),
        ("POST", "", b"1", {"stream_writer": "7", "stream_writer_seq": "0", "producer_id": "p"}, "stream-writer"),
        ("PUT", "", b"", {"stream_exclusive": "yes"}, "Stream-Exclusive"),
    ],
)
def test_what_is_no_writer(
    gateways: list[ServedGateway], method: str, end: str, body: bytes, headers: dict[str, str], field: str
) -> None:
    path = "/v1/stream/asked"
    gateways[0].ask("PUT", path, content_type=JSON, stream_exclusive="true")
    refused = gateways[0].ask(method, path + end, body, content_type=JSON, **headers)
    assert (refused.status, refused.json()["detail"].split(":")[0]) == (400, field)


def test_a_stream_that_is_nobodys(gateways: list[ServedGateway]) -> None:
    path = "/v1/stream/open-to-all"
    assert gateways[0].ask("PUT", f"{path}/.writer").status == 404
    gateways[0].ask("PUT", path, content_type=JSON)
    assert gateways[0].ask("PUT", f"{path}/.writer").status == 400
    assert write(gateways[0], path, "7", 0, b"1").status == 400


def test_a_node_is_killed_between_opening_and_append(node: Served, gateways: list[ServedGateway]) -> None:
    first, second = gateways
    path = "/v1/stream/killed-between"
    first.ask("PUT", path, content_type=JSON, stream_exclusive="true")
    old = opened(first, path, "old")
    assert write(first, path, old, 0, b"1").status == 200
    new = opened(first, path, "new")
    node.kill()
    first.kill()
    node.start()
    assert write(second, path, old, 1, b"0").status == 403
    assert write(second, path, new, 1, b"0").status == 409  # it begins with 0
    assert write(second, path, new, 0, b"2").status == 200
    node.kill()
    node.start()
    first.start()
    assert write(first, path, new, 0, b"2").status == 204
    assert write(first, path, new, 1, b"3").status == 200
    assert first.ask("GET", path).json() == [1, 2, 3]


def test_two_writers_race_over_two_gateways(gateways: list[ServedGateway]) -> None:
    """Each opens, writes as long as it is let, and opens again until one was deposed while it wrote: whatever is
    acknowledged is there once, and nothing of a deposed writer behind the opening that deposed it."""
    path = "/v1/stream/raced"
    gateways[0].ask("PUT", path, content_type=JSON, stream_exclusive="true")
    acknowledged: list[tuple[str, int, str]] = []
    fenced: list[str] = []
    together = threading.Barrier(2)
    openings: list[tuple[str, str]] = []

    def race(gateway: ServedGateway, name: str) -> None:
        together.wait()
        while len(openings) < 12 or not fenced:
            answer = gateway.ask("PUT", f"{path}/.writer", b'{"name": "%s"}' % name.encode())
            writer = answer.headers["stream-writer"]
            openings.append((answer.next, writer))
            for seq in range(12):
                stored = write(gateway, path, writer, seq, b'"%s-%d"' % (writer.encode(), seq))
                if stored.status == 403:
                    fenced.append(writer)
                    break
                assert stored.status == 200, stored.body
                acknowledged.append((stored.next, seq, writer))

    racers = [threading.Thread(target=race, args=each) for each in zip(gateways, ("a", "b"), strict=True)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    values = gateways[0].ask("GET", path).json()
    assert len(values) == len(set(values))
    assert {f"{writer}-{seq}" for _, seq, writer in acknowledged} <= set(values)
    places = sorted([(at, writer, True) for at, writer in openings] + [(at, who, False) for at, _, who in acknowledged])
    holder = ""
    for _, writer, is_opening in places:
        if is_opening:
            holder = writer
        assert writer == holder
    assert len({writer for _, writer in openings}) == len(openings) >= 12


def txid(answer: HttpAnswer) -> int:
    """That of the receipt."""
    return int(json.loads(answer.headers["stream-receipt"])["txid"])


def test_transaction_ids_of_the_application(gateways: list[ServedGateway]) -> None:
    gateway = gateways[0]
    path = "/v1/stream/numbered"
    who = {"producer_id": "n", "producer_epoch": "0"}
    assert gateway.ask("PUT", path, b"1", content_type=JSON, stream_txid="application").status == 400
    assert gateway.ask("PUT", path, content_type=JSON, stream_txid="application").status == 201
    assert gateway.ask("PUT", path, content_type=JSON, stream_txid="assigned").status == 409
    assert gateway.ask("HEAD", path).headers["stream-txid"] == "application"
    for given in ({}, {"stream_txid": "0"}, {"stream_txid": str(2**63)}):
        assert gateway.ask("POST", path, b"1", content_type=JSON, **given).status == 400

    def post(number: int, body: bytes, **headers: str) -> HttpAnswer:
        return gateway.ask("POST", path, body, content_type=JSON, stream_txid=str(number), **headers)

    first = post(10, b"[1, 2]")
    assert (first.status, txid(first)) == (204, 10)
    assert txid(post(10, b"3")) == 10
    assert txid(post(12, b"4", producer_seq="0", **who)) == 12
    assert txid(post(20, b"5", stream_expected_offset=gateway.ask("HEAD", path).next)) == 20
    again = post(12, b"4", producer_seq="0", **who)
    assert (again.status, txid(again)) == (204, 12)
    for headers in ({}, {"producer_seq": "1", **who}, {"stream_seq": "a"}):
        back = post(19, b"0", **headers)
        assert (back.status, back.headers["stream-last-txid"]) == (409, "20")
        assert back.json()["type"] == "urn:duramen:txid-out-of-order"
    assert gateway.ask("GET", path).json() == [1, 2, 3, 4, 5]
    found = gateway.ask("GET", f"{path}/.position?txid=11").json()
    assert (found["offset"], found["txid"]) == (3, 12)
    record = gateway.ask("POST", "/v1/topics/numbered/records", b'{"value": 6, "timestamp": 21}', content_type=JSON)
    assert record.json()["records"][0]["txid"] == 21 if "records" in record.json() else record.json()["txid"] == 21


def test_the_clock_is_no_transaction_id_of_the_application(gateways: list[ServedGateway]) -> None:
    gateway = gateways[0]
    path = "/v1/stream/unclocked"
    settings = '{"duramen.txid": "application"}'
    filled = gateway.ask("PUT", path, b"1", content_type=JSON, stream_settings=settings)
    assert (filled.status, filled.json()["detail"].split(":")[0]) == (400, "Stream-Txid")
    (cluster,) = gateway.ask("GET", "/v3/clusters").json()["data"]
    v2, v3 = "application/vnd.kafka.json.v2+json", f"/v3/clusters/{cluster['cluster_id']}/topics/unclocked/records"
    records = "/v1/topics/unclocked/records"
    for where, body, kind, named in (
        (f"{path}?format=ndjson", b'{"value": 9}', NDJSON, "line 1.timestamp: it is missing"),
        (records, b'{"value": 1}', JSON, "timestamp: it is missing"),
        (records, b'{"records": [{"value": 1, "timestamp": 1}, {"value": 1}]}', JSON, "records[1].timestamp"),
        ("/topics/unclocked", b'{"records": [{"value": 1}]}', v2, "records[0].timestamp: it is missing"),
        (v3, b'{"value": {"type": "JSON", "data": 1}}', JSON, "timestamp: it is missing"),
    ):
        refused = gateway.ask("POST", where, body, content_type=kind)
        told = refused.json()
        assert refused.status == 400, refused.body
        assert named in told.get("detail", told.get("message")), refused.body
    lines = gateway.ask("POST", records, b'{"value": 1}', content_type=NDJSON)
    assert b"record.timestamp: it is missing" in lines.body
    first = gateway.ask("POST", f"{path}?format=ndjson", b'{"value": 9, "timestamp": 5}', content_type=NDJSON)
    assert (txid(first), gateway.ask("HEAD", path).headers["stream-last-txid"]) == (5, "5")


def test_transaction_ids_that_are_assigned(gateways: list[ServedGateway]) -> None:
    gateway = gateways[0]
    path = "/v1/stream/stamped"
    made = gateway.ask("PUT", path, b"1", content_type=JSON, stream_txid="assigned")
    assert made.status == 201
    writer = {"content_type": JSON, "producer_id": "s", "producer_epoch": "0", "producer_seq": "0"}
    stored = gateway.ask("POST", path, b"2", **writer)
    plain = gateway.ask("POST", path, b"3", content_type=JSON)
    again = gateway.ask("POST", path, b"2", **writer)
    assert txid(made) <= txid(stored) == txid(again) <= txid(plain)
    assert gateway.ask("POST", path, b"4", content_type=JSON, stream_txid="7").status == 400
    found = gateway.ask("GET", f"{path}/.position?txid={txid(stored)}").json()
    assert found["txid"] == txid(stored)


def test_an_exclusive_writer_with_transaction_ids(gateways: list[ServedGateway]) -> None:
    path = "/v1/stream/owned-and-numbered"
    gateways[0].ask("PUT", path, content_type=JSON, stream_exclusive="true", stream_txid="application")
    assert gateways[0].ask("PUT", f"{path}/.writer").json()["last_txid"] == 0
    assert write(gateways[0], path, opened(gateways[0], path), 0, b"1", stream_txid="7").status == 200
    assert gateways[0].ask("PUT", f"{path}/.writer").json()["last_txid"] == 7
