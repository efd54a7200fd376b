"""The nouns of the schema language: scalar types, arrays, structs and fields with their versions.

A declaration names every field once for all versions, in the order in which Kafka sends them. Versions are written as
in Kafka's own schemas: "3" one version, "3-7" a range, "3+" from there on; "0+" is the default.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, Final, NamedTuple

NO_LIMIT: Final = sys.maxsize


class VersionRange(NamedTuple):
    """Versions `first` to `last`, both included."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


NO_VERSIONS: Final = VersionRange(1, 0)


@lru_cache(maxsize=256)
def version_range(text: str) -> VersionRange:
    """Parse "3", "3-7" or "3+"; ValueError for anything else."""
    if text.endswith("+"):
        return VersionRange(int(text[:-1]), NO_LIMIT)
    first, dash, last = text.partition("-")
    return VersionRange(int(first), int(last) if dash else int(first))


class Scalar:
    """A type of fixed size: its code in `struct` format strings, its size in bytes and its zero."""

    __slots__ = ("code", "name", "size", "zero")

    def __init__(self, name: str, code: str, size: int, zero: object) -> None:
        self.name = name
        self.code = code
        self.size = size
        self.zero = zero


class Text:
    """UTF-8 with a length before it: i16, or an unsigned varint of length + 1 in flexible versions."""

    zero = ""


class Blob:
    """Bytes with a length before it: i32, or an unsigned varint of length + 1 in flexible versions.

    by_reference: decoded as a view of the input and encoded without a copy, which is what record batches need.
    """

    __slots__ = ("by_reference", "zero")

    def __init__(self, by_reference: bool) -> None:
        self.by_reference = by_reference
        self.zero = None if by_reference else b""


INT8: Final = Scalar("int8", "b", 1, 0)
INT16: Final = Scalar("int16", "h", 2, 0)
INT32: Final = Scalar("int32", "i", 4, 0)
INT64: Final = Scalar("int64", "q", 8, 0)
FLOAT64: Final = Scalar("float64", "d", 8, 0.0)
UINT16: Final = Scalar("uint16", "H", 2, 0)
BOOL: Final = Scalar("bool", "?", 1, False)
UUID: Final = Scalar("uuid", "16s", 16, bytes(16))
STRING: Final = Text()
BYTES: Final = Blob(by_reference=False)
RECORDS: Final = Blob(by_reference=True)


class Array:
    """A list of `element`s with its count before it: i32, or an unsigned varint of count + 1 in flexible versions."""

    __slots__ = ("element",)

    def __init__(self, element: Scalar | Text | Struct) -> None:
        self.element = element


class Struct:
    """Named fields, one after the other. Within one message the same name must mean the same struct."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, *fields: Field) -> None:
        self.name = name
        self.fields = fields


Type = Scalar | Text | Blob | Array | Struct


class _Zero:
    """Stands for "the type's own zero" as a field's default."""


ZERO: Final = _Zero()


class Field:
    """One field of a struct.

    versions: where it exists; nullable: where it may be null; tagged: where it is sent as tagged field number `tag`.
    default: its value when absent (the type's zero unless given). ignorable: a version without the field may be
    encoded although the field holds something else; otherwise that is an error (the rule of Kafka's generator).
    """

    __slots__ = ("default", "ignorable", "name", "nullable", "tag", "tagged", "type", "versions")

    def __init__(
        self,
        name: str,
        type: Type,
        versions: str = "0+",
        *,
        nullable: str | None = None,
        tagged: str | None = None,
        tag: int = -1,
        default: Any = ZERO,
        ignorable: bool = False,
    ) -> None:
        self.name = name
        self.type = type
        self.versions = version_range(versions)
        self.nullable = version_range(nullable) if nullable else NO_VERSIONS
        self.tagged = version_range(tagged) if tagged else NO_VERSIONS
        self.tag = tag
        self.default = default
        self.ignorable = ignorable

    @property
    def zero(self) -> Any:
        """The default as a plain value; None for null. Arrays and structs that default to empty are not values here."""
        if self.default is not ZERO:
            return self.default
        return self.type.zero if isinstance(self.type, Scalar | Text | Blob) else ZERO


def split(struct: Struct, version: int) -> tuple[list[Field], list[Field], list[Field]]:
    """The struct's fields in one version: (sent in order, sent as tagged fields by ascending tag, absent)."""
    plain, tagged, absent = [], [], []
    for field in struct.fields:
        if version not in field.versions:
            absent.append(field)
        elif version in field.tagged:
            tagged.append(field)
        else:
            plain.append(field)
    tagged.sort(key=lambda field: field.tag)
    return plain, tagged, absent
