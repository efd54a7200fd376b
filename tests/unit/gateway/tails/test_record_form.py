"""Records as JSON objects: all that they have is there, and what was written can be made of it again."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.streams.stream_page import BatchPlace, StreamPage
from duramen.gateway.streams.stream_position import position_after
from duramen.gateway.tails.record_form import RecordEncoding, RecordForm, record_form
from duramen.gateway.tails.tail_page import TailPage
from duramen.wire.batch import Record

CONTENTS = st.none() | st.binary(max_size=8) | st.sampled_from((b"null", b" null ", b'{"a":\n\r1.10}', b"-0", b'"x"'))


def page(*records: Record) -> StreamPage:
    return StreamPage(records, [BatchPlace(2, 5)] * len(records), position_after(2, 5, 9), True, False)


def written(shown: Any, encoding: str) -> bytes | None:
    """What a key or value was; of JSON an equal text."""
    if shown is None:
        return None
    if encoding == "json":
        return json.dumps(shown).encode()
    return base64.b64decode(shown) if encoding == "base64" else str(shown).encode()


@given(CONTENTS, CONTENTS, st.lists(st.tuples(st.just(b"h"), st.none() | st.binary(max_size=4)), max_size=2))
def test_each_encoding_reads_back(key: bytes | None, value: bytes | None, headers: list[tuple[bytes, bytes]]) -> None:
    for encoding in get_args(RecordEncoding):
        body = RecordForm(encoding, False).body(page(Record(7, 99, key, value, headers)))
        assert body.count(b"\n") == 1
        assert body.endswith(b"\n")
        found = json.loads(body)
        assert (found["offset"], found["dlsn"], found["timestamp"]) == (7, "00000003-0000000000000005-00000002", 99)
        key_encoding = "base64" if encoding == "base64" else "string"
        assert written(found["key"], found.get("key_encoding", key_encoding)) == key
        value_encoding = found.get("value_encoding", encoding)
        again = written(found["value"], value_encoding)
        if value_encoding == "json" and value is not None:
            assert json.loads(again or b"") == json.loads(value)
        else:
            assert again == value
        assert [written(each["value"], each.get("encoding", key_encoding)) for each in found["headers"]] == [
            content for _, content in headers
        ]


def test_json_is_not_converted() -> None:
    values = (b'{"id": 9007199254740993,\n "price": 1.10}', b"null", b'"a', b"")
    lines = RecordForm("json", False).body(page(*(Record(5 + n, 1, None, v, []) for n, v in enumerate(values))))
    first, null, broken, nothing = lines.splitlines()
    assert b'"value":{"id": 9007199254740993,  "price": 1.10},' in first
    assert b'"value":"null"' in null
    assert b'"value_encoding":"string"' in null
    assert (json.loads(broken)["value"], json.loads(broken)["value_encoding"]) == ("ImE=", "base64")
    assert (json.loads(nothing)["value"], json.loads(nothing)["value_encoding"]) == ("", "base64")


def test_txid_and_partition() -> None:
    record = Record(5, 42, b"k", b"1", [])
    plain = json.loads(RecordForm("json", False).body(page(record)))
    assert plain == {
        "offset": 5,
        "dlsn": "00000003-0000000000000005-00000000",
        "key": "k",
        "value": 1,
        "headers": [],
        "timestamp": 42,
    }
    of_several = json.loads(RecordForm("json", True, 3).body(page(record)))
    assert (of_several["txid"], of_several["partition"], "timestamp" in of_several) == (42, 3, False)


def test_an_event_has_a_line_for_each_record_and_the_position_behind_them() -> None:
    form = record_form("string", names_txid=False)
    events = form.events(page(Record(5, 1, None, b"a", []), Record(6, 1, None, b"b\n", [])))
    name, first, second, event_id, *end = events.split(b"\n")
    assert (name, event_id, end) == (b"event: data", f"id: {position_after(2, 5, 9)}".encode(), [b"", b""])
    assert json.loads(first.removeprefix(b"data:"))["value"] == "a"
    assert json.loads(second.removeprefix(b"data:"))["value"] == "b\n"
    assert form.events(page()) == b""


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(ProblemError, match="encoding"):
        record_form("avro", names_txid=False)


def test_a_long_page_is_made_in_steps() -> None:
    records = [Record(5 + n, 1, b"k", b"%d" % n, []) for n in range(250)]
    whole = StreamPage(records, [BatchPlace(2, 5)] * 250, position_after(2, 5, 254), False, False)
    form = RecordForm("json", False)
    tail, others = TailPage(position_after(2, 4, 4), whole, 0), 0

    async def scenario() -> None:
        nonlocal others
        made = asyncio.ensure_future(tail.prepare(form))
        while not made.done():
            await asyncio.sleep(0)
            others += 1

    weight = tail.weight
    asyncio.run(scenario())
    assert others >= 3
    assert tail.body(form) == form.body(whole)
    assert tail.weight == weight + len(tail.body(form))
