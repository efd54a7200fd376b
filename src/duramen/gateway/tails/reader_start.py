"""Where a reader begins, and what it wants. Pure."""

from __future__ import annotations

from typing import NamedTuple

from duramen.gateway.tails.record_match import RecordMatch


class ReaderStart(NamedTuple):
    """Where a reader begins, and what it wants. position: a text that was handed out, -1 or now; field: where it was
    given. advance: what was truncated is passed over; joins: it follows, and does not only look once.
    """

    position: str
    field: str
    encoding: str | None
    advance: bool
    match: RecordMatch | None = None
    partition: int | None = None
    joins: bool = True
