"""Positions as users of streams give them, and as a log is asked for them. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NamedTuple

from duramen.client.protocol import positions
from duramen.client.protocol.list_offsets import EARLIEST, LATEST
from duramen.client.protocol.positions import AtOffset, AtTime
from duramen.dlsn import BEFORE_FIRST, INVALID, Dlsn
from duramen.streams.records import checked_txid


class Txid(NamedTuple):
    """The first record with this transaction id or a higher one."""

    value: int


Position = Literal["start", "end"] | int | Dlsn | datetime | Txid
"""Where to read from: an offset, a record's DLSN, the first record of a time (with a time zone) or later, or of a
transaction id.
"""


def wanted(position: Position) -> positions.Position:
    """As a log is asked for it. TypeError, ValueError for what is no position."""
    if position == "start":
        return AtOffset(EARLIEST)
    if position == "end":
        return AtOffset(LATEST)
    if isinstance(position, datetime):
        if position.tzinfo is None:
            raise ValueError(f"{position} has no time zone; give it one, such as datetime.UTC")
        return AtTime(max(0, int(position.timestamp() * 1000)))
    if isinstance(position, Dlsn):
        if position == INVALID or not (position.is_record or position == BEFORE_FIRST):
            raise ValueError(f"{tuple(position)} is no position")
        return position
    if isinstance(position, Txid):
        return AtTime(checked_txid(position.value))
    if isinstance(position, int) and not isinstance(position, bool) and 0 <= position < 1 << 63:
        return AtOffset(position)
    raise TypeError(f'a position is "start", "end", an offset, a Dlsn, a Txid or a datetime, not {position!r:.80}')
