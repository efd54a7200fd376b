"""Messages that carry their version in an i16 before them, and the value that stands for what nobody here knows."""

from __future__ import annotations

from struct import Struct as Packing
from typing import Any, Final, NamedTuple

from duramen.ports import Buffer
from duramen.wire.errors import DecodeError
from duramen.wire.schema import Message

VERSION: Final = Packing(">h")


class Unknown(NamedTuple):
    """A record of a type or version that is not declared; a reader may skip it. data: all of its bytes."""

    kind: int
    version: int
    data: bytes


def read_version(buffer: Buffer) -> int:
    """The i16 at the start; DecodeError when there is none."""
    if len(buffer) < VERSION.size:
        raise DecodeError(f"a record of {len(buffer)} bytes carries no version")
    version: int = VERSION.unpack_from(buffer)[0]
    return version


def encode(message: Message, value: Any, version: int) -> bytes:
    """The version and the message in that version."""
    return VERSION.pack(version) + message.encode(value, version)


def decode(message: Message, buffer: Buffer, kind: int = -1) -> Any:
    """The message behind its version; Unknown (of type `kind`) when the version is not declared."""
    version = read_version(buffer)
    if not message.min_version <= version <= message.max_version:
        return Unknown(kind, version, bytes(buffer))
    return message.decode(buffer, version, VERSION.size)
