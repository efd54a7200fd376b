"""Positions of streams looked up as the gateway and the library do, and streams truncated before one of every kind."""

from __future__ import annotations

from typing import Final

from duramen.client.loop.node_client import call
from duramen.client.protocol import fetch as fetching
from duramen.client.protocol import list_offsets
from duramen.client.protocol.fetch import FetchedBytes
from duramen.client.protocol.list_offsets import LATEST, ListedOffset
from duramen.client.protocol.positions import (
    AtOffset,
    AtTime,
    BelowStartError,
    DlsnDivergedError,
    LogPlace,
    OffsetQuestion,
    Position,
    find_place,
)
from duramen.dlsn import FIRST, Dlsn, dlsn_at
from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.check.position_book import StreamReceipt
from duramen.sim.workload.scripts import Script, Steps
from duramen.sim.workload.stream_stage import ASSIGNED, TXIDS, TXIDS_CACHED, StreamStage
from duramen.sim.workload.workload import MAX_INFLATED_BYTES, RETRY_S, Scene, fetch, offsets_request, unexpected
from duramen.wire.batch import Record, batches, records

LOOKED_UP_AT_LAST: Final = 12
"""Positions of each stream, when everything is over."""
EMPTY_MOST: Final = 200
"""So often is asked for a record that is behind what a leader knows to be committed."""


def fetched_bytes(
    scene: Scene, tp: TopicPartition, offset: int, *, wait_ms: int = 0, max_bytes: int = 65536
) -> Steps[FetchedBytes | None]:
    """A Fetch, as often as it takes; None: the offset is out of range."""
    while True:
        response = yield fetch(tp, offset, wait_ms=wait_ms, max_bytes=max_bytes)
        answer = None if response is None else fetching.parsed(response, {tp: offset}, {})[tp]
        if isinstance(answer, FetchedBytes):
            return answer
        if answer is not None and answer.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        _check(f"fetch {tp} at {offset}", answer)
        yield RETRY_S


def listed_offset(scene: Scene, tp: TopicPartition, timestamp: int) -> Steps[ListedOffset]:
    """A ListOffsets, as often as it takes."""
    while True:
        response = yield offsets_request(tp, timestamp)
        answer = None if response is None else list_offsets.parsed(response)[tp]
        if isinstance(answer, ListedOffset):
            return answer
        _check(f"list offsets of {tp}", answer)
        yield RETRY_S


def _check(what: str, error: KafkaError | None) -> None:
    if error is not None and not error.code.retriable:
        raise unexpected(what, error.code)


def locate(scene: Scene, tp: TopicPartition, wanted: Position) -> Steps[LogPlace]:
    """Where a position is; raises as `find_place`."""
    lookup = find_place(wanted)
    question = next(lookup)
    while True:
        answer: ListedOffset | FetchedBytes | None
        if isinstance(question, OffsetQuestion):
            answer = yield from listed_offset(scene, tp, question.timestamp)
        else:
            answer = yield from fetched_bytes(scene, tp, question.offset, max_bytes=1)
        try:
            question = lookup.send(answer)
        except StopIteration as found:
            place: LogPlace = found.value
            return place


def records_of(fetched: FetchedBytes) -> list[tuple[Dlsn, Record]]:
    """What was fetched, control records too, each with its position."""
    found = []
    for start, header in batches(fetched.data):
        for record in records(fetched.data[start : start + header.size], header, max_bytes=MAX_INFLATED_BYTES):
            if record.offset >= fetched.offset:
                found.append((dlsn_at(record.offset, header.base_offset, header.leader_epoch), record))
    return found


