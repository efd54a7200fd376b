"""Positions in a stream as clients hold them: DLSNs, which clients need not look into, and which sort as texts."""

from __future__ import annotations

import re
from typing import Final

from duramen.dlsn import BEFORE_FIRST, FIRST, Dlsn, is_of, parse_dlsn, parse_identified
from duramen.gateway.edge.problem import ProblemError, bad_request
from duramen.wire.batch import parse_header

BEGINNING: Final = "-1"
NOW: Final = "now"

_OFFSET: Final = re.compile(r"[0-9]{1,19}", re.ASCII)

START: Final = FIRST
"""The beginning of a stream, before anything was written."""


def position_after(leader_epoch: int, base_offset: int, last_offset: int) -> Dlsn:
    """The position after a batch: a reader that has it goes on with what comes next, whichever batch that is in."""
    return Dlsn(max(0, leader_epoch) + 1, base_offset, last_offset - base_offset + 1)


def parse_position(text: str, field: str = "offset") -> Dlsn:
    """The position of a text that was handed out. Problem 400 for any other, which names the field."""
    try:
        position = parse_dlsn(text)
    except ValueError as error:
        hint = f"; an offset of the topic is found by .position?offset={text}" if _OFFSET.fullmatch(text) else ""
        raise bad_request(field, f"it is no position: {error}{hint}") from None
    if position == BEFORE_FIRST:
        return START
    if not position.is_record:
        raise bad_request(field, f"{text} is no position of a record")
    return position


def parse_position_in(text: str, stream_id: str, field: str = "offset") -> Dlsn:
    """The same of a text that may say, as ids of events do, which stream of the name it is of. Problem 409 where that
    is another one."""
    head, dot, digits = text.rpartition(".")
    if not dot:
        return parse_position(text, field)
    try:
        parse_identified(text)
    except ValueError as error:
        raise bad_request(field, f"it is no position: {error}") from None
    position = parse_position(head, field)
    if stream_id and not is_of(stream_id, digits):
        raise ProblemError(
            409,
            "position-diverged",
            f"{field}: the stream of this name is another one by now; read it from its beginning",
        )
    return position


def is_confirmed(position: Dlsn, data: memoryview) -> bool:
    """Whether the batches fetched at a position, or the one in front of it, show that what it names is stored.

    They do where they go on in its leader epoch: a leader has one history. If not, it has to be looked up.
    """
    if position <= START:
        return True
    if not data:
        return False
    header = parse_header(data)
    goes_on = header.base_offset == position.entry or (position.slot > 0 and header.base_offset == position.offset)
    return goes_on and header.leader_epoch == position.leader_epoch
