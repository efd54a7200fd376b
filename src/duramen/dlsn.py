"""Positions as DistributedLog has them: which history a record belongs to, which batch it came in, and its place there.

A DLSN (DistributedLog sequence number) names one record of a log for ever, where an offset names whatever is stored
there by now. Another log that is made later under the name begins with the same ones: the topic's id tells them apart.
The log segment sequence number counts leader epochs from 1, an entry is a batch and its id that batch's base offset, a
slot is a record of it: so the offset is entry + slot. They are ordered as tuples are, and so are their texts.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from typing import Final, NamedTuple

_BYTES: Final = struct.Struct(">bqqq")
_VERSION: Final = 1
_TEXT: Final = re.compile("([0-9a-f]{8})-([0-9a-f]{16})-([0-9a-f]{8})")
_ID_DIGITS: Final = 8
_ID: Final = re.compile("[0-9a-f]{8}")
_GREATEST: Final = (2**31, 2**63 - 1, 2**31 - 1)
"""Leader epochs and places in a batch have 31 bits, offsets 63."""


class Dlsn(NamedTuple):
    """One position. lssn: leader epoch + 1; entry: base offset of the batch; slot: place in the batch, from 0."""

    lssn: int
    entry: int
    slot: int

    @property
    def offset(self) -> int:
        return self.entry + self.slot

    @property
    def leader_epoch(self) -> int:
        """Of the batch."""
        return self.lssn - 1

    @property
    def next(self) -> Dlsn:
        """The least position above this one; there need not be a record."""
        return self._replace(slot=self.slot + 1)

    @property
    def is_record(self) -> bool:
        """Whether a record can have it: DistributedLog has positions that lie between or name nothing."""
        return all(low <= number <= high for low, number, high in zip((1, 0, 0), self, _GREATEST, strict=True))

    def __str__(self) -> str:
        """34 characters that sort as the positions do; of one that no record can have, its base64."""
        if not self.is_record:
            return self.base64_text
        return f"{self.lssn:08x}-{self.entry:016x}-{self.slot:08x}"

    @property
    def base64_text(self) -> str:
        """DistributedLog's own text: 36 characters of base64."""
        return base64.b64encode(_BYTES.pack(_VERSION, *self)).decode("ascii")


FIRST: Final = Dlsn(1, 0, 0)
"""DistributedLog's InitialDLSN: of a log's first record."""
BEFORE_FIRST: Final = Dlsn(1, 0, -1)
"""Its NonInclusiveLowerBound: `next` of it is the first."""
INVALID: Final = Dlsn(0, -1, -1)
"""Its InvalidDLSN: no position."""


class LogEnd(NamedTuple):
    """Where a log has to end, and the leader epoch that the record in front of that has (-1: any)."""

    offset: int
    epoch: int = -1


ANYWHERE: Final = LogEnd(-1)
NOWHERE: Final = LogEnd((1 << 63) - 2)
"""An end that no log has."""


def expected_end(position: Dlsn) -> LogEnd:
    """The end that a position behind a record is. A record's own is NOWHERE: the log has it, and goes on behind it."""
    if position <= FIRST:
        return LogEnd(0)
    return LogEnd(position.offset, position.leader_epoch) if position.slot > 0 else NOWHERE


def dlsn_at(offset: int, base_offset: int, leader_epoch: int) -> Dlsn:
    """The position of the record at `offset`, in the batch with this base offset and leader epoch."""
    return Dlsn(leader_epoch + 1, base_offset, offset - base_offset)


def parse_dlsn(text: str) -> Dlsn:
    """A position from either text: ours, or DistributedLog's base64. ValueError says what it has to be."""
    match = _TEXT.fullmatch(text)
    if match is not None:
        found = Dlsn(*(int(number, 16) for number in match.groups()))
        if found.is_record:
            return found
        raise ValueError(f"{text!r} is no record's position: 1 to 2^31, 0 to 2^63 - 1, 0 to 2^31 - 1")
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _not_one(text) from None
    if len(raw) != _BYTES.size or raw[0] != _VERSION or base64.b64encode(raw) != text.encode("ascii"):
        raise _not_one(text)
    _, lssn, entry, slot = _BYTES.unpack(raw)
    return Dlsn(lssn, entry, slot)


def identified_text(position: Dlsn, stream_id: str) -> str:
    """The text with the first 8 digits of the stream's id behind a dot, which tells its positions from those of another
    stream of the name; without them where there is no id."""
    return f"{position}.{stream_id[:_ID_DIGITS]}" if stream_id else str(position)


def parse_identified(text: str) -> tuple[Dlsn, str]:
    """A position from either text, with the digits of the stream's id; "" where it has none. ValueError."""
    head, dot, digits = text.rpartition(".")
    if not dot:
        return parse_dlsn(text), ""
    if not _ID.fullmatch(digits):
        raise ValueError(f"{text[:80]!r} is no DLSN with 8 hexadecimal digits of a stream's id behind a dot")
    return parse_dlsn(head), digits


def is_of(stream_id: str, digits: str) -> bool:
    """Whether a position with these digits is one of the stream, as far as it is known."""
    return not digits or not stream_id or stream_id.startswith(digits)


def _not_one(text: str) -> ValueError:
    return ValueError(
        f"{text[:80]!r} is no DLSN: it is 8, 16 and 8 hexadecimal digits as in "
        f"{FIRST}, or DistributedLog's base64 (version 1)"
    )
