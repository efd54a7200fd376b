"""Random message objects for any declared message and version, from our schema and within what kio can represent."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import os
import uuid
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer

from duramen.wire import messages
from duramen.wire.schema import Message
from duramen.wire.types import BOOL, FLOAT64, UUID, Array, Blob, Field, Scalar, Struct, Text

EXAMPLES = int(os.environ.get("DURAMEN_WIRE_EXAMPLES", "4"))
few = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)

CASES = [
    (message, version)
    for api in messages.API.values()
    for message in (api.request, api.response)
    for version in range(message.min_version, message.max_version + 1)
]
CASE_IDS = [f"{message.name}-{version}" for message, version in CASES]
OWN = {
    message for api in messages.API.values() if api.key >= messages.OWN_KEYS for message in (api.request, api.response)
}
"""Messages that Kafka does not have, so that no oracle knows them."""
KAFKA_CASES = [(message, version) for message, version in CASES if message not in OWN]
KAFKA_CASE_IDS = [f"{message.name}-{version}" for message, version in KAFKA_CASES]

_RANGES = {
    code: (-(1 << size * 8 - 1), (1 << size * 8 - 1) - 1) for code, size in zip("bhiq", (1, 2, 4, 8), strict=True)
}
_RANGES.update({"H": (0, 0xFFFF), "I": (0, 0xFFFFFFFF)})
_WIDEST_MS = 1 << 50  # kio counts durations in float seconds
_LAST_MS = 253_402_300_799_000

# Kafka's own limit for strings is 32767 bytes; long ones take the other branch of every length.
_TEXT = st.one_of(st.text(max_size=4), st.just("é" * 70), st.just("x" * 300))
_BYTES = st.one_of(st.binary(max_size=4), st.just(b"b" * 200), st.just(b"\0" * 20_000))


def present(struct: Struct, version: int) -> list[Field]:
    """The fields that Kafka has in this version: tagged fields with a number from OWN_KEYS on are ours."""
    return [field for field in struct.fields if version in field.versions and field.tag < messages.OWN_KEYS]


def kio_class(message: Message, version: int) -> type[Any]:
    api = next(a for a in messages.API.values() if message in (a.request, a.response))
    kind = "request" if message is api.request else "response"
    module = importlib.import_module(f"kio.schema.{api_key_map[api.key]}.v{version}.{kind}")
    return getattr(module, message.name)  # type: ignore[no-any-return]


def kio_fields(cls: type[Any]) -> list[dataclasses.Field[Any]]:
    return list(dataclasses.fields(cls))


def _nested(cls: type[Any], struct_name: str) -> type[Any]:
    return getattr(importlib.import_module(cls.__module__), struct_name)  # type: ignore[no-any-return]


def objects(message: Message, struct: Struct, version: int, kio: type[Any]) -> st.SearchStrategy[Any]:
    """Objects of `struct`, whose counterpart in kio is `kio`."""
    fields = present(struct, version)
    arguments = {
        ours.name: _values(message, ours, version, kio, theirs)
        for ours, theirs in zip(fields, kio_fields(kio), strict=True)
    }
    return st.builds(message.classes.constructors[struct.name], **arguments)


def _values(
    message: Message, field: Field, version: int, kio: type[Any], theirs: dataclasses.Field[Any]
) -> st.SearchStrategy[Any]:
    kind = field.type
    kio_type = theirs.metadata.get("kafka_type", "")
    if isinstance(kind, Array):
        values = st.lists(_elements(message, kind.element, version, kio, kio_type), max_size=3)
        if isinstance(kind.element, Scalar):
            values = st.one_of(values, st.just([kind.element.zero] * 130))
    else:
        values = _elements(message, kind, version, kio, kio_type)
    return st.one_of(st.none(), values) if version in field.nullable else values


def _elements(message: Message, kind: Any, version: int, kio: type[Any], kio_type: str) -> st.SearchStrategy[Any]:
    if isinstance(kind, Struct):
        return objects(message, kind, version, _nested(kio, kind.name))
    if isinstance(kind, Text):
        return _TEXT
    if isinstance(kind, Blob):
        return _BYTES
    if kind is BOOL:
        return st.booleans()
    if kind is UUID:
        return st.binary(min_size=16, max_size=16)
    if kio_type == "error_code":
        return st.sampled_from([int(code) for code in ErrorCode])
    if kio_type == "timedelta_i64":
        return st.integers(0, _WIDEST_MS)
    if kio_type == "datetime_i64":
        return st.integers(0, _LAST_MS)
    if kind is FLOAT64:
        return st.floats(allow_nan=False)
    return st.integers(*_RANGES[kind.code])


def kio_read(cls: type[Any], data: bytes) -> Any:
    value, end = entity_reader(cls)(data, 0)
    assert end == len(data)
    return value


def kio_write(cls: type[Any], value: Any) -> bytes:
    out = _Sink()
    entity_writer(cls)(out, value)
    return bytes(out.data)


class _Sink:
    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, piece: bytes) -> None:
        self.data += piece


def plain(value: Any) -> Any:
    """A kio value as ours would hold it."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    return value


def sample(message: Message, version: int, random: Random, struct: Struct | None = None) -> Any:
    """A small object with something in every field, the same for the same `random`."""
    struct = struct or message.struct
    fields = {field.name: _sample(message, field, version, random) for field in present(struct, version)}
    return message.classes.constructors[struct.name](**fields)


def _sample(message: Message, field: Field, version: int, random: Random) -> Any:
    if version in field.nullable and random.random() < 0.2:
        return None
    if isinstance(field.type, Array):
        return [_sample_one(message, field.type.element, version, random) for _ in range(random.randint(1, 2))]
    return _sample_one(message, field.type, version, random)


def _sample_one(message: Message, kind: Any, version: int, random: Random) -> Any:
    if isinstance(kind, Struct):
        return sample(message, version, random, kind)
    if isinstance(kind, Text):
        return random.choice(("", "topic", "é", "x" * 130))
    if isinstance(kind, Blob):
        return random.randbytes(random.choice((0, 3, 130)))
    if kind is BOOL:
        return random.random() < 0.5
    if kind is UUID:
        return random.randbytes(16)
    if kind is FLOAT64:
        return random.random()
    return random.randint(*_RANGES[kind.code])
