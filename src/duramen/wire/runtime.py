"""What generated codecs call: varints, skipping of unknown fields, and the base class of decoded structs."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from duramen.errors import BugError
from duramen.ports import Part
from duramen.wire.errors import DecodeError, EncodeError, TooManyElementsError

MISSING: Final = object()
"""Default of constructor arguments that each object gets a fresh list for."""

LONGEST_STRING: Final = 32767
"""Bytes; Kafka refuses longer strings also where the length field could say more."""

MOST_TAGS: Final = 1 << 32
HEADER_TAGS: Final = 1_000
"""A request's header has none so far; each one costs half a microsecond, and fits into two bytes."""

PIECES_AT_ONCE: Final = 20_000
"""Of an encoded message."""

SMALL: Final = 9
"""Arrays of numbers up to this length (excluded) have their packing ready."""

_VARINTS: Final = [bytes([value]) for value in range(128)]


def uvarint(value: int) -> bytes:
    """The unsigned varint of `value`: seven bits a byte, lowest first, high bit set on all but the last."""
    if value < 128:
        return _VARINTS[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(buffer: memoryview | bytes, position: int) -> tuple[int, int]:
    """(value, position behind it); at most five bytes and 32 bits. IndexError at the end of the buffer."""
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                raise DecodeError(f"varint before byte {position} exceeds 32 bits")
            return value, position
        shift += 7
        if shift > 28:
            raise DecodeError(f"varint before byte {position} is longer than five bytes")


def read_long_string_length(buffer: memoryview | bytes, position: int) -> tuple[int, int]:
    """Length + 1 of a compact string that needs more than one byte for it."""
    length, position = read_uvarint(buffer, position)
    if length > LONGEST_STRING + 1:
        raise DecodeError(f"string before byte {position} has {length - 1} bytes; {LONGEST_STRING} are allowed")
    return length, position


def long_string_length(length: int) -> bytes:
    """Varint of length + 1 of a compact string whose length does not fit one byte."""
    if length > LONGEST_STRING + 1:
        raise EncodeError(f"a string of {length - 1} bytes; {LONGEST_STRING} are allowed")
    return uvarint(length)


def skip_tags(buffer: memoryview | bytes, position: int, most: int = MOST_TAGS) -> int:
    """Position behind a section of tagged fields nobody asked for; DecodeError for more than `most`."""
    count, position = read_uvarint(buffer, position)
    end = len(buffer)
    if count > most:
        raise too_many("the tagged fields", count - most)
    if count * 2 > end - position:
        raise bad_length("tagged fields", count, end - position)
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
        if position > end:
            raise bad_length("tagged field", size, end - position + size)
    return position


def too_many(path: str, over: int) -> DecodeError:
    """The error for more elements in all arrays of a message than may be."""
    return TooManyElementsError(f"{path} and the arrays before it have {over} elements more than a message may have")


def bad_length(path: str, length: int, remaining: int) -> DecodeError:
    """The error for a null where none may be, a negative length, or one that reaches beyond the message."""
    if length == -1:
        return DecodeError(f"{path} must not be null")
    if length < 0:
        return DecodeError(f"{path} has the length {length}")
    return DecodeError(f"{path} announces {length}, only {remaining} bytes are left")


def bad_tag(path: str, position: int, expected: int) -> DecodeError:
    """The error for a tagged field whose content does not end where its size says."""
    return DecodeError(f"tagged field {path} ends at byte {position}, its size says {expected}")


def blob_size(blob: Any) -> int:
    """Bytes in a `records` value: a buffer, or an object with `.size` and `.parts`."""
    if isinstance(blob, bytes | bytearray):
        return len(blob)
    return blob.nbytes if isinstance(blob, memoryview) else blob.size


def put_blob(blob: Any, out: list[Any], parts: list[Part] | None) -> None:
    """Add a `records` value to the output without copying it; `parts` is where finished parts go, if asked for."""
    pieces = [blob] if isinstance(blob, bytes | bytearray | memoryview) else blob.parts
    if parts is None:
        out.extend(pieces)
        return
    if out:
        parts.append(b"".join(out))
        out.clear()
    parts.extend(pieces)


def join_slowly(pieces: list[Any], parts: list[Part]) -> None:
    """Add the pieces, so many at a time, and forget them: a million at once would hold every thread for a tenth of a
    second."""
    pieces.reverse()
    while pieces:
        some = pieces[-PIECES_AT_ONCE:]
        del pieces[-PIECES_AT_ONCE:]
        some.reverse()
        parts.append(b"".join(some))


def exact(value: bytes) -> bytes:
    """A UUID as it is; EncodeError unless it has its 16 bytes (packing would silently cut or fill)."""
    if len(value) != 16:
        raise EncodeError(f"a UUID has 16 bytes, not {len(value)}")
    return value


class StructValue:
    """A decoded or hand-made struct: plain slots, equality by value, a readable repr."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]
    field_names: ClassVar[tuple[str, ...]] = ()

    def __eq__(self, other: object) -> bool:
        names = self.field_names
        if not isinstance(other, StructValue) or other.field_names is not names:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.field_names)
        return f"{type(self).__name__}({inside})"


def frozen(value: Any) -> Any:
    """The same object as the shared default of its class: it refuses assignment, so that sharing is safe."""
    cls = type(value)

    def refuse(self: Any, name: str, value: object) -> None:
        raise BugError(f"{cls.__name__}.{name}: this is the shared default; assign a new {cls.__name__} instead")

    value.__class__ = type(cls.__name__, (cls,), {"__slots__": (), "__setattr__": refuse})
    return value
