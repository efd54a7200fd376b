"""Records that came to the end of a stream together, put into each form once, whatever the number of readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from duramen.dlsn import Dlsn
from duramen.gateway.streams.stream_page import STEP_RECORDS, StreamPage
from duramen.gateway.tails.page_forms import PageForm, control_event

_PAGE_WEIGHT = 2048
_RECORD_WEIGHT = 320


class TailPage:
    """The records from position `start` to `position`. closed: nothing will come after them.

    size: bytes of its records. weight: bytes of memory that it takes, forms that were made included; `grown` is called
    with what it takes more. interval: number of the cursor's interval in which it came (`stream_cursor`).
    """

    __slots__ = ("_bodies", "_controls", "_events", "grown", "interval", "page", "size", "start", "weight")

    def __init__(self, start: Dlsn, page: StreamPage, interval: int) -> None:
        self.start = start
        self.page = page
        self.interval = interval
        self.size = page.size
        self.weight = _PAGE_WEIGHT + self.size + _RECORD_WEIGHT * len(page.records)
        self.grown: Callable[[int], None] | None = None
        self._bodies: dict[PageForm, bytes] = {}
        self._events: dict[PageForm, bytes] = {}
        self._controls: dict[bool, bytes] = {}

    @property
    def position(self) -> Dlsn:
        return self.page.position

    @property
    def closed(self) -> bool:
        return self.page.closed

    def after(self, position: Dlsn) -> TailPage:
        """What of it lies after a position; all of it where that is its start."""
        if position.offset <= self.start.offset:
            return self
        return TailPage(position, self.page.after(position), self.interval)

    def body(self, form: PageForm) -> bytes:
        """The records as a GET answers them."""
        if not form.is_kept:
            return form.body(self.page)
        found = self._bodies.get(form)
        if found is None:
            found = self._bodies[form] = form.body(self.page)
            self._grow(len(found))
        return found

    async def prepare(self, form: PageForm) -> None:
        """Make the body of lines in steps, between which others get their turn."""
        count = len(self.page.records)
        if count <= STEP_RECORDS or not form.is_lines or not form.is_kept or form in self._bodies:
            return
        parts = []
        for first in range(0, count, STEP_RECORDS):
            parts.append(form.body(self.page.part(first, first + STEP_RECORDS)))
            await asyncio.sleep(0)
        if form not in self._bodies:
            found = self._bodies[form] = b"".join(parts)
            self._grow(len(found))

    def events(self, form: PageForm) -> bytes:
        """The records as server-sent events, b"" for none, without the control event after them."""
        if not form.is_kept:
            return form.events(self.page)
        found = self._events.get(form)
        if found is None:
            found = self._events[form] = form.events(self.page)
            self._grow(len(found))
        return found

    def frame(self, form: PageForm, at_end: bool, cursor: str | None = None) -> bytes:
        """The records as server-sent events, b"" where there is nothing to say.

        at_end: nothing is known to come after it. cursor: for a reader that may not get the one of the interval.
        """
        if not self.page.records and not self.closed:
            return b""
        events = self.events(form)
        if cursor is not None:
            return events + self._control(at_end, cursor)
        control = self._controls.get(at_end)
        if control is None:
            control = self._controls[at_end] = self._control(at_end, str(self.interval))
        return events + control

    def _control(self, at_end: bool, cursor: str) -> bytes:
        page = self.page
        return control_event(page._replace(up_to_date=page.up_to_date and at_end), cursor)

    def _grow(self, by: int) -> None:
        self.weight += by
        if self.grown is not None:
            self.grown(by)
