"""The records of namespaces, read from their topic and changed by compare-and-append. Pure.

`NamespaceReading` and `NamespaceWriting` are generators: they yield what the topic's leader has to be asked, and are
sent the answers. Who runs them has the connections. Nobody holds the records: a change is appended where the topic
ended when it was decided, or decided anew.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Final, NamedTuple

from duramen.client.protocol.namespaces import NamespaceRecord, parse_record
from duramen.errors import DeadlineError, ErrorCode, KafkaError
from duramen.wire.aborted import AbortedTransaction, AbortedTransactions
from duramen.wire.batch import NewRecord, batches, records

FROM_START: Final = -1
_ROUNDS_MAX: Final = 200
_STANDING_MAX: Final = 20
_INFLATED_MAX: Final = 16 << 20


class ReadNamespaces(NamedTuple):
    """Fetch committed batches from an offset, or FROM_START; a NamespaceStretch. wait: some time, where none is there.

    The answer is None where the offset is none of the topic's, as after it was made anew.
    """

    offset: int
    wait: bool


class AppendNamespaces(NamedTuple):
    """Append the records as one batch where the topic ends at `expected`; make the topic where it is not there.

    The answer is whether they are stored. Sent again, it must not store them twice, and say that they are stored.
    """

    rows: Sequence[NewRecord]
    expected: int


class NamespaceStretch(NamedTuple):
    """Whole batches, empty at the end; which transactions in them were rolled back; the end of what is committed.

    A topic that is not there: no data, and 0.
    """

    data: bytes | memoryview
    aborted: Sequence[AbortedTransaction]
    end: int


NamespaceAsk = ReadNamespaces | AppendNamespaces
NamespaceReading = Generator[NamespaceAsk, NamespaceStretch | bool | None, None]
NamespaceWriting = Generator[NamespaceAsk, NamespaceStretch | bool | None, None]


class NamespaceLog:
    """What the topic says, as far as it was read. For one reading or writing at a time."""

    def __init__(self) -> None:
        self.records: dict[str, NamespaceRecord] = {}
        self._end = FROM_START

    def forget(self) -> None:
        """Read all of it the next time."""
        self.records = {}
        self._end = FROM_START

    def read(self, *, wait: bool = False) -> NamespaceReading:
        """Read on to the end of what is committed. wait: some time, for what is appended but not committed."""
        while True:
            stretch = yield ReadNamespaces(self._end, wait)
            if stretch is None:
                self.forget()
                continue
            assert isinstance(stretch, NamespaceStretch)
            wait = False
            before = self._end
            self._take(stretch)
            if before == FROM_START and not stretch.data:
                self._end = stretch.end  # nothing is left of what was there
            if self._end >= stretch.end:
                return
            if self._end == before:
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"the namespaces: nothing came at {before}, and the end is {stretch.end}",
                )

    def change(self, decide: Callable[[Mapping[str, NamespaceRecord]], Sequence[NewRecord]]) -> NamespaceWriting:
        """Append what `decide` finds to be missing, given all that is committed; it is asked again after a race.

        DeadlineError where others are first each time, or a transaction that stays open hides what they wrote.
        """
        standing = 0
        for _ in range(_ROUNDS_MAX):
            before = self._end
            yield from self.read(wait=standing > 0)
            rows = decide(self.records)
            if not rows:
                return
            if (yield AppendNamespaces(rows, self._end)):
                return
            standing = standing + 1 if self._end == before else 1
            if standing > _STANDING_MAX:
                break
        raise DeadlineError("the namespaces: others write at the same time, or left a transaction open; try again")

    def _take(self, stretch: NamespaceStretch) -> None:
        rolled_back = AbortedTransactions(stretch.aborted)
        whole = memoryview(stretch.data)
        for position, header in batches(whole):
            if header.next_offset <= self._end:
                continue
            view = whole[position : position + header.size]
            if not rolled_back.hides(header, view) and not header.is_control:
                for row in records(view, header, max_bytes=_INFLATED_MAX):
                    if row.offset >= self._end:
                        self._take_row(row.key, row.value)
            self._end = header.next_offset

    def _take_row(self, key: bytes | memoryview | None, value: bytes | memoryview | None) -> None:
        name = None if key is None else bytes(key)
        if value is None:
            self.records.pop("" if name is None else name.decode("utf-8", "replace"), None)
            return
        record = parse_record(name, bytes(value))
        if record is not None:
            self.records[record.path] = record
