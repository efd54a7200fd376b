"""Topics with several partitions at a real gateway: pages, events and WebSockets with one position for all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.served_gateway import HttpAnswer, ServedGateway
from tests.worlds.served_node import Served
from websockets.sync.client import connect

PATH = "/v1/topics/several/records"
JSON = "application/json"


@pytest.fixture(scope="module")
def gateway(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    limits = {"gateway.reader.max.bytes": "1024", "gateway.long.poll.ms": "400"}
    found = ServedGateway(tmp_path_factory.mktemp("topics"), served.bootstrap, limits)
    found.start()
    admin = AdminClient({"bootstrap.servers": served.bootstrap})
    admin.create_topics([NewTopic("several", 3, 1)])["several"].result()
    write(found, range(60))
    yield found
    found.kill()


def write(gateway: ServedGateway, numbers: range) -> None:
    records = [
        {
            "key": f"k{n % 5}",
            "value": {"n": n, "big": 9007199254740993},
            "partition": n % 3,
            "headers": {"even": str(n % 2 == 0)},
        }
        for n in numbers
    ]
    assert gateway.ask("POST", PATH, json.dumps({"records": records}).encode(), content_type=JSON).status == 200


def found_in(lines: bytes | str) -> list[tuple[int, int]]:
    """(partition, number) of each."""
    return [(each["partition"], each["value"]["n"]) for each in map(json.loads, lines.splitlines())]


def all_pages(
    gateway: ServedGateway, query: str = "", position: str = "-1"
) -> tuple[list[tuple[int, int]], HttpAnswer]:
    got: list[tuple[int, int]] = []
    while True:
        page = gateway.ask("GET", f"{PATH}?offset={position}{query}")
        assert page.status == 200, page
        got += found_in(page.body)
        position = page.next
        if page.headers.get("stream-up-to-date"):
            return got, page


def check_order(got: list[tuple[int, int]], numbers: range) -> None:
    assert sorted(got) == sorted((n % 3, n) for n in numbers)
    for partition in range(3):
        mine = [n for at, n in got if at == partition]
        assert mine == sorted(mine)


def test_a_page_has_what_was_written_before_it_was_asked_for(gateway: ServedGateway) -> None:
    """While others follow the topic, too."""
    with gateway.connect() as following, following.makefile("rb") as file:
        following.sendall(f"GET {PATH}?offset=now&live=sse HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        while b'"upToDate":true' not in file.readline():
            pass
        end = all_pages(gateway)[1].next
        for number in range(200, 230):
            write(gateway, range(number, number + 1))
            got, page = all_pages(gateway, position=end)
            assert got == [(number % 3, number)]
            end = page.next


def test_pages_and_filters(gateway: ServedGateway) -> None:
    got, last = all_pages(gateway)
    check_order([each for each in got if each[1] < 60], range(60))
    assert last.headers["content-type"] == "application/x-ndjson"
    assert gateway.ask("GET", f"{PATH}?offset={last.next}").body == b""
    seen = gateway.ask("GET", PATH)
    assert b'"big": 9007199254740993' in seen.body
    assert gateway.ask("GET", PATH, if_none_match=seen.headers["etag"]).status == 304
    one, _ = all_pages(gateway, "&partition=1")
    assert one[:20] == [(1, n) for n in range(60) if n % 3 == 1]
    keyed, end = all_pages(gateway, "&key=k3&header.even=True")
    assert sorted(n for _, n in keyed if n < 60) == [n for n in range(60) if n % 5 == 3 and n % 2 == 0]
    assert end.next == last.next
    waited = gateway.ask("GET", f"{PATH}?offset=now&live=long-poll")
    assert (waited.status, waited.next) == (204, last.next)
    for wrong in (
        "partition=3",
        "partition=x",
        "offset=here",
        "live=yes",
        "key=a&key=b",
        "format=xml",
        "encoding=avro",
    ):
        assert gateway.ask("GET", f"{PATH}?{wrong}").status == 400, wrong
    assert gateway.ask("GET", "/v1/topics/nothing/records").status == 404


def test_events_go_on_behind_their_id(gateway: ServedGateway) -> None:
    start = 60
    behind = gateway.ask("GET", f"{PATH}?offset=now").next
    got: list[tuple[int, int]] = []
    for round_ in range(3):
        with gateway.connect() as connection:
            head = f"GET {PATH}?offset=-1&live=sse HTTP/1.1\r\nhost: localhost\r\nlast-event-id: {behind}\r\n\r\n"
            connection.sendall(head.encode())
            with connection.makefile("rb") as file:
                if round_ == 0:
                    while b'"upToDate":true' not in file.readline():
                        pass
                write(gateway, range(start, start + 6))
                start += 6
                while len(got) < start - 60:
                    block = b""
                    while not block.endswith(b"\n\n"):
                        block += file.readline()
                    if b"event: data" in block:  # and cut before its control event comes
                        text = block[block.index(b"event: data") :].decode()
                        got += found_in("\n".join(re.findall(r"^data:(.*)$", text, re.MULTILINE)))
                        behind = re.findall(r"^id: (\S+)$", text, re.MULTILINE)[0]
    check_order(got, range(60, start))


def test_a_socket(gateway: ServedGateway) -> None:
    end = gateway.ask("GET", f"{PATH}?offset=now").next
    url = f"ws://127.0.0.1:{gateway.port}/v1/topics/several/.socket"
    got: list[tuple[int, int]] = []

    def said(socket: Any) -> Any:
        message = json.loads(socket.recv(10))
        got.extend((each["partition"], each["value"]["n"]) for each in message["records"])
        return message

    with connect(url, compression=None) as socket:
        socket.send(json.dumps({"from": end, "credits": 4, "headers": {"even": "True"}}))
        assert said(socket)["records"] == []
        write(gateway, range(100, 112))
        while len(got) < 4:
            message = said(socket)
        assert message["credits"] == 0
    with connect(url, compression=None) as socket:
        socket.send(json.dumps({"from": message["position"], "headers": {"even": "True"}}))
        while len(got) < 6:
            said(socket)
    check_order([each for each in got if each[1] % 2 == 0], range(100, 112, 2))
    assert len(got) == 6
    with connect(url, compression=None) as socket:
        socket.send(json.dumps({"from": "-1", "partition": 7}))
        assert "partition" in json.loads(socket.recv(10))["problem"]["detail"]
