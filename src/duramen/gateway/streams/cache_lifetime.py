"""How long an answer to a read may be kept by who asked. Pure."""

from __future__ import annotations

from typing import Final

from duramen.dlsn import Dlsn
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.streams.stream_page import StreamPage
from duramen.gateway.streams.stream_position import START
from duramen.gateway.streams.stream_topics import StreamInfo

REVALIDATED: Final = "no-cache"
FOR_A_MINUTE: Final = "private, max-age=60"
FOR_EVER: Final = "private, max-age=31536000, immutable"
"""Private: who may read it is asked anew for each reader."""


def cache_control(info: StreamInfo, position: Dlsn, page: StreamPage, stream_id: str | None) -> str:
    """Cache-Control of a page read at a position. stream_id: of the request, if it named one.

    What lies at the end may get more. What lies before it stays as it is after a position that names a record, unless
    the topic is compacted; but a stream of the same name, made later, may have the same positions, so an answer is only
    for ever where its address names the stream itself. The beginning moves.
    """
    if page.up_to_date:
        return REVALIDATED
    if stream_id is None or info.is_compacted or position <= START:
        return FOR_A_MINUTE
    return FOR_EVER


def is_listed(etag: str, if_none_match: str | None) -> bool:
    """Whether who asks has this answer already."""
    return if_none_match is not None and etag in (each.strip().removeprefix("W/") for each in if_none_match.split(","))


def check_stream_id(info: StreamInfo, stream_id: str | None) -> None:
    """Problem 409 where a request is about another stream, which had the name before."""
    if stream_id is not None and stream_id != info.topic_id.hex():
        raise ProblemError(
            409,
            "position-diverged",
            "stream_id: the stream of this name is another one by now; begin at its beginning",
        )
