"""Positions in a stream as clients hold them: DLSNs, which clients need not look into, and which sort as texts."""

from __future__ import annotations

from typing import Final

from duramen.dlsn import FIRST, Dlsn, parse_dlsn
from duramen.gateway.problem import bad_request

BEGINNING: Final = "-1"
NOW: Final = "now"

START: Final = FIRST
"""The beginning of a stream, before anything was written."""


def behind(leader_epoch: int, base_offset: int, last_offset: int) -> Dlsn:
    """The position behind a batch: a reader that has it goes on with what comes next, whichever batch that is in."""
    return Dlsn(max(0, leader_epoch) + 1, base_offset, last_offset - base_offset + 1)


def parse_position(text: str) -> Dlsn:
    """The position of a text that was handed out. Problem 400 for any other."""
    try:
        return parse_dlsn(text)
    except ValueError as error:
        raise bad_request("offset", f"it is neither -1, now, nor a position: {error}") from None
