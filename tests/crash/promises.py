"""What a workload was promised by the storage engine, and whether a directory that was opened again keeps it.

A ledger grows with a run; `snapshot` is what holds at one moment, which a tape's mark carries. What was only asked for
(a record that is queued, a deletion under way) may have happened or not; what was acknowledged must have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.worlds.stored_batches import stored_batches

from duramen.errors import KafkaError
from duramen.model import TopicId, TopicPartition
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.files.atomic import read_file
from duramen.storage.log.log import Log
from duramen.storage.segment.partition_metadata import read_topic_id
from duramen.storage.segment.producer_state import Duplicate
from duramen.storage.segment.stream_state import stream_after
from duramen.wire.batch import ABORT, parse_header, read_marker, records

READ_BYTES = 1 << 20


class PromiseBrokenError(AssertionError):
    """What was promised does not hold."""


def require(holds: bool, what: str) -> None:
    """PromiseBrokenError unless it holds."""
    if not holds:
        raise PromiseBrokenError(what)


@dataclass(slots=True)
class LogPromise:
    """What is promised of one log.

    queued: every batch ever handed over, by base offset, oldest first: (how often the log was cut before, its bytes).
    acknowledged: by base offset. synced_end: of a page-cache topic, what a checkpoint has made durable.
    start_asked, start: the log start that was asked for, the acknowledged one. cut_asked: the offset of the truncation
    under way; cuts_asked, cuts: how many truncations were asked for and acknowledged. lost: the path of a file that was
    taken away or is an old one; whichever start makes it anew says so. forgotten: the highest log start that was asked
    for and never came to be: the file of epochs may be of that moment, and know nothing of the batches in front. gaps:
    where the log ended in front of batches that do not begin there. anew: what is promised of the empty log that is to
    take its place, while that is under way. behind: batches that may be there only where another log has a record at an
    offset. kept: where it is gone its directory is there under another name, with all that was acknowledged. ended: of
    a page-cache topic, markers of transactions that are over.
    """

    tp: TopicPartition
    stable: bool = True
    compacted: bool = False
    created: bool = False
    delete_asked: bool = False
    deleted: bool = False
    queued: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    start_asked: int = 0
    start: int = 0
    epoch: int = -1
    cut_asked: int | None = None
    cuts_asked: int = 0
    cuts: int = 0
    synced_end: int = 0
    lost: str = ""
    forgotten: int = 0
    gaps: dict[bytes, int] = field(default_factory=dict)
    anew: LogPromise | None = None
    behind: dict[bytes, tuple[TopicId, int]] = field(default_factory=dict)
    kept: bool = False
    ended: dict[int, bytes] = field(default_factory=dict)

    def snapshot(self) -> LogPromise:
        """A copy that later acknowledgements do not change; what may be there is shared."""
        anew = None if self.anew is None else self.anew.snapshot()
        return replace(self, acknowledged=dict(self.acknowledged), ended=dict(self.ended), anew=anew)

    def moved(self, marker: bytes) -> list[int]:
        """How often the log was cut before each batch that the marker was, further up: a power cut took it there."""
        header = parse_header(marker)
        return [
            cut
            for base, queued in self.queued.items()
            for cut, data in queued
            if base >= header.base_offset and data[8:] == marker[8:]
        ]

    def history(self, start: int, end: int) -> dict[int, bytes]:
        """The batches that make the log up to `end` now, back to the one that holds `start`; none that was cut away."""
        ending: dict[int, tuple[int, int, bytes]] = {}
        for base, queued in self.queued.items():
            for cut, data in queued:
                after = parse_header(data).next_offset
                if after not in ending or cut >= ending[after][0]:
                    ending[after] = (cut, base, data)
        found: dict[int, bytes] = {}
        while end > start:
            _, base, data = ending[end]
            found[base] = data
            end = self.gaps.get(data, base)
        return found


Promises = dict[TopicId, LogPromise]


def settled(log: Log, promise: LogPromise) -> LogPromise:
    """What is promised of it behind a start: where it was to begin anew, of the one log or of the other."""
    anew, promise.anew = promise.anew, None
    if anew is None:
        return promise
    try:
        check_log(log, view_of(log), promise)
    except (PromiseBrokenError, KafkaError):  # of producers that the new log does not know
        return anew
    return promise


class LogView(NamedTuple):
    """One log as it answers after a start."""

    start: int
    end: int
    batches: list[tuple[int, bytes]]
    epochs: list[tuple[int, int]]


def read_raw(log: Log) -> list[tuple[int, bytes]]:
    """Every batch from the log start on, as (base offset, bytes)."""
    stored = stored_batches(log, log.start_offset, log.end_offset, READ_BYTES)
    return [(header.base_offset, bytes(view)) for header, view in stored]


def view_of(log: Log) -> LogView:
    """The log as its readers see it."""
    return LogView(log.start_offset, log.end_offset, read_raw(log), log.epochs.entries)


def check_directory(directory: LogDirectory, promises: Promises) -> dict[TopicId, LogView]:
    """All that was promised of a directory's logs; returns what they answered."""
    expected = tuple(f"{log.lost}: " for log in promises.values() if log.lost)
    damage = [told for told in directory.recovery.damage if not told.startswith(expected)]
    require(damage == [], f"damage was reported: {damage}")
    require(not directory.offline, f"not served: {[left.error for left in directory.offline.values()]}")
    logs = {log.topic_id: log for log in directory.logs.values()}
    views = {}
    for topic_id, promise in promises.items():
        log = logs.pop(topic_id, None)
        if log is None:
            gone = promise.delete_asked or not promise.created
            require(gone, f"{promise.tp} is gone, and nobody asked for it")
            if promise.kept:
                _check_kept(directory, topic_id, promise)
            continue
        require(not promise.deleted, f"{promise.tp} was deleted and is back")
        views[topic_id] = view_of(log)
        check_log(log, views[topic_id], promise)
    for topic_id, view in views.items():
        for base, data in view.batches:
            other, offset = promises[topic_id].behind.get(data, (topic_id, -1))
            what = f"{promises[topic_id].tp}: the batch at {base} is there, {promises[other].tp} ends before {offset}"
            require(views[other].end > offset, what)
    require(not logs, f"logs that nobody made: {sorted(str(log.tp) for log in logs.values())}")
    return views


