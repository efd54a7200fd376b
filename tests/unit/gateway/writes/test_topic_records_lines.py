"""Bodies with a record on each line, for one partition."""

from __future__ import annotations

import pytest

from duramen.client.protocol.stream_defaults import APPEND_RECORDS_MAX
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.writes.topic_records import line_steps
from duramen.wire.batch import NewRecord


def line_records(body: bytes, now_ms: int, encoding: str | None) -> list[NewRecord]:
    steps = line_steps(body, now_ms, encoding)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            records: list[NewRecord] = end.value
            return records


def test_others_get_their_turn_between_many_lines() -> None:
    assert sum(1 for _ in line_steps(b'{"value":1}\n' * 50_000, 1, None)) == 50


def test_a_line_is_a_record_with_all_that_it_has() -> None:
    body = (
        b'{"key":"k","value":{"n": 1.10},"headers":[{"name":"h","value":"AA==","encoding":"base64"}],"timestamp":7}\n\n'
    )
    assert line_records(body + b'{"value":null}', 99, None) == [
        (b"k", b'{"n": 1.10}', [(b"h", b"\0")], 7),
        (None, None, [], 99),
    ]
    assert line_records(b'{"key":"AA==","value":"AQ=="}', 1, "base64") == [(b"\0", b"\1", [], 1)]
    assert line_records(b'{"key":"k","value":"v","value_encoding":"string"}', 1, "json") == [(b"k", b"v", [], 1)]
    assert line_records(b"\n", 1, None) == []


@pytest.mark.parametrize(
    ("body", "encoding", "place"),
    [
        (b'{"value":1}\n{"value":', None, "line 2"),
        (b'\n{"value":1}\r\n\r\n{"value":', None, "line 4"),
        (b'{"value":"\xff"}', None, "line 1"),
        (b'{"value":1}\n{"key":"k"}', None, "line 2.value: it is missing"),
        (b'{"value":"?"}', "base64", "line 1.value"),
        (b'{"value":1,"partition":1}', None, "line 1.partition"),
        (b'{"value":1}', "hex", "encoding"),
        (b'{"value":1}\n' * (APPEND_RECORDS_MAX + 1), None, "body"),
        (b'{"value":1,"timestamp":9223372036854775808}', None, "line 1"),
    ],
)
def test_what_is_wrong_is_named_by_its_line(body: bytes, encoding: str | None, place: str) -> None:
    with pytest.raises(ProblemError) as refused:
        line_records(body, 1, encoding)
    assert refused.value.detail.startswith(f"{place}")
