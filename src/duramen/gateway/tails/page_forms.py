"""What is sent of a page: a body, or server-sent events. Pure."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from duramen.gateway.edge import media_type
from duramen.gateway.streams.json_messages import join_messages
from duramen.gateway.streams.stream_page import StreamPage
from duramen.gateway.tails import sse_frames


class PageForm(Protocol):
    """How records are shown. Equal forms show the same, so what one reader got is kept for all of its form."""

    @property
    def name(self) -> str:
        """Tells it from the other forms of a stream; "" for the stream's own."""

    @property
    def media_type(self) -> str:
        """Of a body."""

    @property
    def is_text(self) -> bool:
        """Whether events have it as it is, rather than as base64."""

    @property
    def is_lines(self) -> bool:
        """Whether a body is the bodies of its parts, one after the other."""

    @property
    def is_kept(self) -> bool:
        """Whether what it makes is kept for other readers."""

    def body(self, page: StreamPage) -> bytes:
        """The records as a GET answers them."""

    def events(self, page: StreamPage) -> bytes:
        """The records as events; b"" where there are none."""


class MessageForm(NamedTuple):
    """The values alone, as the stream's type has them: in a JSON stream an array, else their bytes."""

    content_type: str

    @property
    def name(self) -> str:
        return ""

    @property
    def media_type(self) -> str:
        return self.content_type

    @property
    def is_text(self) -> bool:
        return media_type.is_text(self.content_type)

    @property
    def is_lines(self) -> bool:
        return False

    @property
    def is_kept(self) -> bool:
        return True

    def body(self, page: StreamPage) -> bytes:
        """In a JSON stream an array of the values, else their bytes."""
        return join_messages(page.messages) if media_type.is_json(self.content_type) else b"".join(page.messages)

    def events(self, page: StreamPage) -> bytes:
        """One event with all of them."""
        if not page.records:
            return b""
        return sse_frames.data_event(self.body(page), page.event_id, binary=not self.is_text)


def control_event(page: StreamPage, cursor: str) -> bytes:
    """Where the page ends, as an event."""
    closed = page.closed
    return sse_frames.control_event(
        sse_frames.ControlData(str(page.position), None if closed else cursor, page.up_to_date, closed), page.event_id
    )