class PositionHolder:
    """Keeps positions that writers were told, and goes to them later."""

    def __init__(self, stage: StreamStage) -> None:
        self.stage = stage

    def script(self) -> Script:
        """As long as there are faults to come."""
        stage, random = self.stage, self.stage.random
        while stage.scene.faults_on:
            yield random.choice((0.05, 0.3, 1.0)) * random.random()
            held = [tp for tp in stage.partitions() if stage.positions.receipts[tp]]
            if held:
                tp = random.choice(held)
                yield from self.look_up(tp, random.choice(stage.positions.receipts[tp]))

    def at_last(self) -> Script:
        """Some of every stream."""
        for tp in self.stage.partitions():
            held = self.stage.positions.receipts[tp]
            for receipt in self.stage.random.sample(held, min(len(held), LOOKED_UP_AT_LAST)):
                yield from self.look_up(tp, receipt)

    def look_up(self, tp: TopicPartition, receipt: StreamReceipt) -> Script:
        """Fetch at the position, then confirm it: what is stored by then was stored before."""
        scene, book, dlsn = self.stage.scene, self.stage.positions, receipt.dlsn
        for _ in range(EMPTY_MOST):
            fetched = yield from fetched_bytes(scene, tp, dlsn.offset)
            found = [] if fetched is None else records_of(fetched)
            if not found or found[0][0] != dlsn:
                try:
                    place = yield from locate(scene, tp, dlsn)
                    if not scene.ledger.lasts(tp, receipt.asked) and is_ambiguous(dlsn, place):
                        return
                except BelowStartError:
                    scene.coverage.hit("position below the start refused")
                    book.truncated(tp, receipt)
                    return
                except DlsnDivergedError:
                    scene.coverage.hit("position of another history refused")
                    book.diverged(tp, receipt)
                    return
            if found:
                at, record = found[0]
                scene.coverage.hit("record found by its position")
                book.record_found(tp, receipt, at.offset, bytes(record.value or b""))
                return
            yield RETRY_S
        raise InvariantViolated("Progress", f"{tp}: nothing is to be read at {dlsn}")


def is_ambiguous(dlsn: Dlsn, place: LogPlace) -> bool:
    """Whether a position that leads to the start of a log may be no record's, but the beginning, or behind a batch that
    was truncated: who holds one of those is to go on there, whatever has come since.
    """
    return place.offset == place.start and (dlsn == FIRST or (dlsn.slot > 0 and dlsn.entry < place.start))


class Truncator:
    """Deletes the records in front of positions of every kind."""

    def __init__(self, stage: StreamStage) -> None:
        self.stage = stage

    def script(self) -> Script:
        """As long as there are faults to come."""
        random = self.stage.random
        while self.stage.scene.faults_on:
            yield random.choice((0.2, 1.0, 4.0)) * random.random()
            yield from self._truncate(random.choice(self.stage.partitions()))

    def _truncate(self, tp: TopicPartition) -> Script:
        scene, random = self.stage.scene, self.stage.random
        held = self.stage.positions.receipts[tp]
        kind = random.choice(("offset", "end", *(("dlsn", "dlsn", "time", "time") if held else ())))
        receipt = random.choice(held) if kind in ("dlsn", "time") else None
        wanted: Position = AtOffset(LATEST)
        if receipt is not None and kind == "time" and tp.topic != ASSIGNED:
            kind = "txid" if tp.topic in (TXIDS, TXIDS_CACHED) else "time"
            wanted = AtTime(receipt.time + random.choice((0, 1)))
        elif receipt is not None:
            kind, wanted = "dlsn", receipt.dlsn
        elif kind == "offset":
            wanted = AtOffset(random.randint(0, (yield from listed_offset(scene, tp, LATEST)).offset))
        try:
            place = yield from locate(scene, tp, wanted)
        except BelowStartError:
            return
        except DlsnDivergedError:
            assert receipt is not None
            self.stage.positions.diverged(tp, receipt)
            return
        except KafkaError as error:  # a page-cache log that has become shorter meanwhile
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE or scene.is_stable(tp):
                raise InvariantViolated("NoUnexpectedError", f"{tp}: {wanted} is not found: {error}") from error
            return
        if isinstance(wanted, AtTime):
            self.stage.positions.truncated_by_time(tp, place.start, place.offset, wanted.timestamp)
        yield from self._delete(tp, kind, place.offset)

    def _delete(self, tp: TopicPartition, kind: str, before: int) -> Script:
        scene, book = self.stage.scene, self.stage.positions
        wanted = call("DeleteRecords", 2, timeout_ms=5000)
        kinds = wanted.api.request
        partition = kinds.DeleteRecordsPartition(partition_index=tp.partition, offset=before)
        wanted.request.topics.append(kinds.DeleteRecordsTopic(name=tp.topic, partitions=[partition]))
        book.truncation_asked(tp, before)
        answer = yield wanted
        told = None if answer is None else answer.topics[0].partitions[0]
        code = None if told is None else told.error_code
        scene.note(f"{tp} is truncated before {kind} at {before}: {code}")
        if told is not None and code == ErrorCode.NONE:
            scene.coverage.hit("records of a stream deleted")
            scene.coverage.hit(f"stream truncated before a position: {kind}")
            book.truncation_known(tp, told.low_watermark)
