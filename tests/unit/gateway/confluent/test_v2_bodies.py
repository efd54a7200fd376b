"""Records as version 2 of Confluent's API has them."""

from __future__ import annotations

import pytest

from duramen.gateway.confluent.v2_bodies import records_v2
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.writes.topic_records import WantedRecord


def test_binary_and_json() -> None:
    binary = b'{"records": [{"key": "AP8=", "value": "", "partition": 2}, {"value": null}], "key_schema_id": null}'
    assert records_v2(binary, "binary", None, 7) == [
        WantedRecord((b"\x00\xff", b"", [], 7), 2),
        WantedRecord((None, None, [], 7), None),
    ]
    text = b'{"records": [{"key": 1.10, "value": {"n": 12345678901234567890}}]}'
    assert records_v2(text, "json", 3, 7) == [WantedRecord((b"1.10", b'{"n": 12345678901234567890}', [], 7), 3)]


@pytest.mark.parametrize(
    ("body", "partition", "why"),
    [
        (b'{"records": []}', None, "1 to"),
        (b'{"records": [{"val": 1}]}', None, "records[0].val: there is no such field"),
        (b'{"records": [{"value": 1}]}', None, "records[0].value"),
        (b'{"records": [{"value": "AA==", "key": "?"}]}', None, "records[0].key: it is not base64"),
        (b'{"records": [{"value": "AA==", "partition": 1}]}', 0, "records[0].partition"),
        (b'{"records": [', None, "in the middle"),
    ],
)
def test_what_is_refused(body: bytes, partition: int | None, why: str) -> None:
    with pytest.raises(ProblemError) as refused:
        records_v2(body, "binary", partition, 7)
    assert refused.value.status == 400
    assert why in refused.value.detail
