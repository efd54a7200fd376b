"""What is sent of a page: a body, or server-sent events. Pure."""

from __future__ import annotations

from duramen.gateway.edge import media_type
from duramen.gateway.streams.json_messages import join_messages
from duramen.gateway.streams.stream_page import StreamPage
from duramen.gateway.tails import sse_frames


def body(page: StreamPage, content_type: str) -> bytes:
    """The messages: in a JSON stream an array of them, else their bytes."""
    return join_messages(page.messages) if media_type.is_json(content_type) else b"".join(page.messages)


def data_event(page: StreamPage, content_type: str) -> bytes:
    """The messages as an event; b"" where there are none."""
    if not page.messages:
        return b""
    return sse_frames.data_event(body(page, content_type), binary=not media_type.is_text(content_type))


def control_event(page: StreamPage, cursor: str) -> bytes:
    """Where the page ends, as an event."""
    closed = page.closed
    return sse_frames.control_event(
        sse_frames.ControlData(str(page.position), None if closed else cursor, page.up_to_date, closed)
    )
