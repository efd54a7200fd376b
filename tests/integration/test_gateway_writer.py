"""The exclusive writer of a stream over HTTP: through two gateways, and over a node that is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.worlds.served_gateway import HttpAnswer, ServedGateway
from tests.worlds.served_node import Served

JSON = "application/json"


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
    for refused in (
        first.ask("POST", path, b"1", content_type=JSON),
        first.ask("POST", path, stream_closed="true"),
        first.ask("POST", path, b"1", content_type=JSON, producer_id="p", producer_epoch="0", producer_seq="0"),
        first.ask("POST", path, stream_closed="true", producer_id="p", producer_epoch="0", producer_seq="0"),
        write(first, path, "7", 0, b"1"),
        first.ask("DELETE", f"{path}/.writer", stream_writer="7"),
    ):
        assert refused.status == 403
        assert refused.json()["type"] == "urn:duramen:writer-fenced"
        assert "Grüße" in refused.json()["detail"]
    two = opened(second, path)
    assert write(first, path, one, 9, b"0").status == 403
    assert write(first, path, one, 0, b"[1, 2]").status == 403
    assert first.ask("POST", path, stream_closed="true", stream_writer=one).status == 403
    assert write(first, path, two, 0, b"10").status == 200
    assert first.ask("DELETE", f"{path}/.writer", stream_writer=one).status == 403
    assert [first.ask("DELETE", f"{path}/.writer", stream_writer=two).status for _ in range(2)] == [204, 204]
    refused = write(first, path, two, 1, b"0")
    assert (refused.status, "no writer is open" in refused.json()["detail"]) == (403, True)
    three = opened(first, path)
    assert first.ask("POST", path, stream_closed="true", stream_writer=three).status == 204
    assert first.ask("PUT", f"{path}/.writer").status == 409
    assert first.ask("GET", path).json() == list(range(1, 11))


@pytest.mark.parametrize(
    ("method", "end", "body", "headers", "field"),
    [
        ("PUT", "/.writer", b'{"name": ""}', {}, "body"),
        ("PUT", "/.writer", b'{"nam": "x"}', {}, "body"),
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
    """Each opens, writes as long as it is let, and opens again: whatever is acknowledged is there once, and nothing of
    a deposed writer behind the opening that deposed it."""
    path = "/v1/stream/raced"
    gateways[0].ask("PUT", path, content_type=JSON, stream_exclusive="true")
    acknowledged: list[tuple[str, int, str]] = []
    fenced: list[str] = []
    together = threading.Barrier(2)
    openings: list[tuple[str, str]] = []

    def race(gateway: ServedGateway, name: str) -> None:
        together.wait()
        for _ in range(6):
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
    assert len(openings) == 12
    assert fenced, "they did not meet"
