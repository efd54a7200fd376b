"""Positions looked up at a back end that answers questions about its log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from duramen.client.protocol.fetch import FetchedBytes
from duramen.client.protocol.list_offsets import ListedOffset
from duramen.client.protocol.positions import Position, Question, find_place
from duramen.streams.records import StreamSpot

Answer = Callable[[Question], Awaitable[ListedOffset | FetchedBytes | None]]


async def find_spot(wanted: Position, answer: Answer) -> StreamSpot:
    """Where a position is; raises as `find_place`, and as `answer`."""
    lookup = find_place(wanted)
    question = next(lookup)
    while True:
        found = await answer(question)
        try:
            question = lookup.send(found)
        except StopIteration as end:
            return StreamSpot(end.value.offset, end.value.dlsn, end.value.is_end)
