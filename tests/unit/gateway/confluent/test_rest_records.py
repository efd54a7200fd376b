"""Records as version 3 of Confluent's API has them: what they stand for, what is reported, what is refused."""

from __future__ import annotations

import msgspec
import pytest

from duramen.gateway.confluent.rest_records import produced_record, record_report
from duramen.gateway.edge.problem import ProblemError

MOMENT_MS = 1612552482250


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        (b'{"value": {"type": "JSON", "data": {"n": 12345678901234567890, "d": 1.10}}}', None,
         b'{"n": 12345678901234567890, "d": 1.10}'),
        (b'{"key": {"type": "BINARY", "data": "AP8="}, "value": {"type": "STRING", "data": "\\u00e9"}}', b"\x00\xff",
         "é".encode()),
        (b'{"key": {"type": "STRING", "data": ""}, "value": {"type": "JSON", "data": null}}', b"", None),
        (b'{"value": {"data": null}}', None, None),
        (b"{}", None, None),
    ],
)  # fmt: skip
def test_keys_and_values(text: bytes, key: bytes | None, value: bytes | None) -> None:
    assert produced_record(text, 7).wanted.record == (key, value, [], 7)


def test_all_of_a_record_and_its_report() -> None:
    text = b"""{"partition_id": 3, "timestamp": "2021-02-05 20:14:42.250+01:00",
        "headers": [{"name": "h", "value": "AA=="}, {"name": "none"}],
        "key": {"type": "BINARY", "data": "AAEC"}, "value": {"type": "STRING", "data": null}}"""
    found = produced_record(text, 7)
    assert found.wanted.partition == 3
    assert found.wanted.record == (b"\x00\x01\x02", None, [(b"h", b"\x00"), (b"none", None)], MOMENT_MS)
    assert msgspec.to_builtins(record_report("c", "t", found, 3, 8)) == {
        "error_code": 200,
        "cluster_id": "c",
        "topic_name": "t",
        "partition_id": 3,
        "offset": 8,
        "timestamp": "2021-02-05T19:14:42.250Z",
        "key": {"type": "BINARY", "size": 3},
        "value": {"type": "STRING", "size": 0},
    }


@pytest.mark.parametrize(
    ("text", "status", "why"),
    [
        (b'{"valu": 1}', 400, "valu: there is no such field"),
        (b'{"value": {"type": "JSON", "data": 1x}}', 400, "byte 36"),
        (b'{"value": {"type": "JSON", "data": "\xff"}}', 400, "UTF-8 at byte 36"),
        (b'{"value": {"type": "BINARY", "data": "A"}}', 400, "value.data: it is not base64"),
        (b'{"key": {"type": "STRING", "data": 1}}', 400, "key.data"),
        (b'{"key": {"type": "CSV", "data": "1"}}', 400, "key.type"),
        (b'{"key": {"data": 1}}', 422, "key.type"),
        (b'{"value": {"type": "AVRO", "data": 1}}', 422, "value.type"),
        (b'{"value": {"type": "JSON", "schema_id": 1, "data": 1}}', 422, "value.type"),
        (b'{"headers": [{"name": "h", "value": "?"}]}', 400, "headers.value"),
        (b'{"partition_id": -1}', 400, "partition_id"),
        (b'{"timestamp": "2021-02-05T19:14:42"}', 400, "timestamp: "),
        (b'{"timestamp": "1969-12-31T23:59:59Z"}', 400, "timestamp: "),
        (b'{"value": {"type": "JSON", "data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}", 400, "deeply"),
    ],
)
def test_what_is_refused(text: bytes, status: int, why: str) -> None:
    with pytest.raises(ProblemError) as refused:
        produced_record(text, 7)
    assert refused.value.status == status
    assert why in refused.value.detail
