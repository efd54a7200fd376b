"""Namespaces: a path in front of streams, with settings for those that are made below it.

A namespace is there while a stream lies below it, or a record about it in the topic `_duramen_namespaces`: its key is
the path, its value JSON, and the last one counts, as in any compacted topic. `record_table.py` reads and writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from duramen.client.protocol.stream_names import OUR_OWN, SEGMENT, check_path, name_of
from duramen.errors import ConfigError, ErrorCode, KafkaError
from duramen.wire.batch import NewRecord

NAMESPACES_TOPIC: Final = "_duramen_namespaces"
NAMESPACES_SETTINGS: Final = {"cleanup.policy": "compact", "duramen.ack.durability": "stable"}
"""What the topic is made with, by whoever writes first; it has one partition."""

PATH_LENGTH_MAX: Final = 247
"""Of a namespace: a stream's name, which is a topic's, goes on after it."""

REMOVED_AT_ONCE: Final = 1000
"""Records that one batch removes at most."""

LATER: Final = "its record was written by a later release; change it with that one"
UNREADABLE: Final = "its record cannot be read; set its defaults anew"
_CREATED_MAX_MS: Final = 253_402_300_799_999

_VERSION: Final = 1
_DEFAULTS_MAX: Final = 64 << 10
_OF_ONE_STREAM: Final = "duramen.stream."


class NamespaceRecord(NamedTuple):
    """What is written about a namespace. created_at_ms: since 1970.

    defaults: topic settings of streams that are made below it. fault: why the record cannot be read, "" where it can;
    no stream is made below such a one.
    """

    path: str
    created_at_ms: int
    defaults: Mapping[str, str]
    fault: str = ""


class NamespaceChange(NamedTuple):
    """Records to append, none where there is nothing to do; the namespace as it is then, and whether it was made."""

    rows: list[NewRecord]
    record: NamespaceRecord
    made: bool


def check_namespace(path: str) -> None:
    """ConfigError for a path that can be no namespace's."""
    check_path("namespace", path)
    if path.startswith(OUR_OWN):
        raise ConfigError(f"namespace {path[:80]!r}: names that begin with {OUR_OWN} are kept for the system")
    if len(path) > PATH_LENGTH_MAX:
        shown = f"namespace {path[:80]!r}"
        raise ConfigError(f"{shown}: its path has {len(path)} characters, {PATH_LENGTH_MAX} are the most")


def check_defaults(defaults: Mapping[str, object]) -> None:
    """ConfigError for what can be nobody's defaults. Which settings there are, and their values, the cluster knows."""
    for name, text in defaults.items():
        if not isinstance(text, str):
            raise ConfigError(f"{name}: a setting is a text, as in a file of properties, not {text!r:.80}")
        if not (name + text).isascii():
            raise ConfigError(f"{name!r:.80}: settings and their values are ASCII")
        if name.startswith(_OF_ONE_STREAM):
            raise ConfigError(f"{name}: it is of one stream, and given when that is made; it has no default")
    size = len(json.dumps(defaults))
    if size > _DEFAULTS_MAX:
        raise ConfigError(f"defaults: they have {size} characters, {_DEFAULTS_MAX} are the most")


def check_readable(record: NamespaceRecord) -> None:
    """KafkaError INVALID_CONFIG for a record with a fault."""
    if record.fault:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"namespace {record.path}: {record.fault}")


