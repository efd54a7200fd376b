"""What PUT and POST of a stream ask for, and what goes together."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from duramen.dlsn import FIRST
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.streams.stream_appends import AppendWish
from duramen.gateway.streams.stream_expiry import StreamExpiry
from duramen.gateway.streams.stream_topics import StreamInfo, StreamSettings
from duramen.gateway.streams.stream_wishes import (
    append_steps,
    check_first_records,
    check_same,
    new_records,
    wanted_settings,
)
from duramen.gateway.streams.writer_headers import OpenedWriter
from duramen.model import TopicId

JSON = "application/json"
NEVER = StreamExpiry(None, None)


def info(txid: str = "none", *, exclusive: bool = False) -> StreamInfo:
    return StreamInfo("a", TopicId(bytes(16)), JSON, NEVER, 0, txid, exclusive)


def test_settings_that_are_not_asked_for_are_left_to_the_namespace() -> None:
    assert wanted_settings({"content-type": JSON}, 0) == StreamSettings(JSON, NEVER, None, None)
    asked = {"content-type": JSON, "stream-txid": "Assigned", "stream-exclusive": "true"}
    assert wanted_settings(asked, 0) == StreamSettings(JSON, NEVER, "assigned", True)
    check_same(info("assigned", exclusive=True), StreamSettings(JSON, NEVER))


@pytest.mark.parametrize("wanted", [StreamSettings(JSON, NEVER, "none"), StreamSettings(JSON, NEVER, exclusive=False)])
def test_another_stream_is_refused(wanted: StreamSettings) -> None:
    with pytest.raises(ProblemError, match="the stream is there"):
        check_same(info("assigned", exclusive=True), wanted)


def test_what_cannot_be_written_at_once() -> None:
    exclusive, numbered = StreamSettings(JSON, NEVER, exclusive=True), StreamSettings(JSON, NEVER, "application")
    check_first_records(exclusive, closes=False, has_body=False)
    check_first_records(numbered, closes=True, has_body=False)
    for wanted, closes, has_body in ((exclusive, True, False), (exclusive, False, True), (numbered, False, True)):
        with pytest.raises(ProblemError):
            check_first_records(wanted, closes=closes, has_body=has_body)


def append_wish(
    stream: StreamInfo, headers: Mapping[str, str], query: Mapping[str, str], body: bytes, now_ms: int
) -> AppendWish:
    with pytest.raises(StopIteration) as end:
        next(append_steps(stream, headers, query, body, now_ms))
    wish: AppendWish = end.value.value
    return wish


def test_appends() -> None:
    headers = {"content-type": JSON, "stream-txid": "9223372036854775807", "stream-expected-offset": "-1"}
    wish = append_wish(info("application"), headers, {}, b"[1, 2]", 5)
    assert wish == AppendWish(new_records([b"1", b"2"], 2**63 - 1), expected=FIRST, txid=2**63 - 1)
    assert append_wish(info("application"), headers | {"stream-closed": "true"}, {}, b"", 5).txid is None
    assert append_wish(info("application"), {"content-type": JSON, "stream-txid": "7"}, {}, b"1", 5).is_plain
    written = {"content-type": JSON, "stream-writer": "7", "stream-writer-seq": "3"}
    assert append_wish(info(exclusive=True), written, {}, b"1", 5).writer == OpenedWriter(7, 3)


def test_lines_are_records_with_timestamps_of_their_own() -> None:
    ndjson = {"content-type": "application/x-ndjson"}
    body = b'{"value":1,"timestamp":9}\n{"value":2}'
    wish = append_wish(info("none"), ndjson, {"format": "ndjson"}, body, 5)
    assert [(record[1], record[3]) for record in wish.records] == [(b"1", 9), (b"2", 5)]
    with pytest.raises(ProblemError, match=r"line 2.timestamp: it is missing"):
        append_wish(info("application"), ndjson, {"format": "ndjson"}, body, 5)
    assert append_wish(info("application"), ndjson, {"format": "ndjson"}, body.split(b"\n")[0], 5).txid == 9
    for headers, query in (({"content-type": JSON}, {"format": "ndjson"}), (ndjson, {"encoding": "json"})):
        with pytest.raises(ProblemError):
            append_wish(info("application"), headers, query, b'{"value":1}', 5)


@pytest.mark.parametrize(
    ("kind", "headers", "field"),
    [
        ("none", {"stream-txid": "7"}, "Stream-Txid"),
        ("assigned", {"stream-txid": "7"}, "Stream-Txid"),
        ("application", {}, "Stream-Txid"),
        ("application", {"stream-txid": "0"}, "Stream-Txid"),
        ("application", {"stream-txid": "9223372036854775808"}, "Stream-Txid"),
        ("application", {"stream-txid": "١"}, "Stream-Txid"),
        ("none", {"stream-writer": "7", "stream-writer-seq": "0"}, "Stream-Writer"),
    ],
)
def test_appends_that_are_refused(kind: str, headers: dict[str, str], field: str) -> None:
    with pytest.raises(ProblemError) as refused:
        append_wish(info(kind), {"content-type": JSON, **headers}, {}, b"1", 5)
    assert (refused.value.status, refused.value.detail.split(":")[0]) == (400, field)
