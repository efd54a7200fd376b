"""Namespaces: their records as bytes, defaults that come from those around, what is listed, and what is refused."""

from __future__ import annotations

import json

import pytest

from duramen.client.protocol.namespaces import (
    REMOVED_AT_ONCE,
    NamespaceRecord,
    check_defaults,
    check_namespace,
    defaults_for,
    described,
    listed,
    parse_record,
    put,
    removed,
)
from duramen.errors import ConfigError, KafkaError

TOPICS = ["finance.eu.ledger", "alone", "_duramen_namespaces", "__consumer_offsets", "a..b", "_duramen_x.y"]


def known(*records: NamespaceRecord) -> dict[str, NamespaceRecord]:
    return {record.path: record for record in records}


def test_a_record_comes_back_as_it_was_put() -> None:
    change = put("finance/eu", {"retention.ms": "-1"}, {}, 17)
    ((key, value, _, timestamp),) = change.rows
    assert (key, timestamp, change.made) == (b"finance/eu", 17, True)
    assert value is not None
    assert parse_record(key, value) == change.record == NamespaceRecord("finance/eu", 17, {"retention.ms": "-1"})
    again = put("finance/eu", None, known(change.record), 18)
    assert (again.rows, again.record, again.made) == ([], change.record, False)
    cleared = put("finance/eu", {}, known(change.record), 18)
    assert (len(cleared.rows), cleared.record, cleared.made) == (1, NamespaceRecord("finance/eu", 17, {}), False)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (b"", "cannot be read"),
        (b"[]", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b'{"version":1,"created_at_ms":1,"defaults":{"a":1}}', "cannot be read"),
        (b'{"version":1,"created_at_ms":1}', "cannot be read"),
        (b'{"version":0,"created_at_ms":1,"defaults":{}}', "cannot be read"),
        (b'{"version":1,"created_at_ms":99999999999999999999,"defaults":{}}', "cannot be read"),
        (b'{"version":1,"created_at_ms":-5,"defaults":{}}', "cannot be read"),
        (b'{"version":1,"created_at_ms":1,"defaults":{"a":"\\ud800"}}', "cannot be read"),
        (b'{"version":1,"created_at_ms":1e400,"defaults":{}}', "cannot be read"),
        (json.dumps({"version": 1, "created_at_ms": 1, "defaults": {"a": "x" * 200_000}}).encode(), "cannot be read"),
    ],
)
def test_a_record_that_cannot_be_read_stops_new_streams_until_it_is_put_anew(value: bytes, fault: str) -> None:
    record = parse_record(b"finance", value)
    assert record is not None
    assert fault in record.fault
    with pytest.raises(KafkaError, match="namespace finance: its record"):
        defaults_for("finance/ledger", known(record))
    assert defaults_for("other/ledger", known(record)) == {}
    mended = put("finance", None, known(record), 5)
    assert (mended.record, len(mended.rows)) == (NamespaceRecord("finance", 5, {}), 1)


def test_a_record_of_a_later_release_is_neither_passed_over_nor_replaced() -> None:
    record = parse_record(b"finance", b'{"version":2,"created_at_ms":1,"defaults":{},"more":3}')
    assert record is not None
    with pytest.raises(KafkaError, match="a later release"):
        defaults_for("finance/ledger", known(record))
    with pytest.raises(KafkaError, match="a later release"):
        put("finance", {}, known(record), 5)
    assert len(removed("finance", known(record), 5)) == 1


@pytest.mark.parametrize("key", [None, b"", b"a//b", b"..", b"\xff", b"a" * 250])
def test_a_key_that_is_no_namespace_is_passed_over(key: bytes | None) -> None:
    assert parse_record(key, b"{}") is None


def test_a_setting_comes_from_the_nearest_namespace_that_has_it() -> None:
    records = known(
        NamespaceRecord("a", 1, {"retention.ms": "1", "retention.bytes": "2"}),
        NamespaceRecord("a/b", 1, {}),
        NamespaceRecord("a/b/c", 1, {"retention.ms": "3"}),
        NamespaceRecord("a/b/cc", 1, {"retention.ms": "4"}),
    )
    assert defaults_for("a/b/c/s", records) == {"retention.ms": "3", "retention.bytes": "2"}
    assert defaults_for("a/b/s", records) == {"retention.ms": "1", "retention.bytes": "2"}
    assert defaults_for("a", records) == {}


def test_namespaces_are_listed_by_their_records_and_by_their_streams() -> None:
    records = known(NamespaceRecord("empty/inner", 1, {"retention.ms": "1"}))
    found = listed(records, TOPICS)
    assert sorted(found) == ["empty", "empty/inner", "finance", "finance/eu"]
    assert (found["empty"].created_at_ms, found["empty/inner"].created_at_ms) == (-1, 1)
    for path in ("empty", "finance", "finance/eu"):
        assert described(path, records, TOPICS) == NamespaceRecord(path, -1, {})
    for path in ("alone", "finance/eu/ledger", "fin", "a", "_duramen_x"):
        assert described(path, records, TOPICS) is None


def test_the_inner_ones_are_removed_first() -> None:
    records = known(*(NamespaceRecord(path, 1, {}) for path in ("a", "a/b", "a/b/c", "ab", "b")))
    assert [(row[0], row[1]) for row in removed("a", records, 2)] == [(b"a/b/c", None), (b"a/b", None), (b"a", None)]
    many = known(*(NamespaceRecord(f"a/{number}", 1, {}) for number in range(REMOVED_AT_ONCE + 5)))
    assert len(removed("a", many, 2)) == REMOVED_AT_ONCE


@pytest.mark.parametrize("path", ["", "/", "a/", "/a", "a//b", "..", "a/../b", "a.b", "a b", "ä", "a\n", "a" * 248])
def test_what_can_be_no_namespace(path: str) -> None:
    with pytest.raises(ConfigError, match="namespace"):
        check_namespace(path)


@pytest.mark.parametrize(
    ("defaults", "said"),
    [
        ({"retention.ms": 5}, "retention.ms: a setting is a text"),
        ({"duramen.stream.ttl.ms": "5"}, "it is of one stream"),
        ({"retention.ms": "\ud800"}, "are ASCII"),
        ({"retention.ms": "5" * 70_000}, "defaults: they have"),
    ],
)
def test_what_can_be_no_defaults(defaults: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_defaults(defaults)
