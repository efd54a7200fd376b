"""Records that came to the end of a stream together, put into each form once, whatever the number of readers. Pure."""

from __future__ import annotations

from bisect import bisect_left

from duramen.dlsn import Dlsn
from duramen.gateway.streams.stream_page import StreamPage
from duramen.gateway.tails import page_forms

_PAGE_WEIGHT = 2048
_MESSAGE_WEIGHT = 160
_LINE_WEIGHT = 8


class TailPage:
    """The records from position `start` to `position`. closed: nothing will come behind them.

    size: bytes of its messages. weight: bytes of memory that it may take in all of its forms. interval: number of the
    cursor's interval in which it came (`stream_cursor`).
    """

    __slots__ = ("_body", "_content_type", "_controls", "_event", "interval", "page", "size", "start", "weight")

    def __init__(self, start: Dlsn, page: StreamPage, content_type: str, interval: int) -> None:
        self.start = start
        self.page = page
        self.interval = interval
        self.size = sum(map(len, page.messages))
        lines = sum(message.count(b"\n") + message.count(b"\r") for message in page.messages)
        # The messages, a body and an event of them, which base64 makes a third longer.
        self.weight = _PAGE_WEIGHT + 4 * self.size + _LINE_WEIGHT * lines + _MESSAGE_WEIGHT * len(page.messages)
        self._content_type = content_type
        self._body: bytes | None = None
        self._event: bytes | None = None
        self._controls: dict[bool, bytes] = {}

    @property
    def position(self) -> Dlsn:
        return self.page.position

    @property
    def closed(self) -> bool:
        return self.page.closed

    def behind(self, position: Dlsn) -> TailPage:
        """What of it lies behind a position; all of it where that is its start."""
        if position.offset <= self.start.offset:
            return self
        first = bisect_left(self.page.offsets, position.offset)
        rest = self.page._replace(messages=self.page.messages[first:], offsets=self.page.offsets[first:])
        return TailPage(position, rest, self._content_type, self.interval)

    def body(self) -> bytes:
        """The messages as a GET answers them."""
        if self._body is None:
            self._body = page_forms.body(self.page, self._content_type)
        return self._body

    def frame(self, at_end: bool, cursor: str | None = None) -> bytes:
        """The messages as server-sent events, b"" where there is nothing to say.

        at_end: nothing is known to come behind it. cursor: for a reader that may not get the one of the interval.
        """
        if not self.page.messages and not self.closed:
            return b""
        if self._event is None:
            self._event = page_forms.data_event(self.page, self._content_type)
        if cursor is not None:
            return self._event + self._control(at_end, cursor)
        control = self._controls.get(at_end)
        if control is None:
            control = self._controls[at_end] = self._control(at_end, str(self.interval))
        return self._event + control

    def _control(self, at_end: bool, cursor: str) -> bytes:
        page = self.page
        return page_forms.control_event(page._replace(up_to_date=page.up_to_date and at_end), cursor)