def _check_kept(directory: LogDirectory, topic_id: TopicId, promise: LogPromise) -> None:
    disk, found = directory.disk, []
    for name in disk.list_directory(directory.path):
        home = f"{directory.path}/{name}"
        if name.startswith(f"{promise.tp}.") and name.endswith("-stray") and read_topic_id(disk, home) == topic_id:
            found.append(home)
    require(len(found) == 1, f"{promise.tp} was to be kept, and is in {found}")
    data = b""
    for name in sorted(each for each in disk.list_directory(found[0]) if each.endswith(".log")):
        data += read_file(disk, f"{found[0]}/{name}") or b""
    lost = [base for base, batch in promise.acknowledged.items() if batch not in data]
    require(not lost, f"{found[0]} lacks the batches at {lost}")


def check_log(log: Log, view: LogView, promise: LogPromise) -> None:
    """One log against its promise."""
    tp = promise.tp
    if promise.anew is not None:
        try:
            check_log(log, view, replace(promise, anew=None))
        except (PromiseBrokenError, KafkaError) as as_it_was:
            try:
                check_log(log, view, promise.anew)
            except PromiseBrokenError as begun:
                raise PromiseBrokenError(f"{as_it_was}; nor was it begun anew: {begun}") from None
        return
    require(log.durable_end == log.end_offset, f"{tp}: not all of it is durable after a start")
    low, high = promise.start, max(promise.start, promise.start_asked)
    require(low <= view.start <= high, f"{tp} starts at {view.start}, promised {low}..{high}")
    if promise.compacted:
        _check_compacted(log, view, promise)
        return
    expected = None
    generation = 0
    found = {}
    for base, data in view.batches:
        header = parse_header(data)
        front = promise.gaps.get(data, base)
        fits = min(front, base) <= view.start < header.next_offset if expected is None else front == expected
        require(fits, f"{tp}: a batch at {base}, expected one at {expected}; the log starts at {view.start}")
        expected = header.next_offset
        known = [cut for cut, queued in promise.queued.get(base, ()) if queued == data]
        if not known and not promise.stable and header.is_control:
            known = promise.moved(data)
        require(bool(known), f"{tp}: the batch at {base} was never written so")
        require(known[-1] >= generation, f"{tp}: the batch at {base} was cut away before the one in front of it")
        generation = known[-1]
        found[base] = data
    require((expected or view.end) == view.end, f"{tp} ends at {view.end}, its last batch at {expected}")
    _check_acknowledged(view, promise, found)
    _check_epochs(view, promise)
    if view.start == 0:
        _check_transactions(log, view)
    _check_ended(view, promise)
    _check_stream(log, view)
    if promise.stable:
        _check_retries(log, promise, found)