def enclosing(path: str) -> Iterable[str]:
    """The namespaces that a path lies in, the nearest first: of a/b/c these are a/b and a."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def is_below(path: str, namespace: str) -> bool:
    """Whether a path lies in a namespace."""
    return path.startswith(f"{namespace}/")


def defaults_for(stream: str, records: Mapping[str, NamespaceRecord]) -> dict[str, str]:
    """Settings of a new stream: of each the one of the nearest enclosing namespace that has it.

    KafkaError INVALID_CONFIG where a record that would count cannot be read.
    """
    settings: dict[str, str] = {}
    for path in enclosing(stream):
        record = records.get(path)
        if record is not None:
            check_readable(record)
            settings = {**record.defaults, **settings}
    return settings


def described(path: str, records: Mapping[str, NamespaceRecord], topics: Iterable[str]) -> NamespaceRecord | None:
    """The namespace, if it is there. topics: those with one partition. created_at_ms: -1 where nothing is written."""
    if path in records:
        return records[path]
    has_streams = any(name_of(path, topic) for topic in topics)
    return NamespaceRecord(path, -1, {}) if has_streams or any(is_below(each, path) for each in records) else None


def listed(records: Mapping[str, NamespaceRecord], topics: Iterable[str]) -> dict[str, NamespaceRecord]:
    """All namespaces by path. topics: those with one partition."""
    found = dict(records)
    for paths in (records, filter(None, (name_of("", topic) for topic in topics))):
        for inner in list(paths):
            for path in enclosing(inner):
                if path not in found:
                    found[path] = NamespaceRecord(path, -1, {})
    return found


def put(
    path: str, defaults: Mapping[str, str] | None, records: Mapping[str, NamespaceRecord], now_ms: int
) -> NamespaceChange:
    """Make a namespace, or set the defaults of one; None leaves those that there are.

    A record that cannot be read is replaced; one of a later release is not: KafkaError INVALID_CONFIG.
    """
    known = records.get(path)
    if known is not None and known.fault == LATER:
        check_readable(known)
    if known is not None and not known.fault and (defaults is None or known.defaults == defaults):
        return NamespaceChange([], known, False)
    created = now_ms if known is None or known.fault else known.created_at_ms
    record = NamespaceRecord(path, created, dict(defaults or {}))
    return NamespaceChange([_row(path, _value(record), now_ms)], record, known is None)


def removed(path: str, records: Mapping[str, NamespaceRecord], now_ms: int) -> list[NewRecord]:
    """What removes the records of a namespace and of those in it, the inner ones first, REMOVED_AT_ONCE at most."""
    gone = sorted((each for each in records if each == path or is_below(each, path)), reverse=True)
    return [_row(each, None, now_ms) for each in gone[:REMOVED_AT_ONCE]]


def _row(path: str, value: bytes | None, now_ms: int) -> NewRecord:
    return path.encode(), value, [], now_ms


def _value(record: NamespaceRecord) -> bytes:
    fields = {"version": _VERSION, "created_at_ms": record.created_at_ms, "defaults": record.defaults}
    return json.dumps(fields, separators=(",", ":")).encode()


def parse_record(key: bytes | None, value: bytes) -> NamespaceRecord | None:
    """A record of the topic; None for a key that is no namespace's. One that cannot be read says so (fault)."""
    path = "" if key is None else key.decode("utf-8", "replace")
    if len(path) > PATH_LENGTH_MAX or not all(SEGMENT.fullmatch(segment) for segment in path.split("/")):
        return None
    try:
        return _parsed(path, value)
    except (ValueError, TypeError, KeyError, RecursionError):
        return NamespaceRecord(path, -1, {}, UNREADABLE)


def _parsed(path: str, value: bytes) -> NamespaceRecord:
    if len(value) > 2 * _DEFAULTS_MAX:
        raise ValueError("it is too long")
    fields = json.loads(value)
    version, created, defaults = fields["version"], fields["created_at_ms"], fields["defaults"]
    if not isinstance(version, int) or not isinstance(created, int) or not isinstance(defaults, dict):
        raise TypeError("a field is of another type")
    if version < 1 or not 0 <= created <= _CREATED_MAX_MS:
        raise ValueError("a number is out of bounds")
    if version > _VERSION:
        return NamespaceRecord(path, created, {}, LATER)
    for name, text in defaults.items():
        if not isinstance(text, str):
            raise TypeError("settings are texts")
        (name + text).encode()  # UnicodeEncodeError, a ValueError, for half of a character
    return NamespaceRecord(path, created, defaults)
