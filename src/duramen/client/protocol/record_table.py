"""A table: the last value of each key of a compacted topic, read from it and changed by compare-and-append. Pure.

`TableReading` and `TableWriting` are generators: they yield what the topic's leader has to be asked, and are
sent the answers. Who runs them has the connections. Nobody holds the records: a change is appended where the topic
ended when it was decided, or decided anew.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from duramen.errors import DeadlineError, ErrorCode, KafkaError
from duramen.wire.aborted import AbortedTransaction, AbortedTransactions
from duramen.wire.batch import NewRecord, batches, records

FROM_START: Final = -1
_ROUNDS_MAX: Final = 200
_STANDING_MAX: Final = 20
_INFLATED_MAX: Final = 16 << 20
_T = TypeVar("_T")


class ReadTable(NamedTuple):
    """Fetch committed batches from an offset, or FROM_START; a TableStretch. wait: some time, where none is there.

    The answer is None where the offset is none of the topic's, as after it was made anew.
    """

    offset: int
    wait: bool


class AppendTable(NamedTuple):
    """Append the records as one batch where the topic ends at `expected`; make the topic where it is not there.

    The answer is whether they are stored. Sent again, it must not store them twice, and say that they are stored.
    """

    rows: Sequence[NewRecord]
    expected: int


class TableStretch(NamedTuple):
    """Whole batches, empty at the end; which transactions in them were rolled back; the end of what is committed.

    A topic that is not there: no data, and 0.
    """

    data: bytes | memoryview
    aborted: Sequence[AbortedTransaction]
    end: int


TableAsk = ReadTable | AppendTable
TableReading = Generator[TableAsk, TableStretch | bool | None, None]
TableWriting = Generator[TableAsk, TableStretch | bool | None, None]


class RecordTable(Generic[_T]):
    """What the topic says, as far as it was read. For one reading or writing at a time.

    what: the records, in errors; parse: a key and a value as the record that they are, and its name, or None for what
    is none; a key without a value removes the record whose name it is.
    """

    def __init__(self, what: str, parse: Callable[[bytes | None, bytes], tuple[str, _T] | None]) -> None:
        self.records: dict[str, _T] = {}
        self._what = what
        self._parse = parse
        self._end = FROM_START

    def forget(self) -> None:
        """Read all of it the next time."""
        self.records = {}
        self._end = FROM_START

    def read(self, *, wait: bool = False) -> TableReading:
        """Read on to the end of what is committed. wait: some time, for what is appended but not committed."""
        while True:
            stretch = yield ReadTable(self._end, wait)
            if stretch is None:
                self.forget()
                continue
            assert isinstance(stretch, TableStretch)
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
                    f"{self._what}: nothing came at {before}, and the end is {stretch.end}",
                )

    def change(self, decide: Callable[[Mapping[str, _T]], Sequence[NewRecord]]) -> TableWriting:
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
            if (yield AppendTable(rows, self._end)):
                return
            standing = standing + 1 if self._end == before else 1
            if standing > _STANDING_MAX:
                break
        raise DeadlineError(f"{self._what}: others write at the same time, or left a transaction open; try again")

    def _take(self, stretch: TableStretch) -> None:
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
        found = self._parse(name, bytes(value))
        if found is not None:
            self.records[found[0]] = found[1]
