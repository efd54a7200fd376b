"""Whatever arrives: a message, or DecodeError; and nothing is allocated for a length before it is checked."""

from __future__ import annotations

import os
import tracemalloc
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.message_strategies import CASE_IDS, CASES, few, present, sample

from duramen.wire import messages
from duramen.wire.errors import DecodeError
from duramen.wire.schema import Message
from duramen.wire.types import STRING, Array, Field, Struct, Type

MUTATIONS = int(os.environ.get("DURAMEN_WIRE_MUTATIONS", "60"))

ALL = pytest.mark.parametrize(("message", "version"), CASES, ids=CASE_IDS)


@ALL
def test_every_truncation_is_refused(message: Message, version: int) -> None:
    data = message.encode(sample(message, version, Random(version)), version)
    for length in range(len(data)):
        with pytest.raises(DecodeError):
            message.decode_from(data[:length], version)
    with pytest.raises(DecodeError, match="follow"):
        message.decode(data + b"\0", version)


@ALL
def test_damaged_bytes_decode_to_something_that_can_be_encoded_or_are_refused(message: Message, version: int) -> None:
    random = Random(f"{message.name} {version}")
    data = message.encode(sample(message, version, random), version)
    if not data:
        return
    for _ in range(MUTATIONS):
        damaged = bytearray(data)
        for _ in range(random.randint(1, 3)):
            damaged[random.randrange(len(damaged))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        try:
            value = message.decode(damaged, version)
        except DecodeError:
            continue
        assert message.decode(message.encode(value, version), version) == value


def elements(kind: Type, value: Any, version: int) -> int:
    """Of all arrays in a value, as this version says them."""
    if value is None:
        return 0
    if isinstance(kind, Array):
        return len(value) + sum(elements(kind.element, each, version) for each in value)
    if isinstance(kind, Struct):
        return sum(elements(field.type, getattr(value, field.name), version) for field in present(kind, version))
    return 0


@ALL
def test_a_bound_counts_the_elements_of_all_arrays(message: Message, version: int) -> None:
    random = Random(version)
    for _ in range(5):
        value = sample(message, version, random)
        data = message.encode(value, version)
        most = elements(message.struct, value, version)
        assert message.decode_bounded(data, version, 0, most) == message.decode_from(data, version)
        if most:
            with pytest.raises(DecodeError, match="elements more than"):
                message.decode_bounded(data, version, 0, most - 1)


@few
@given(st.data())
def test_noise_is_refused_or_read(data: st.DataObject) -> None:
    message, version = data.draw(st.sampled_from(CASES))
    noise = data.draw(st.binary(max_size=200))
    try:
        value = message.decode(noise, version)
    except DecodeError:
        return
    assert message.decode(message.encode(value, version), version) == value


def with_unknown_tags(struct: Struct) -> Struct:
    """The struct with two tagged fields that the original does not know, here and in everything below."""
    fields = []
    for field in struct.fields:
        clone = Field(field.name, field.type, default=field.default, tag=field.tag, ignorable=field.ignorable)
        clone.versions, clone.nullable, clone.tagged = field.versions, field.nullable, field.tagged
        if isinstance(field.type, Struct):
            clone.type = with_unknown_tags(field.type)
        elif isinstance(field.type, Array) and isinstance(field.type.element, Struct):
            clone.type = Array(with_unknown_tags(field.type.element))
        fields.append(clone)
    low = Field("from_the_future", STRING, tagged="0+", tag=90, default="none")
    high = Field("from_afar", STRING, tagged="0+", tag=70_000, default="none")
    return Struct(struct.name, *fields, high, low)


def copy_into(newer: Message, struct: Struct, version: int, value: object) -> object:
    """The same value as an object of the newer message, its unknown fields filled."""
    fields = {}
    for field in present(struct, version):
        content = getattr(value, field.name)
        inner = getattr(field.type, "element", field.type)
        if isinstance(inner, Struct) and content is not None:
            many = [
                copy_into(newer, inner, version, item) for item in (content if isinstance(content, list) else [content])
            ]
            content = many if isinstance(content, list) else many[0]
        fields[field.name] = content
    return newer.classes.constructors[struct.name](**fields, from_the_future="x" * 200, from_afar="")


FLEXIBLE = [(m, v) for m, v in CASES if m.is_flexible(v)]


@pytest.mark.parametrize(("message", "version"), FLEXIBLE, ids=[f"{m.name}-{v}" for m, v in FLEXIBLE])
def test_unknown_tagged_fields_are_skipped_and_not_echoed(message: Message, version: int) -> None:
    newer = Message(message.name, f"0-{message.max_version}", message.flexible_from)
    newer.struct = with_unknown_tags(message.struct)
    value = sample(message, version, Random(version))
    data = newer.encode(copy_into(newer, message.struct, version, value), version)
    assert message.decode(data, version) == value
    assert b"x" * 200 not in message.encode(message.decode(data, version), version)
    for length in range(0, len(data), 7):
        with pytest.raises(DecodeError):
            message.decode(data[:length], version)


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (4, b"\x7f\xff\xff\xff"),  # 2^31 - 1 topics announced
        (9, b"\xff\xff\xff\xff\x0f"),  # the same, compact: 2^32 - 2
        (9, b"\x02\xff\xff\xff\xff\x07"),  # a name of 2 GiB
        (9, b"\x01\x00\x00\x00\xff\xff\xff\xff\x0f"),  # 2^32 - 1 tagged fields
        (9, b"\x01\x00\x00\x00\x01\x09\xff\xff\xff\xff\x0f"),  # a tagged field of 4 GiB
    ],
)
def test_announced_lengths_allocate_nothing(version: int, data: bytes) -> None:
    request = messages.metadata.MetadataRequest
    request.decode(request.encode(request.new(), version), version)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            request.decode(data, version)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xff\xff\xfe", "length -2"),
        (b"\x00\x00\x00\x01\xff\xff", "must not be null"),
        (b"\x00\x00\x00\x01\xff\xfe", "length -2"),
        (b"\x00\x00\x00\x01\x00\x02\xc3\x28", "utf-8"),
        (b"\x00\x00\x00\x01\x00\x03\xed\xa0\x80", "utf-8"),  # a lone surrogate
    ],
)
def test_the_error_names_the_fault(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        messages.metadata.MetadataRequest.decode(data, 1)


def test_a_varint_has_at_most_five_bytes_and_32_bits() -> None:
    request = messages.metadata.MetadataRequest
    for length in (b"\x80\x80\x80\x80\x80\x01", b"\xff\xff\xff\xff\x1f"):
        with pytest.raises(DecodeError, match="varint"):
            request.decode(length + bytes(40), 9)


def test_a_tagged_field_must_fill_its_size() -> None:
    request = messages.fetch.FetchRequest
    good = request.encode(request.new(cluster_id="abc"), 12)
    assert good.endswith(b"\x01\x00\x04\x04abc")
    for size in (3, 5):
        with pytest.raises(DecodeError):
            request.decode(good[:-5] + bytes([size]) + good[-4:] + b"d" * (size == 5), 12)


def test_a_compact_string_over_kafkas_limit_is_refused() -> None:
    request = messages.find_coordinator.FindCoordinatorRequest
    body = request.encode(request.new(key="k" * 32767), 3)
    assert request.decode(body, 3).key == "k" * 32767
    longer = b"\x81\x80\x02" + b"k" * 32768 + b"\0\0"
    with pytest.raises(DecodeError, match="32767"):
        request.decode(longer, 3)
