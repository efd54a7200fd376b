"""Reads of a gateway in every form, of records that Kafka clients wrote with keys, headers and transaction ids."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.served_gateway import ServedGateway
from tests.worlds.served_node import Served

from duramen.client import Cluster
from duramen.model import TopicPartition
from duramen.wire.batch import NewRecord, build_batch

LIMITS = {"gateway.reader.max.bytes": "1024", "gateway.long.poll.ms": "400", "gateway.sse.ms": "3000"}


@pytest.fixture(scope="module")
def gateway(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    found = ServedGateway(tmp_path_factory.mktemp("forms"), served.bootstrap, LIMITS)
    found.start()
    yield found
    found.kill()


def make_topic(served: Served, name: str, partitions: int = 1, **settings: str) -> None:
    config = {key.replace("_", "."): value for key, value in settings.items()}
    admin = AdminClient({"bootstrap.servers": served.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result()


def produce(served: Served, topic: str, *records: NewRecord, partition: int = 0) -> None:
    with Cluster(served.bootstrap) as cluster:
        cluster.produce(TopicPartition(topic, partition), build_batch(list(records)))


def test_ndjson_has_all_of_a_record(gateway: ServedGateway, served: Served) -> None:
    path = "/v1/stream/forms/plain"
    make_topic(served, "forms.plain")
    records: list[NewRecord] = [
        (b"eu", b'{"id": 9007199254740993,\n "d": 1.10}', [(b"from", b"shop"), (b"raw", b"\xff"), (b"none", None)], 7),
        (b"\xfe", b"\x00", (), 8),
        (None, None, (), 9),
    ]
    produce(served, "forms.plain", *records)
    whole = gateway.ask("GET", f"{path}?format=ndjson")
    assert whole.headers["content-type"] == "application/x-ndjson"
    assert whole.headers["stream-up-to-date"] == "true"
    assert b'"value":{"id": 9007199254740993,  "d": 1.10}' in whole.body
    lines = [json.loads(line) for line in whole.body.splitlines()]
    assert [line["timestamp"] for line in lines] == [7, 8, 9]
    assert [(line["offset"], line["dlsn"][-8:]) for line in lines] == [(n, f"{n:08x}") for n in range(3)]
    assert lines[0]["headers"][:2] == [
        {"name": "from", "value": "shop"},
        {"name": "raw", "value": "/w==", "encoding": "base64"},
    ]
    assert (lines[1]["key"], lines[1]["key_encoding"], lines[1]["value_encoding"]) == ("/g==", "base64", "base64")
    assert (lines[2]["key"], lines[2]["value"]) == (None, None)
    exact = [json.loads(line) for line in gateway.ask("GET", f"{path}?format=ndjson&encoding=base64").body.splitlines()]
    assert [
        tuple(None if line[field] is None else base64.b64decode(line[field]) for field in ("key", "value"))
        for line in exact
    ] == [record[:2] for record in records]
    inside = gateway.ask("GET", f"{path}?format=ndjson&offset={lines[1]['dlsn']}")
    assert [json.loads(line)["offset"] for line in inside.body.splitlines()] == [1, 2]
    assert gateway.ask("GET", f"{path}?format=ndjson", if_none_match=whole.headers["etag"]).status == 304
    assert gateway.ask("GET", path).headers["etag"] != whole.headers["etag"]
    for wrong in ("format=xml", "format=ndjson&encoding=avro", "encoding=json"):
        assert gateway.ask("GET", f"{path}?{wrong}").status == 400


def test_ndjson_follows(gateway: ServedGateway, served: Served) -> None:
    path = "/v1/stream/forms/txid"
    make_topic(served, "forms.txid", duramen_txid="application")
    produce(served, "forms.txid", (b"a", b"1", (), 70), (b"b", b"2", (), 71))
    with gateway.events(f"{path}?offset=-1&live=sse&format=ndjson") as events:
        (name, data), (control, _) = next(events), next(events)
        assert (name, control) == ("data", "control")
        got = [json.loads(line) for line in data.split("\n")]
        assert [(each["txid"], "timestamp" in each) for each in got] == [(70, False), (71, False)]
        produce(served, "forms.txid", (b"c", b"3", (), 72))
        name, data = next(events)
        assert (name, json.loads(data)["key"], json.loads(data)["txid"]) == ("data", "c", 72)
        behind = json.loads(next(events)[1])["streamNextOffset"]
    waited = gateway.ask("GET", f"{path}?offset=now&live=long-poll&format=ndjson")
    assert (waited.status, waited.next) == (204, behind)
    polled = gateway.ask("GET", f"{path}?offset={json.loads(data)['dlsn']}&live=long-poll&format=ndjson")
    assert json.loads(polled.body)["value"] == 3


def test_filters_of_a_stream(gateway: ServedGateway, served: Served) -> None:
    path = "/v1/stream/forms/filtered"
    make_topic(served, "forms.filtered")
    shop: list[tuple[bytes, bytes | None]] = [(b"from", b"shop")]
    produce(served, "forms.filtered", (b"a", b"1", shop, 1), (b"b", b"2", shop, 1), (b"a", b"3", (), 1))
    whole = gateway.ask("GET", path)
    keyed = gateway.ask("GET", f"{path}?key=a")
    assert (keyed.body, keyed.next) == (b"13", whole.next)
    assert keyed.headers["etag"] != whole.headers["etag"]
    both = gateway.ask("GET", f"{path}?key=a&header.from=shop&format=ndjson")
    assert [json.loads(line)["offset"] for line in both.body.splitlines()] == [0]
    with gateway.events(f"{path}?offset=-1&live=sse&format=ndjson&key=b") as events:
        (name, data), (_, control) = next(events), next(events)
        assert (name, json.loads(data)["value"]) == ("data", 2)
        assert json.loads(control)["streamNextOffset"] == whole.next
        produce(served, "forms.filtered", (b"a", b"4", (), 1))
        name, control = next(events)  # the position moves on over what is not wanted
        assert (name, json.loads(control)["streamNextOffset"] > whole.next) == ("control", True)
    assert gateway.ask("GET", f"{path}?key=a&key=b").status == 400


def test_readers_of_old_records_share_chunks(gateway: ServedGateway, served: Served) -> None:
    path = "/v1/stream/forms/old"
    make_topic(served, "forms.old")
    for number in range(40):
        produce(served, "forms.old", (None, b"%d" % number + b"x" * 100, (), 1))

    def whole() -> list[bytes]:
        position, got, stream = "-1", b"", ""
        while True:
            answer = gateway.ask("GET", f"{path}?offset={position}{stream}")
            got += answer.body
            if "stream-up-to-date" in answer.headers:
                assert answer.headers["cache-control"] == "no-cache"
                return got.split(b"x" * 100)[:-1]
            assert ("immutable" in answer.headers["cache-control"]) == (stream != "")
            position, stream = answer.next, f"&stream_id={answer.headers['stream-id']}"

    before = _counted(gateway, "old_reads")
    assert whole() == [b"%d" % number for number in range(40)]
    chunks = _counted(gateway, "old_reads") - before
    assert chunks > 4
    for _ in range(3):
        assert len(whole()) == 40
    assert _counted(gateway, "old_reads") - before == chunks + 3  # the end alone is asked for again
    with gateway.events(f"{path}?offset=-1&live=sse&format=ndjson") as events:
        got: list[int] = []
        while len(got) < 40:
            name, data = next(events)
            got += [json.loads(line)["offset"] for line in data.split("\n")] if name == "data" else []
        assert got == list(range(40))
    assert _counted(gateway, "old_reads") - before == chunks + 4
    first = gateway.ask("GET", path)
    assert gateway.ask("GET", f"{path}?offset={first.next}&stream_id={'0' * 32}").status == 409
    gateway.ask("POST", f"{path}/.truncate", b'{"before": {"offset": 9}}', content_type="application/json")
    assert gateway.ask("GET", f"{path}?offset={first.next}").status == 410
    assert gateway.ask("GET", f"{path}?format=ndjson").body.startswith(b'{"offset":9,')


def _counted(gateway: ServedGateway, name: str) -> float:
    found = re.search(rf"\nduramen_gateway_{name}_total (\S+)\n", gateway.ask("GET", "/metrics").body.decode())
    assert found is not None
    return float(found[1])


def test_an_event_source_does_not_go_on_in_a_stream_that_was_made_later_under_the_name(gateway: ServedGateway) -> None:
    path = "/v1/stream/forms/again"
    assert gateway.ask("PUT", path, b"[1,2]", content_type="application/json").status == 201

    def ids(query: str, **headers: str) -> list[str]:
        answer = gateway.ask("GET", f"{path}?{query}&live=sse", **headers)
        assert answer.status == 200
        return re.findall(r"^id: (\S+)$", answer.body.decode(), re.MULTILINE)

    gateway.ask("POST", path, stream_closed="true")
    for form in ("", "&format=ndjson", "&format=ndjson&key=none"):
        found = ids(f"offset=-1{form}")
        plain, _, digits = found[-1].partition(".")
        assert set(found) == {found[-1]}
        answer = gateway.ask("GET", f"{path}?offset={found[-1]}")
        assert (answer.status, answer.next, answer.headers["stream-id"][:8]) == (200, plain, digits)
        assert ids(f"offset=-1{form}", last_event_id=found[-1]) == [found[-1]], "there is nothing behind it"
    for wrong in (f"{plain}.", f"{plain}.x", f"-1.{digits}", f"{found[-1]}.{digits}"):
        assert gateway.ask("GET", f"{path}?offset={wrong}").status == 400
    assert gateway.ask("DELETE", path).status == 204
    assert gateway.ask("GET", f"{path}?offset=-1&live=sse", last_event_id=found[-1]).status == 404
    gateway.ask("PUT", path, b"[3,4,5]", content_type="application/json")
    for asked in ("offset=-1&live=sse", "offset=-1&live=sse&format=ndjson"):
        refused = gateway.ask("GET", f"{path}?{asked}", last_event_id=found[-1])
        assert (refused.status, json.loads(refused.body)["type"]) == (409, "urn:duramen:position-diverged")
    for asked in ("", "&live=long-poll", "&live=sse", "&on_truncated=advance"):
        assert gateway.ask("GET", f"{path}?offset={found[-1]}{asked}").status == 409
    assert gateway.ask("GET", f"{path}?offset={plain}").body == b"[5]", "a plain DLSN does not tell"
