"""What the transactional clients of one simulation share: topics, the book, and readers of what is committed.

Nothing is on this stage where the node does not serve transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from duramen.client.loop.node_client import NodeRequest, call
from duramen.errors import ErrorCode
from duramen.machines.contract import ProducerEpoch
from duramen.model import TopicPartition
from duramen.sim.check.invariants import InvariantViolated, Retention
from duramen.sim.check.transaction_book import LogBatch, TransactionBook
from duramen.sim.workload.scripts import Script, Steps
from duramen.sim.workload.workload import (
    EARLIEST,
    LATEST,
    MAX_INFLATED_BYTES,
    RETRY_S,
    Scene,
    create_topic,
    list_offset,
    unexpected,
)
from duramen.wire.batch import COMMIT, BatchHeader, batches, check_crc, read_marker, records

ORDERS, CACHED, DOOMED, BALANCES, COPIES = "orders", "orders-cached", "doomed", "balances", "copies"
"""Written to by producers: on stable storage, in the page cache, deleted and cut now and then, compacted; and what
copiers write."""
NEEDED: Final = (24, 27, 28)
"""APIs: AddPartitionsToTxn, WriteTxnMarkers, TxnOffsetCommit."""
HANGS_S: Final = 60.0
"""Virtual seconds behind the last client's end, and the last fault, within which nothing is open any more: the longest
time-out of a transaction is 10 s."""
READ_COMMITTED: Final = 1


class TransactionStage:
    """Of one world. spawn: runs a script on a client of its own. copies: of each topic at most."""

    def __init__(self, scene: Scene, spawn: Callable[[str, Script], object], copies: int = 1) -> None:
        random = scene.random
        self.scene = scene
        self.book = TransactionBook(scene.ledger, scene.coverage)
        self.spawn = spawn
        self.topics = {ORDERS: 2, CACHED: 1, DOOMED: 1, BALANCES: 1, COPIES: 2}
        self.offered: bool | None = None
        self.is_made = False
        self.may_begin: Callable[[], bool] = lambda: True
        self.at_work = 0
        """Producers that have not ended, and lives of theirs."""
        self.running = 0
        """Scripts that have not ended: lives of producers and copiers, and what comes late."""
        self.unheard: set[str] = set()
        """Transactional ids whose last client has died asking for an end."""
        self.watching = 0
        """Readers that have not ended."""
        scene.ledger.stable |= {ORDERS, DOOMED, BALANCES, COPIES}
        self.book.excused.add(DOOMED)
        scene.ledger.retention[DOOMED] = Retention()  # its log start is anywhere
        self.book.compacted.add(BALANCES)
        size = {"internal.segment.bytes": str(random.choice((1000, 4000, 100_000)))}
        self._configs = {topic: dict(size) for topic in self.topics}
        self._configs[CACHED]["duramen.ack.durability"] = "page-cache"
        self._configs[BALANCES] = {
            "cleanup.policy": "compact",
            "internal.segment.bytes": "2000",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": random.choice(("0", "300", "100000")),
        }
        if copies > 1:
            for topic in self.topics:
                count = random.randint(2, copies)
                scene.copies[topic] = count
                scene.ledger.behind.add(topic)
                self._configs[topic]["min.insync.replicas"] = str(random.randint(1, count))

    def partitions(self, *topics: str) -> list[TopicPartition]:
        """Of these topics, or of all."""
        return [
            TopicPartition(topic, number) for topic in topics or self.topics for number in range(self.topics[topic])
        ]

    def run(self, name: str, script: Script) -> None:
        """Let somebody act beside the others."""
        self.running += 1

        def counted() -> Script:
            yield from script
            self.running -= 1

        self.spawn(name, counted())

    def watch(self, name: str, script: Script) -> None:
        """Let a reader read beside the others."""
        self.watching += 1

        def counted() -> Script:
            yield from script
            self.watching -= 1

        self.spawn(name, counted())

    def set_up(self) -> Script:
        """Ask for what is served, and make the topics."""
        while not self.may_begin():
            yield RETRY_S
        offered = True
        for key in NEEDED:
            offered = offered and (yield from is_offered(self.scene, key))
        if offered:
            for topic, count in self.topics.items():
                yield from create_topic(self.scene, topic, count, self._configs[topic])
        self.is_made = True
        self.offered = offered

    def begun(self) -> Steps[bool]:
        """Wait for that; whether there is anything to do."""
        while self.offered is None:
            yield RETRY_S
        return self.offered

    def recreate(self) -> Script:
        """Delete a topic that is written to, and make it again."""
        scene, random = self.scene, self.scene.random
        if not (yield from self.begun()):
            return
        while scene.faults_on:
            yield random.uniform(0.3, 3.0)
            if random.random() < 0.4:
                yield from self._cut()
                continue
            while True:
                answer = yield call("DeleteTopics", 5, topic_names=[DOOMED], timeout_ms=5000)
                code = None if answer is None else answer.responses[0].error_code
                if code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    break
                if code is not None and not ErrorCode(code).retriable:
                    raise unexpected(f"delete {DOOMED}", code)
                yield RETRY_S
            scene.coverage.hit("topic deleted under transactions")
            scene.note(f"{DOOMED} is deleted")
            yield random.choice((0.0, 0.5)) * random.random()
            yield from create_topic(scene, DOOMED, self.topics[DOOMED], self._configs[DOOMED])

    def _cut(self) -> Script:
        """Delete the records of a topic up to its end, past what transactions have open there."""
        tp = TopicPartition(DOOMED, 0)
        wanted = call("DeleteRecords", 2, timeout_ms=5000)
        kinds = wanted.api.request
        partition = kinds.DeleteRecordsPartition(partition_index=0, offset=-1)
        wanted.request.topics.append(kinds.DeleteRecordsTopic(name=DOOMED, partitions=[partition]))
        answer = yield wanted
        code = None if answer is None else answer.topics[0].partitions[0].error_code
        self.scene.note(f"{tp} is cut: {code}")
        if code == ErrorCode.NONE:
            self.scene.coverage.hit("records deleted under transactions")
        elif code is not None and not ErrorCode(code).retriable:
            raise unexpected(f"delete records of {tp}", code)

    # ---- the end -----------------------------------------------------------------------------------------------

    def read_all(self) -> Script:
        """Wait until nothing is open any more, then read everything, and ask for the verdict."""
        if not self.offered:
            return
        clock = self.scene.clock
        deadline = clock.monotonic() + HANGS_S
        for tp in self.partitions():
            while True:
                asked = self.scene.ledger.facts
                answer = yield from fetch_until_told(self.scene, tp, 0)
                if answer is not None:
                    self.book.stable_seen(
                        tp, answer.log_start_offset, answer.last_stable_offset, answer.high_watermark, asked
                    )
                    if answer.last_stable_offset == answer.high_watermark:
                        break
                if clock.monotonic() > deadline:
                    raise InvariantViolated(
                        "StableAdvances",
                        f"{tp}: {HANGS_S} s later stable up to {answer and answer.last_stable_offset} only",
                    )
                yield 0.2
        for tp in self.partitions():
            end = yield from list_offset(self.scene, tp, LATEST)
            everything = yield from self._read(tp, end, committed=False)
            committed = yield from self._read(tp, end, committed=True)
            values = [value for batch in committed for value in batch.values]
            self.scene.note(f"{tp}: {len(everything)} batches, {len(values)} committed records")
            self.book.log_read(tp, everything, values)
        self.book.conclude()

    def _read(self, tp: TopicPartition, end: int, *, committed: bool) -> Steps[list[LogBatch]]:
        found: list[LogBatch] = []
        offset = yield from list_offset(self.scene, tp, EARLIEST)
        while offset < end:
            answer = yield from fetch_until_told(self.scene, tp, offset, committed=committed)
            if answer is None:
                yield RETRY_S
                continue
            for header, batch in log_batches(tp, answer, committed=committed):
                if header.next_offset > offset:
                    offset = header.next_offset
                    if batch is not None:
                        found.append(batch)
        return found


class CommittedReader:
    """Follows one partition as a consumer of committed data does."""

    def __init__(self, stage: TransactionStage, tp: TopicPartition) -> None:
        self.stage = stage
        self.tp = tp
        self.offset = 0
        self.end = -1
        """The high watermark, as it was told last."""

    def script(self) -> Script:
        """Read until the scene says that reading is over."""
        scene, random = self.stage.scene, self.stage.scene.random
        if not (yield from self.stage.begun()):
            return
        while scene.reading_on:
            yield from self.read(random.choice((1, 2000, 65536)))
            yield random.choice((0.005, 0.05, 0.3))

    def read(self, max_bytes: int = 65536) -> Steps[list[bytes]]:
        """What comes next; nothing where nothing could be had."""
        stage, tp = self.stage, self.tp
        asked = stage.scene.ledger.facts
        answer = yield from fetch_until_told(stage.scene, tp, self.offset, committed=True, max_bytes=max_bytes)
        if answer is None:
            return []
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            yield from self._step_back()
            return []
        stage.book.stable_seen(tp, answer.log_start_offset, answer.last_stable_offset, answer.high_watermark, asked)
        self.end = answer.high_watermark
        found = []
        for header, batch in log_batches(tp, answer, committed=True):
            if header.next_offset <= self.offset:
                continue
            for value in [] if batch is None else batch.values:
                stage.book.seen(tp, header.base_offset, value)
                found.append(value)
            self.offset = header.next_offset
        return found

    def _step_back(self) -> Script:
        scene, tp = self.stage.scene, self.tp
        start = yield from list_offset(scene, tp, EARLIEST)
        end = yield from list_offset(scene, tp, LATEST)
        scene.note(f"reader of committed {tp}: {self.offset} is outside {start}..{end}")
        if end < self.offset and tp.topic not in self.stage.book.excused and scene.ledger.lasts(tp):
            raise InvariantViolated("NothingReadVanishes", f"{tp}: read up to {self.offset}, now it ends at {end}")
        self.offset = min(max(self.offset, start), end)


def fetch_until_told(
    scene: Scene, tp: TopicPartition, offset: int, *, committed: bool = False, max_bytes: int = 65536
) -> Steps[Any]:
    """The answer of one fetch; None where there is none, or it is to be tried again. OFFSET_OUT_OF_RANGE is told."""
    response = yield committed_fetch(tp, offset, committed=committed, max_bytes=max_bytes)
    answer = None if response is None else response.responses[0].partitions[0]
    if answer is None or answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return answer
    if answer.error_code != ErrorCode.NONE:
        if not ErrorCode(answer.error_code).retriable:
            raise unexpected(f"fetch {tp} at {offset}", answer.error_code)
        yield RETRY_S
        return None
    return answer


def committed_fetch(tp: TopicPartition, offset: int, *, committed: bool, max_bytes: int) -> NodeRequest:
    """A Fetch of one partition without a session."""
    isolation = READ_COMMITTED if committed else 0
    wanted = call("Fetch", 12, max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, isolation_level=isolation)
    kinds = wanted.api.request
    partition = kinds.FetchPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    wanted.request.topics.append(kinds.FetchTopic(topic=tp.topic, partitions=[partition]))
    return wanted


def log_batches(tp: TopicPartition, answer: Any, *, committed: bool) -> Iterator[tuple[BatchHeader, LogBatch | None]]:
    """What was fetched, batch by batch, as a consumer goes through it; None: not for who reads committed data."""
    aborted = sorted((each.first_offset, each.producer_id) for each in answer.aborted_transactions or ())
    leaving: set[int] = set()
    view = memoryview(answer.records or b"")
    for position, header in batches(view):
        batch = view[position : position + header.size]
        if not check_crc(batch, header):
            raise InvariantViolated("Immutability", f"{tp}: the batch at offset {header.base_offset} fails its CRC")
        producer = ProducerEpoch(header.producer_id, header.producer_epoch)
        while aborted and aborted[0][0] <= header.last_offset:
            leaving.add(aborted.pop(0)[1])
        if header.is_control:
            marker = read_marker(batch, header)
            is_commit = marker is not None and marker.type == COMMIT
            if not is_commit:
                leaving.discard(producer.id)
            yield header, None if committed else LogBatch(header.base_offset, producer, [], is_commit)
            continue
        values = [bytes(record.value or b"") for record in records(batch, header, max_bytes=MAX_INFLATED_BYTES)]
        is_left_out = committed and header.is_transactional and producer.id in leaving
        if committed and header.last_offset >= answer.last_stable_offset:
            raise InvariantViolated(
                "AbortedUnseen", f"{tp} offset {header.base_offset}: told, and stable up to {answer.last_stable_offset}"
            )
        yield header, None if is_left_out else LogBatch(header.base_offset, producer, values, None)


def is_offered(scene: Scene, key: int, feature: str = "") -> Steps[bool]:
    """Whether the node serves the API, and the feature, if one is named, has a level."""
    while True:
        answer = yield call("ApiVersions", 3, client_software_name="sim", client_software_version="1")
        if answer is not None and answer.error_code == ErrorCode.NONE:
            levels = {each.name: each.max_version_level for each in answer.finalized_features}
            return any(api.api_key == key for api in answer.api_keys) and (not feature or levels.get(feature, 0) > 0)
        yield RETRY_S
