"""Bodies with records for a topic: what they stand for, where the records go, and what is refused."""

from __future__ import annotations

import pytest

from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.writes.topic_records import STICKY_BYTES, TopicPlaces, WantedRecord, wanted_records
from duramen.wire.key_partitions import partition_for


def test_one_record_as_it_came() -> None:
    body = b' {"key": "k", "value": {"n": 12345678901234567890, "d": 1.10}, "headers": {"a": "b", "c": null}} '
    (found,) = wanted_records(body, 7)
    value = b'{"n": 12345678901234567890, "d": 1.10}'
    assert found == WantedRecord((b"k", value, [(b"a", b"b"), (b"c", None)], 7), None)


def test_encodings() -> None:
    body = b"""{"value_encoding": "base64", "records": [
        {"value": "AP8=", "key": {"a":1}, "key_encoding": "json", "partition": 3, "timestamp": 0},
        {"value": "\\u00e9\\r\\n", "value_encoding": "string",
         "headers": [{"name": "h", "value": "AA==", "encoding": "base64"}]},
        {"key": "", "value": null}
    ]}"""
    assert wanted_records(body, 7) == [
        WantedRecord((b'{"a":1}', b"\x00\xff", [], 0), 3),
        WantedRecord((None, "é\r\n".encode(), [(b"h", b"\x00")], 7), None),
        WantedRecord((b"", None, [], 7), None),
    ]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "body"),
        (b"[]", "body"),
        (b'{"value": 1', "body"),
        (b'{"valeu": 1}', "valeu"),
        (b'{"records": []}', "records"),
        (
            b'{"records": [{"value": 1}, {"partition": -1}]}',
            "records[1].partition: it has to be a whole number of at least 0",
        ),
        (b'{"value": 1, "timestamp": 9223372036854775808}', "timestamp: it is above"),
        (b'{"records": [{"value": 1}, {"key": 1}]}', "records[1].key"),
        (b'{"key": "k"}', "value: it is missing; null deletes the key"),
        (b'{"value": "*", "value_encoding": "base64"}', "value: it is not base64"),
        (b'{"value": 1, "value_encoding": "avro"}', "value_encoding: it has to be base64, json or string"),
        (b'{"value": "\xff"}', "UTF-8"),
        (b'{"key": "\\ud800"}', "body"),
        (b'{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deep"),
    ],
)
def test_refused(body: bytes, named: str) -> None:
    with pytest.raises(ProblemError) as refused:
        wanted_records(body, 7)
    assert refused.value.status == 400
    assert named in refused.value.detail
    assert "`" not in refused.value.detail


def test_places() -> None:
    places = TopicPlaces()
    keyed = WantedRecord((b"k", None, (), 0), None)
    assert places.partition(keyed, 10, 5) == partition_for(b"k", 5)
    assert places.partition(WantedRecord((b"k", None, (), 0), 9), 10, 5) == 9
    keyless = WantedRecord((None, None, (), 0), None)
    assert [places.partition(keyless, STICKY_BYTES // 2, 2) for _ in range(5)] == [0, 0, 1, 1, 0]
