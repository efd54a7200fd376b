"""Requests of every API that are as wide as they may be: in each of its arrays, one after the other, many elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from duramen.ports import FileSpan
from duramen.server.dispatch import TABLE
from duramen.wire.errors import EncodeError
from duramen.wire.frame import encode_request
from duramen.wire.types import BOOL, UUID, Array, Blob, Field, Struct, Text

NAMES = {"topic": "t", "group_id": "g", "member_id": ""}
VALUES: dict[str, Any] = {
    "acks": -1,
    "allow_auto_topic_creation": False,
    "max_bytes": 1 << 20,
    "num_partitions": 1,
    "protocol_type": "consumer",
    "replication_factor": 1,
    "resource_type": 2,
    "session_epoch": -1,
    "session_timeout_ms": 30_000,
    "timeout_ms": 1_000,
    "validate_only": True,
}
"""What makes a request pass the first looks."""


class Wide(NamedTuple):
    """A request whose array `path` has many elements. here: they are all there is, not all somebody else's."""

    path: str
    key: int
    version: int
    frame: bytes


def wide_requests(count: int, only: str = "") -> Iterator[Wide]:
    """One for every array of every API, in its highest version, with `count` elements in it."""
    for key, row in TABLE.items():
        for version in {row.highest, min(row.highest, 7)} if key == 9 else (row.highest,):
            for path in _arrays(row.request.struct, version, ()):
                name = ".".join((row.api.name, f"v{version}", *path))
                if only in name:
                    body = _filled(row.request, row.request.struct, version, path, count, 0)
                    try:
                        parts = encode_request(row.api, version, 1, "wide", body)
                    except EncodeError:
                        continue
                    yield Wide(name, key, version, b"".join(bytes(p) for p in parts if not isinstance(p, FileSpan)))


def _arrays(struct: Struct, version: int, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for field in struct.fields:
        if version in field.versions and isinstance(field.type, Array):
            yield (*above, field.name)
            if isinstance(field.type.element, Struct):
                yield from _arrays(field.type.element, version, (*above, field.name))


def _filled(message: Any, struct: Struct, version: int, path: tuple[str, ...], count: int, number: int) -> Any:
    values = {}
    for field in struct.fields:
        if version in field.versions:
            inside = path[1:] if path and path[0] == field.name else ()
            many = count if len(path) == 1 and path[0] == field.name else 1
            values[field.name] = _value(message, field, version, inside, many, count, number)
    return message.classes.constructors[struct.name](**values)


def _value(message: Any, field: Field, version: int, path: tuple[str, ...], many: int, count: int, number: int) -> Any:
    kind = field.type
    if isinstance(kind, Array):
        element = kind.element
        if isinstance(element, Struct):
            return [_filled(message, element, version, path, count, each) for each in range(many)]
        return [_plain(field.name, element, each, many > 1) for each in range(many)]
    if isinstance(kind, Struct):
        return _filled(message, kind, version, path, count, number)
    return _plain(field.name, kind, number, number > 0)


def _plain(name: str, kind: Any, number: int, distinct: bool) -> Any:
    if isinstance(kind, Text):
        if name in VALUES:
            return VALUES[name]
        known = next((NAMES[part] for part in NAMES if part in name), "t" if name == "name" else "w")
        return f"{known}{number}" if distinct else known
    if isinstance(kind, Blob):
        return b""
    if kind is BOOL:
        return VALUES.get(name, False)
    if kind is UUID:
        return number.to_bytes(16, "big")
    if name in VALUES:
        return VALUES[name]
    if "partition" in name or "index" in name:
        return number % (1 << 31)
    return 0 if kind.code == "b" else min(number, 30_000)