def _check_stream(log: Log, view: LogView) -> None:
    """What is known of the stream is what its control records say; of one that retention took more may be known."""
    told = None
    for _, data in view.batches:
        header = parse_header(data)
        if header.is_control and header.producer_id < 0:
            told = stream_after(told, data, header)
    known = log.producers.stream
    require(log.producers.closed_at == (told and told.closed_at), f"{log.tp}: closed at {log.producers.closed_at}")
    if told is not None and told.writer is not None:
        require(known is not None and known.writer == told.writer, f"{log.tp}: known is {known}, not {told}")
    elif known is not None and known.writer is not None:
        require(known.writer.offset < view.start, f"{log.tp}: known is {known}, which no record says")


def _check_acknowledged(view: LogView, promise: LogPromise, found: dict[int, bytes]) -> None:
    for base, data in promise.acknowledged.items():
        if promise.cut_asked is not None and parse_header(data).next_offset > promise.cut_asked:
            continue
        if parse_header(data).next_offset > view.start:
            require(found.get(base) == data, f"{promise.tp}: the acknowledged batch at {base} is lost; end {view.end}")
    if promise.cuts:
        for base, data in found.items():
            cut = next((each[0] for each in promise.queued.get(base, ()) if each[1] == data), promise.cuts)
            later = [other for other in promise.queued.get(base, ()) if cut < other[0] <= promise.cuts]
            require(not later, f"{promise.tp}: the batch at {base} was cut away and is back")
    ends_right = promise.cut_asked is not None or view.end >= promise.synced_end
    require(ends_right, f"{promise.tp} ends at {view.end}; {promise.synced_end} was synced")


def _check_epochs(view: LogView, promise: LogPromise) -> None:
    require(view.epochs == sorted(set(view.epochs)), f"{promise.tp}: epochs out of order: {view.epochs}")
    starts = [start for _, start in view.epochs]
    require(starts == sorted(set(starts)), f"{promise.tp}: epochs begin out of order: {view.epochs}")
    latest = view.epochs[-1][0] if view.epochs else -1
    bare = promise.cuts_asked and view.start == view.end  # its epoch began with its start, and there the cut was
    if promise.cut_asked is None and not bare:
        require(latest >= promise.epoch, f"{promise.tp}: epoch {promise.epoch} is forgotten, {view.epochs}")
    known_from = starts[0] if starts else view.end
    if known_from > max(promise.forgotten, promise.start_asked):
        known_from = 0
    for base, data in view.batches:
        header = parse_header(data)
        said = max((epoch for epoch, start in view.epochs if start <= base), default=-1)
        if header.leader_epoch >= 0 and base >= max(view.start, known_from):
            require(said == header.leader_epoch, f"{promise.tp}: batch {base}: {header.leader_epoch}, {view.epochs}")


def _check_transactions(log: Log, view: LogView) -> None:
    """What is open, and what was rolled back, is what the log's own batches say."""
    opened: dict[int, int] = {}
    aborted: list[tuple[int, int]] = []
    for base, data in view.batches:
        header = parse_header(data)
        if header.is_transactional and not header.is_control:
            opened.setdefault(header.producer_id, base)
        elif header.is_transactional:
            marker, first = read_marker(data, header), opened.pop(header.producer_id, None)
            if marker is not None and marker.type == ABORT and first is not None:
                aborted.append((header.producer_id, first))
    states = log.producers
    found = {each.id: each.transaction_start for each in states.active() if each.transaction_start >= 0}
    require(found == opened, f"{log.tp}: open are {found}, by its batches {opened}")
    require(states.open_transactions == len(opened), f"{log.tp}: {states.open_transactions} open, not {len(opened)}")
    unstable, first_open = states.first_unstable_offset, min(opened.values(), default=None)
    require(unstable == first_open, f"{log.tp}: unstable from {unstable} on, by its batches from {first_open}")
    told = sorted(log.aborted(0, view.end))
    require(told == sorted(aborted), f"{log.tp}: {told} was rolled back, by its batches {sorted(aborted)}")


