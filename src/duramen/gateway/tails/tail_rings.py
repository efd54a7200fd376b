"""The ends of streams, kept for all who follow them: pages in order, where each reader stands, and what it gets next.

Pure: what comes from the cluster is handed in, and time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from duramen.dlsn import Dlsn
from duramen.errors import DuramenError
from duramen.gateway.tails.tail_page import TailPage

StreamKey = tuple[bytes, int]
"""Topic id and partition."""


class TailRing:
    """The last pages of a stream, without gaps from `start` to `end`; one reads at `end` for all of its readers.

    closed: nothing will come. failure: what ended the reading, or None.
    """

    __slots__ = ("closed", "end", "failure", "first", "key", "left_s", "pages", "readers", "start")

    def __init__(self, key: StreamKey, position: Dlsn) -> None:
        self.key = key
        self.start = self.end = position
        self.pages: deque[TailPage] = deque()
        self.first = 0
        """Number of the first page that is kept, counted from the ring's begin."""
        self.readers = 0
        self.left_s = 0.0
        """When the last reader left."""
        self.closed = False
        self.failure: DuramenError | None = None


class TailReader:
    """Who follows a stream: it has all up to `position`. number: of the page that it gets next."""

    __slots__ = ("number", "position", "ring")

    def __init__(self, ring: TailRing, position: Dlsn) -> None:
        self.ring = ring
        self.position = position
        self.number = 0


class Taken(NamedTuple):
    """What a reader gets: pages; or, with none of them, that it has to read on its own from its position until it has
    caught up (alone), that the reading has failed, or that it has to wait. at_end: nothing is known after the pages.
    """

    pages: list[TailPage]
    at_end: bool = False
    alone: bool = False
    failure: DuramenError | None = None


class TailRings:
    """The rings of a gateway. max_bytes: of all pages together, the oldest go first; a reader that still wanted one
    reads on its own. linger_s: how long a ring is kept without readers.
    """

    def __init__(self, max_bytes: int, linger_s: float) -> None:
        self._max_bytes = max_bytes
        self._linger_s = linger_s
        self._rings: dict[StreamKey, TailRing] = {}
        self._kept: OrderedDict[TailPage, TailRing] = OrderedDict()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._rings)

    def holds(self, key: StreamKey, position: Dlsn) -> bool:
        """Whether a reader at the position would get all that comes from the ring.

        A position of another leader epoch than the ring's end has to be looked at first: it may be of lost records.
        """
        ring = self._rings.get(key)
        if ring is None or position.leader_epoch != ring.end.leader_epoch:
            return False
        return ring.start.offset <= position.offset <= ring.end.offset

    def join(self, key: StreamKey, position: Dlsn) -> TailReader:
        """A new reader. Where the stream has no ring, one begins at its position: that is to be read on from then."""
        ring = self._rings.get(key)
        if ring is None:
            ring = self._rings[key] = TailRing(key, position)
        ring.readers += 1
        reader = TailReader(ring, position)
        self.moved(reader, position)
        return reader

    def leave(self, reader: TailReader, now_s: float) -> None:
        """The reader is gone."""
        reader.ring.readers -= 1
        reader.ring.left_s = now_s

    def moved(self, reader: TailReader, position: Dlsn) -> None:
        """The reader has read on its own up to a position."""
        ring = reader.ring
        reader.position = position
        reader.number = ring.first + len(ring.pages)
        for page in reversed(ring.pages):
            if _has(reader, page):
                break
            reader.number -= 1

    def take(self, reader: TailReader, max_bytes: int) -> Taken:
        """What comes next for the reader, up to `max_bytes` of messages or one page; the reader has it then."""
        ring = reader.ring
        if ring.failure is not None:
            return Taken([], failure=ring.failure)
        if reader.position.offset < ring.start.offset:
            return Taken([], alone=True)
        first = max(0, reader.number - ring.first)
        while first < len(ring.pages) and _has(reader, ring.pages[first]):
            first += 1
        end, room = first, max_bytes
        while end < len(ring.pages) and (end == first or ring.pages[end].size <= room):
            room -= ring.pages[end].size
            end += 1
        if end == first:
            return Taken([], alone=ring.closed)  # a page that closes may be gone, too
        pages = [ring.pages[each] for each in range(first, end)]
        pages[0] = pages[0].after(reader.position)
        reader.position = pages[-1].position
        reader.number = ring.first + end
        return Taken(pages, end == len(ring.pages))

    def has_more(self, reader: TailReader) -> bool:
        """Whether `take` would give the reader anything."""
        ring = reader.ring
        return ring.failure is not None or ring.closed or ring.end.offset > reader.position.offset

    # ---- what comes from the cluster -------------------------------------------------------------------------

    def add(self, ring: TailRing, page: TailPage, log_start: int) -> None:
        """A page that was read at the ring's end. log_start: what lies before it is no more in the log."""
        if page.position.offset > ring.end.offset or page.closed:
            ring.pages.append(page)
            ring.end = page.position
            ring.closed = page.closed
            self._kept[page] = ring
            self.held_bytes += page.weight
            page.grown = self._grow
        while ring.pages and ring.start.offset < log_start:
            self._drop_oldest(ring)
        self._grow(0)

    def fail(self, ring: TailRing, failure: DuramenError) -> None:
        """The ring is not read any more: each of its readers gets to know that, and later ones begin another."""
        ring.failure = failure
        self._remove(ring)

    def idle(self, now_s: float) -> list[TailRing]:
        """Rings without readers whose time is up; they are no more."""
        found = [ring for ring in self._rings.values() if not ring.readers and now_s - ring.left_s >= self._linger_s]
        for ring in found:
            self._remove(ring)
        return found

    def _remove(self, ring: TailRing) -> None:
        if self._rings.get(ring.key) is ring:
            del self._rings[ring.key]
        while ring.pages:
            self._drop_oldest(ring)

    def _grow(self, by: int) -> None:
        """Pages that are kept take more memory: the oldest go."""
        self.held_bytes += by
        while self.held_bytes > self._max_bytes:
            self._drop_oldest(next(iter(self._kept.values())))

    def _drop_oldest(self, ring: TailRing) -> None:
        page = ring.pages.popleft()
        ring.first += 1
        ring.start = page.position
        del self._kept[page]
        page.grown = None
        self.held_bytes -= page.weight


def _has(reader: TailReader, page: TailPage) -> bool:
    return page.position.offset <= reader.position.offset and not page.closed
