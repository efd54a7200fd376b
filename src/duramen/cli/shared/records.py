"""Records as text: how `produce` reads them from lines and `consume` writes them."""

from __future__ import annotations

import base64
import binascii
import codecs
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from duramen.cli.shared.position import iso

MAX_RECORD_BYTES = 100 * 1024 * 1024
"""Kafka's largest request (socket.request.max.bytes) unless told otherwise: input without a line end stops here."""
Headers = list[tuple[str, bytes | None]]
JSON_FIELDS = frozenset(
    {"topic", "partition", "offset", "timestamp", "key", "key_base64", "value", "value_base64", "headers"}
)


class Outgoing(NamedTuple):
    """A record to write; partition and timestamp are None where the client or the node chooses."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None
    timestamp_ms: int | None = None


class Incoming(NamedTuple):
    """A record that was read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def unescape(text: str) -> str:
    r"""A separator as typed in a shell: `\t`, `\n`, `\0`, `\x1f` mean what they mean in C; ValueError otherwise."""
    try:
        return codecs.decode(text.encode("latin-1", "backslashreplace"), "unicode_escape")
    except UnicodeDecodeError as error:
        raise ValueError(f"{text!r}: {error.reason}") from None


def from_line(line: bytes, separator: bytes | None, key: bytes | None, null: bytes | None) -> Outgoing:
    """A record from one line: its value, or key and value around the first `separator`; ValueError without one."""
    value: bytes | None = line
    if separator is not None:
        found, middle, rest = line.partition(separator)
        if not middle:
            raise ValueError(f"there is no key separator {separator.decode('utf-8', 'replace')!r} in it")
        key, value = found, rest
    if null is not None:
        value = None if value == null else value
        key = None if key == null else key
    return Outgoing(key, value, [])


def from_json(line: bytes) -> Outgoing:
    """A record from an object with key, value, headers, partition and timestamp, as `consume --format json` writes.

    A value that is no string is kept as JSON text. ValueError for anything else.
    """
    found = _json_object(line)
    strangers = sorted(found.keys() - JSON_FIELDS)
    if strangers:
        raise ValueError(f"unknown field {strangers[0]!r}; use --key-field to write whole objects as values")
    return Outgoing(
        _content(found, "key"),
        _content(found, "value"),
        _headers(found.get("headers") or []),
        _whole(found, "partition", 2**31 - 1),
        _whole(found, "timestamp", 2**63 - 1),
    )


def from_object(line: bytes, key_field: str) -> Outgoing:
    """A record whose value is the whole JSON line and whose key is one of its fields; null or missing means keyless."""
    return Outgoing(_encoded(_json_object(line).get(key_field)), line, [])


class _Number(NamedTuple):
    """A number with a point or an exponent, as it is written: what Python makes of it may be another one, or none."""

    text: str


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line, parse_float=_Number, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def _content(found: dict[str, Any], name: str) -> bytes | None:
    coded = found.get(f"{name}_base64")
    if coded is None:
        return _encoded(found.get(name))
    return _decoded(coded, f"{name}_base64")


def _decoded(coded: object, name: str) -> bytes:
    try:
        return base64.b64decode(str(coded), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{name} is not base64") from None


def _encoded(value: object) -> bytes | None:
    if value is None:
        return None
    try:
        text = value if isinstance(value, str) else _json_text(value)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return text.encode("utf-8", "surrogatepass")


def _json_text(value: object) -> str:
    """What was read, as JSON without needless blanks."""
    if isinstance(value, _Number):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join([f"{_json_text(name)}:{_json_text(each)}" for name, each in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([_json_text(each) for each in value]) + "]"
    return json.dumps(value, ensure_ascii=False)


def _whole(found: dict[str, Any], name: str, largest: int) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise ValueError(f"{name} is not a whole number")
    return value


def _headers(given: object) -> Headers:
    pairs = list(given.items()) if isinstance(given, dict) else given
    headers: Headers = []
    if not isinstance(pairs, list):
        raise ValueError("headers is neither an object nor a list of pairs")
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError("headers is neither an object nor a list of pairs")
        name, value = pair
        if not _is_text(name):
            raise ValueError("the name of a header is not text: it has half a character in it")
        if isinstance(value, dict) and value.keys() == {"base64"}:
            headers.append((name, _decoded(value["base64"], "a header")))
        else:
            headers.append((name, _encoded(value)))
    return headers


def _is_text(name: str) -> bool:
    """Whether it can be UTF-8; the client library dies of a name that cannot."""
    return not any("\ud800" <= sign <= "\udfff" for sign in name)


def to_json(record: Incoming) -> bytes:
    """A record as one JSON object; bytes that are not UTF-8 stand in base64 under `key_base64`, `value_base64`."""
    place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    return json_line({**place, **described(record.timestamp_ms, record.key, record.value, record.headers)})


def described(
    timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> dict[str, Any]:
    """What a record holds, for a JSON object."""
    told: dict[str, Any] = {"timestamp": None if timestamp_ms < 0 else timestamp_ms}
    for name, content in (("key", key), ("value", value)):
        text = _text(content)
        if content is not None and text is None:
            told[f"{name}_base64"] = base64.b64encode(content).decode("ascii")
        else:
            told[name] = text
    if headers:
        told["headers"] = [[name, _header_value(content)] for name, content in headers]
    return told


def json_line(told: dict[str, Any]) -> bytes:
    """A JSON object on one line, without its end."""
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()


def _text(content: bytes | None) -> str | None:
    if content is None:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _header_value(value: bytes | None) -> object:
    text = _text(value)
    if value is not None and text is None:
        return {"base64": base64.b64encode(value).decode("ascii")}
    return text


def to_value(record: Incoming, null: bytes) -> bytes:
    """The value alone."""
    return null if record.value is None else record.value


def to_key_value(record: Incoming, separator: bytes, null: bytes) -> bytes:
    """Key, separator, value."""
    return (null if record.key is None else record.key) + separator + to_value(record, null)


def to_full(record: Incoming, separator: bytes, null: bytes, *, topic: bool = False) -> bytes:
    """Everything there is to know, for reading: partition:offset (behind the topic), time, headers, key and value."""
    where = f"{record.topic}-" * topic + f"{record.partition}:{record.offset}"
    when = iso(record.timestamp_ms) if record.timestamp_ms >= 0 else "-"
    headers = ",".join(f"{name}={_shown(value)}" for name, value in record.headers)
    parts: Sequence[bytes] = [f"{where}  {when}".encode(), *([f"[{headers}]".encode()] if headers else [])]
    return b"  ".join([*parts, to_key_value(record, separator, null)])


def _shown(value: bytes | None) -> str:
    return "null" if value is None else value.decode("utf-8", "backslashreplace")