def _check_ended(view: LogView, promise: LogPromise) -> None:
    """A transaction that is over is so in the log, as it was decided, as far as something of it is left."""
    if promise.cut_asked is not None:
        return
    opened: dict[int, int] = {}
    ends: list[tuple[int, int, bytes | None]] = []
    for base, data in view.batches:
        header = parse_header(data)
        if header.is_transactional and not header.is_control:
            opened.setdefault(header.producer_id, base)
        elif header.producer_id in opened:
            ends.append((header.producer_id, opened.pop(header.producer_id), data))
    ends += [(producer, first, None) for producer, first in opened.items()]
    for producer, first, found in ends:
        over = [
            (base, data)
            for base, data in promise.ended.items()
            if base > first and parse_header(data).producer_id == producer
        ]
        if over:
            base, data = min(over)
            require(found is not None, f"{promise.tp}: {producer}'s transaction of {first} is open; {base} ended it")
            require(found is None or found[12:] == data[12:], f"{promise.tp}: {first} did not end as by {base}")


Content = tuple[bytes | None, bytes | None]


def _records(batch: bytes) -> Iterator[tuple[int, Content]]:
    """Offset, key and value of a batch's records."""
    for record in records(memoryview(batch), parse_header(batch), max_bytes=READ_BYTES):
        key, value = record.key, record.value
        yield record.offset, (None if key is None else bytes(key), None if value is None else bytes(value))


def _fold(contents: dict[int, Content]) -> dict[bytes | None, bytes]:
    """The last value of each key, without those that were deleted."""
    last = {contents[offset][0]: contents[offset][1] for offset in sorted(contents)}
    return {key: value for key, value in last.items() if value is not None}


def _check_compacted(log: Log, view: LogView, promise: LogPromise) -> None:
    """What is left of a compacted log was written at its offset, and folds to what everything up to its end does."""
    tp = promise.tp
    queued: dict[int, Content] = {}
    for batch in promise.queued.values():
        queued.update(_records(batch[-1][1]))
    found: dict[int, Content] = {}
    for _, data in view.batches:
        for offset, content in _records(data):
            require(queued.get(offset) == content, f"{tp}: the record at {offset} was never written so")
            require(offset > max(found, default=-1), f"{tp}: offset {offset} comes late")
            found[offset] = content
    # In front of the start, in the batch that holds it, there may still be some that were deleted.
    expected = _fold({offset: content for offset, content in queued.items() if view.start <= offset < view.end})
    left = _fold({offset: content for offset, content in found.items() if offset >= view.start})
    require(left == expected, f"{tp}: {sorted(set(expected.items()) ^ set(left.items()), key=repr)[:4]} differ")
    for base, data in promise.acknowledged.items():
        require(parse_header(data).next_offset <= view.end, f"{tp} ends at {view.end}, {base} was acknowledged")
    _check_epochs(view, promise)
    by_producer: dict[int, list[int]] = {}
    for base, data in sorted(promise.acknowledged.items()):
        if parse_header(data).producer_id >= 0:
            by_producer.setdefault(parse_header(data).producer_id, []).append(base)
    for producer_id, bases in by_producer.items():
        answer = log.producers.check(parse_header(promise.acknowledged[bases[-1]]))
        same = isinstance(answer, Duplicate) and answer.base_offset == bases[-1]
        require(same, f"{tp}: producer {producer_id} sends {bases[-1]} again and hears {answer}")


def _check_retries(log: Log, promise: LogPromise, found: dict[int, bytes]) -> None:
    """A producer that sends one of its last five batches again is told where the first one is.

    Its last one also where its records are gone, but with what was cut off.
    """
    batches_of: dict[int, list[int]] = {}
    for base, data in found.items():
        header = parse_header(data)
        if header.producer_id >= 0 and not header.is_control:
            batches_of.setdefault(header.producer_id, []).append(base)
    for producer_id, bases in batches_of.items():
        for base in bases[-5:]:
            answer = log.producers.check(parse_header(found[base]))
            same = isinstance(answer, Duplicate) and answer.base_offset == base
            require(same, f"{promise.tp}: producer {producer_id} sends {base} again and hears {answer}")
    if promise.cuts_asked:
        return
    sent = ((base, parse_header(data)) for base, data in sorted(promise.acknowledged.items()))
    latest = {header.producer_id: base for base, header in sent if not header.is_control}
    for producer_id, base in latest.items():
        behind = [other for other in promise.queued if other > base]
        later = [other for other in behind if parse_header(promise.queued[other][-1][1]).producer_id == producer_id]
        if producer_id >= 0 and len(later) < 5:  # else it may be none of the last five
            answer = log.producers.check(parse_header(promise.acknowledged[base]))
            same = isinstance(answer, Duplicate) and answer.base_offset == base
            require(same, f"{promise.tp}: producer {producer_id} sends {base} again, which is gone, and hears {answer}")
