"""The position of a reader of several partitions: a DLSN for each of them, as one text that clients need not look into.

Base64 (the alphabet of URLs) of a version, four bytes of the topic's id, and for each partition, ascending, four
numbers: how far it is from the one before, and the three of the DLSN; each as in LEB128. Pure.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Final

from duramen.dlsn import Dlsn
from duramen.gateway.edge.problem import ProblemError, bad_request

_VERSION: Final = 1
_ID_BYTES: Final = 4
_NUMBER_MAX_BYTES: Final = 10
TEXT_MAX: Final = 1 << 16


def topic_position_text(topic_id: bytes, positions: Mapping[int, Dlsn]) -> str:
    """The text for these positions, by partition."""
    out = bytearray([_VERSION])
    out += topic_id[:_ID_BYTES]
    before = 0
    for partition in sorted(positions):
        position = positions[partition]
        for number in (partition - before, position.lssn, position.entry, position.slot):
            _put(out, number)
        before = partition
    return base64.urlsafe_b64encode(out).rstrip(b"=").decode()


def parse_topic_position(text: str, topic_id: bytes, field: str) -> dict[int, Dlsn]:
    """The positions by partition. Problem 400 where it is none, 409 where it is one of another topic."""
    if len(text) > TEXT_MAX:
        raise bad_request(field, f"it is longer than {TEXT_MAX} characters")
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _none(field) from None
    if len(data) < 1 + _ID_BYTES or data[0] != _VERSION:
        raise _none(field)
    found: dict[int, Dlsn] = {}
    place, partition = 1 + _ID_BYTES, 0
    while place < len(data):
        numbers = []
        for _ in range(4):
            number, place = _take(data, place, field)
            numbers.append(number)
        position = Dlsn(*numbers[1:])
        if (found and not numbers[0]) or not position.is_record:
            raise _none(field)
        partition += numbers[0]
        found[partition] = position
    if data[1 : 1 + _ID_BYTES] != topic_id[:_ID_BYTES]:
        raise ProblemError(409, "position-diverged", f"{field}: the topic of this name is another one by now")
    return found


def _put(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _take(data: bytes, place: int, field: str) -> tuple[int, int]:
    number = 0
    for shift, byte in enumerate(data[place : place + _NUMBER_MAX_BYTES]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number, place + shift + 1
    raise _none(field)


def _none(field: str) -> ProblemError:
    return bad_request(field, "it is no position that a read of the topic gave, and neither -1 nor now")
