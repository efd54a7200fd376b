"""One reader of one partition, from its position on: what is kept for all who follow, and what it reads on its own."""

from __future__ import annotations

from typing import Final, NamedTuple

from duramen.client.protocol.positions import BelowStartError
from duramen.dlsn import Dlsn
from duramen.errors import ErrorCode
from duramen.gateway.edge.kafka_problems import problem_of
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.streams.stream_page import StreamPage
from duramen.gateway.streams.stream_topics import StreamInfo
from duramen.gateway.tails.old_reads import OldReads
from duramen.gateway.tails.record_form import RecordForm
from duramen.gateway.tails.record_match import RecordMatch
from duramen.gateway.tails.shared_tails import SharedTails
from duramen.gateway.tails.tail_page import TailPage
from duramen.gateway.tails.tail_rings import TailReader, Taken

UNBOUNDED: Final = 1 << 31


class Portion(NamedTuple):
    """What a reader gets at a time: lines of NDJSON, so many records; none where only the position moved on."""

    lines: bytes
    records: int


class PartitionFollower:
    """The reader. It has to `leave`.

    match: records that it wants, None for all; joins: it follows, and shares the read at the end; who looks once asks
    the leader, because what the shared read has may be older than what its client has written. advance:
    where the records at its position were truncated, it goes on with the first that there is. position: after
    what it got; up_to_date: nothing was known after that; closed: nothing will come; advanced: truncated records were
    passed over.
    """

    def __init__(
        self,
        reads: OldReads,
        tails: SharedTails,
        metrics: GatewayMetrics,
        info: StreamInfo,
        form: RecordForm,
        position: Dlsn,
        *,
        match: RecordMatch | None = None,
        advance: bool = False,
        joins: bool = True,
    ) -> None:
        self._reads = reads
        self._tails = tails
        self._metrics = metrics
        self._info = info
        self._form = form
        self._match = match
        self._advance = advance
        self._joins = joins
        self._reader: TailReader | None = None
        self._waits = False
        self.position = position
        self.up_to_date = False
        self.closed = False
        self.advanced = False

    @property
    def reader(self) -> TailReader | None:
        """Its place in the shared tail; None while it reads on its own."""
        return self._reader

    @property
    def has_more(self) -> bool:
        """Whether `next` may give something at once."""
        if self.closed or self._waits:
            return False
        return self._reader is None or self._tails.has_more(self._reader)

    @property
    def is_asked_again(self) -> bool:
        """Whether its own read found nothing, where something has to be: in a moment it may."""
        return self._waits

    def leave(self) -> None:
        """It gets nothing any more."""
        if self._reader is not None:
            self._tails.leave(self._reader)
            self._reader = None

    async def next(self, most: int = UNBOUNDED) -> Portion | None:
        """What comes next, at most so many records; None where there is nothing now. Problem 404, 409, 410, 503."""
        if self.closed:
            return None
        self._waits = False
        while True:
            if self._reader is None and self._joins and self._tails.holds(self._info, self.position):
                self._reader = self._tails.join(self._info, self.position)
            if self._reader is None:
                return await self._read_alone(most)
            taken = self._tails.take(self._reader)
            if taken.failure is not None:
                self.leave()
                if taken.failure.code == ErrorCode.OFFSET_OUT_OF_RANGE:  # the end moved: what that means is its own
                    continue
                raise problem_of(taken.failure)
            if taken.alone:
                self._metrics.catch_ups.inc()
                return await self._read_alone(most)
            if taken.pages:
                return self._taken(self._reader, taken, most)
            self.up_to_date = not self._tails.has_more(self._reader)
            return None

    async def _read_alone(self, most: int) -> Portion | None:
        try:
            page = await self._reads.read(self._info, self.position, self._form)
        except BelowStartError as error:
            if not self._advance:
                raise
            self.position = error.first.dlsn
            self.advanced = True
            page = await self._reads.read(self._info, self.position, self._form)
        before = self.position
        found = self._wanted(page.page)
        if len(found.records) > most:
            lines: list[bytes] = []
            self._cut(found, most, lines)
            if self._reader is not None:
                self._tails.moved(self._reader, self.position)
            return self._portion(lines, most)
        self._moved(page.position, page.page.up_to_date, page.closed)
        if self._reader is not None:
            self._tails.moved(self._reader, page.position)
            self._waits = page.position == before and not page.closed  # it is asked again in a moment
        elif self._joins and page.page.up_to_date and not page.closed:
            self._reader = self._tails.join(self._info, page.position)
        return self._portion([self._lines(page, found)], len(found.records))

    def _taken(self, reader: TailReader, taken: Taken, most: int) -> Portion:
        lines: list[bytes] = []
        room = most
        for page in taken.pages:
            found = self._wanted(page.page)
            if len(found.records) > room:
                if room:
                    self._cut(found, room, lines)
                    room = 0
                self._tails.moved(reader, self.position)
                break
            lines.append(self._lines(page, found))
            room -= len(found.records)
            self._moved(page.position, page.page.up_to_date, page.closed)
        self.up_to_date = self.up_to_date and not self._tails.has_more(reader)
        return self._portion(lines, most - room)

    def _wanted(self, page: StreamPage) -> StreamPage:
        return page if self._match is None else self._match.of(page)

    def _lines(self, page: TailPage, found: StreamPage) -> bytes:
        """Of all records of the page what is kept for all readers, of some what they are."""
        return page.body(self._form) if found is page.page else self._form.body(found)

    def _cut(self, page: StreamPage, room: int, lines: list[bytes]) -> None:
        part = page.first(room)
        lines.append(self._form.body(part))
        self._moved(part.position, False, False)

    def _portion(self, lines: list[bytes], count: int) -> Portion:
        self._metrics.records_read.inc(count)
        return Portion(b"".join(lines), count)

    def _moved(self, position: Dlsn, up_to_date: bool, closed: bool) -> None:
        self.position = position
        self.up_to_date = up_to_date
        self.closed = closed
