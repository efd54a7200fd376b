"""Records to topics through a gateway: where they go, what is refused, and a node that is killed under many writers."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.worlds.served_gateway import ServedGateway, answer_from, head_from, report_lines, request
from tests.worlds.served_node import Served
from tests.worlds.topic_contents import create, stored

from duramen.wire.key_partitions import partition_for

JSON = "application/json"
SECONDS_MAX = 60


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not there():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_records_of_a_topic(served: Served, tmp_path: Path) -> None:
    create(served.bootstrap, "keyed", 3)
    create(served.bootstrap, "small", 1, max_message_bytes="200")
    gateway = ServedGateway(tmp_path, served.bootstrap)
    gateway.start()
    try:
        body = {"records": [{"key": f"k{number}", "value": {"n": number}} for number in range(20)]}
        answer = gateway.ask("POST", "/v1/topics/keyed/records", json.dumps(body).encode(), content_type=JSON)
        assert answer.status == 200, answer.body
        receipts = answer.json()["records"]
        for number, receipt in enumerate(receipts):
            assert receipt["partition"] == partition_for(b"k%d" % number, 3)
            value = b'{"n": %d}' % number
            there = stored(served.bootstrap, "keyed", receipt["partition"])[receipt["offset"]]
            assert there == (b"k%d" % number, value)
        one = gateway.ask("POST", "/v1/topics/keyed/records", b'{"value": 1, "partition": 2}', content_type=JSON)
        assert one.json()["records"][0]["partition"] == 2
        some = b'{"records": [{"value": 1, "partition": 3}, {"value": 2, "partition": 0}]}'
        mixed = gateway.ask("POST", "/v1/topics/keyed/records", some, content_type=JSON)
        assert mixed.status == 207
        assert mixed.json()["records"][0]["error"]["type"] == "urn:duramen:bad-request"
        assert mixed.json()["records"][1]["partition"] == 0
        large = gateway.ask("POST", "/v1/topics/small/records", b'{"value": "%s"}' % (b"x" * 300), content_type=JSON)
        assert (large.status, large.json()["type"]) == (413, "urn:duramen:record-too-large")
        several = b'{"records": [%s]}' % b", ".join([b'{"value": "%s"}' % (b"x" * size) for size in (50, 60, 300, 70)])
        split = gateway.ask("POST", "/v1/topics/small/records", several, content_type=JSON)
        assert [each.get("offset") for each in split.json()["records"]] == [0, 1, None, 2]
        assert gateway.ask("POST", "/v1/topics/none/records", b"{}", content_type=JSON).status == 404
        assert gateway.ask("POST", "/v1/topics/keyed/records", b"{}", content_type="text/plain").status == 415
        assert gateway.ask("POST", "/v1/topics/keyed/records", b"{", content_type=JSON).status == 400
    finally:
        gateway.kill()


def test_lines_are_answered_while_they_come(served: Served, tmp_path: Path) -> None:
    create(served.bootstrap, "lines", 1)
    gateway = ServedGateway(tmp_path, served.bootstrap, {"gateway.body.max.bytes": "2000"})
    gateway.start()
    first, second = b'{"value": 0}\n\n{"value": 1}\nnonsense\n{"val', b'ue": 2}\r\n{"value": 3}'
    try:
        with gateway.connect() as connection, connection.makefile("rb") as file:
            head = request("POST", "/v1/topics/lines/records", content_type="application/x-ndjson")
            length = b"content-length: %d" % len(first + second)
            connection.sendall(head.replace(b"content-length: 0", length) + first)
            assert head_from(file)[0] == 200
            lines = report_lines(file)
            early = [next(lines) for _ in range(3)]
            assert [each["line"] for each in early] == [0, 2, 3], "as they are in the body"
            assert [each["offset"] for each in early[:2]] == [0, 1]
            assert early[2]["error"]["status"] == 400
            connection.sendall(second)
            assert [(each["line"], each["offset"]) for each in lines] == [(4, 2), (5, 3)]
            connection.sendall(request("GET", "/healthz"))  # and the connection goes on
            assert answer_from(connection).status == 200
        assert [value for _, value in stored(served.bootstrap, "lines", 0)] == [b"0", b"1", b"2", b"3"]
        endless = b'{"value": 4}\n{"value": "' + b"x" * 2001
        answer = gateway.ask("POST", "/v1/topics/lines/records", endless, content_type="application/x-ndjson")
        assert json.loads(answer.body.splitlines()[-1])["error"]["status"] == 413
        with gateway.connect() as connection, connection.makefile("rb") as file:  # a client that leaves costs nothing
            connection.sendall(head.replace(b"content-length: 0", length) + first)
            assert head_from(file)[0] == 200
        unanswered = b"duramen_gateway_unanswered_write_bytes 0.0"
        until(lambda: unanswered in gateway.ask("GET", "/metrics").body.splitlines())
    finally:
        gateway.kill()


def test_a_node_is_killed_under_many_writers(tmp_path: Path) -> None:
    node = Served(tmp_path)
    node.start()
    gateway = ServedGateway(tmp_path, node.bootstrap)
    gateway.start()
    create(node.bootstrap, "counted", 2)
    gateway.ask("PUT", "/v1/stream/followed", content_type=JSON)
    acknowledged: list[tuple[int, int]] = []
    unknown: list[tuple[int, int]] = []
    positions: dict[tuple[int, int], str] = {}
    stop = threading.Event()

    def write(writer: int) -> None:
        number = 0
        with gateway.connect() as connection:
            while not stop.is_set():
                if writer % 2:
                    path, body = "/v1/stream/followed", b"[[%d, %d]]" % (writer, number)
                else:
                    path, body = (
                        "/v1/topics/counted/records",
                        b'{"key": "%d", "value": [%d, %d]}'
                        % (
                            writer,
                            writer,
                            number,
                        ),
                    )
                connection.sendall(request("POST", path, body, content_type=JSON))
                answer = answer_from(connection)
                (acknowledged if answer.status in (200, 204) else unknown).append((writer, number))
                if answer.status == 204:
                    positions[writer, number] = answer.next
                number += 1

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(16)]
    try:
        for thread in writers:
            thread.start()
        for round_ in range(1, 4):
            until(lambda: len(acknowledged) >= round_ * 100)  # noqa: B023
            if round_ < 3:
                node.kill()
                node.start()
        stop.set()
        for thread in writers:
            thread.join()
        places = (("counted", 0), ("counted", 1), ("followed", 0))
        found: list[tuple[int, int]] = [
            tuple(json.loads(value or b"")) for place in places for _, value in stored(node.bootstrap, *place)
        ]
        counts = Counter(found)
        assert not unknown
        assert {*acknowledged} == {*counts}
        assert set(counts.values()) == {1}
        for writer in range(16):
            numbers = [number for who, number in found if who == writer]
            assert numbers == sorted(numbers)
        followed = gateway.ask("GET", "/v1/stream/followed").json()
        for place, record in list(enumerate(followed))[::10]:  # a position may lie in the middle of a batch
            rest = gateway.ask("GET", f"/v1/stream/followed?offset={positions[tuple(record)]}")
            assert rest.json() == followed[place + 1 :]
        batches_written, records_written = (
            float(line.split()[1])
            for name in (b"batches", b"records")
            for line in gateway.ask("GET", "/metrics").body.splitlines()
            if line.startswith(b"duramen_gateway_%s_written_total " % name)
        )
        assert records_written == len(found)
        assert batches_written < records_written
    finally:
        stop.set()
        gateway.kill()
        node.kill()
