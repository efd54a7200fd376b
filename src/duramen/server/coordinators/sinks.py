"""Which coordinator a sink has here, the hosts that run them, and the staging logs beside them.

Partition i of `__duramen_sink_state` has the sinks whose names hash to i, and partition i of `__duramen_staging` what
is staged for them. Both topics are created when somebody first asks for a sink's coordinator. Committed batches that a
stop or a crash left on their way are taken up again when their host has replayed its log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from duramen.config import BrokerConfig
from duramen.errors import ClosedError, CorruptLogError, DuramenError, ErrorCode, KafkaError
from duramen.machines.contract import LogRecord
from duramen.machines.sink import SinkMachine, SinkSettings
from duramen.machines.sink.commands import COMMITTED, FinishCommit, ShareDone, TopicIdsDeleted
from duramen.machines.sink.footprint import topics
from duramen.machines.sink.pieces import StagedRange
from duramen.machines.sink.state import SinkCommit
from duramen.model import FIRST_SINK_PRODUCER_ID, SINK_STATE_TOPIC, STAGING_TOPIC, TopicId, TopicPartition
from duramen.partition.host.host import Host
from duramen.partition.replica.partition import Partition
from duramen.partition.sinks.commit_applier import BatchKey, CommitApplier
from duramen.partition.sinks.destinations import LocalDestinations
from duramen.partition.sinks.staging import Storing
from duramen.server.coordinators.context import CoordinatorContext
from duramen.server.coordinators.groups import MAX_BATCH_BYTES, partition_for
from duramen.server.coordinators.staging_relocation import Relocation
from duramen.wire.records import sinks as schema
from duramen.wire.records.versioned import read_version

COMMIT_TIMEOUT_MS: Final = 30_000
RECLAIM_SECONDS: Final = 1.0
"""Between two looks at how far the staging logs are still needed."""
RETRY_SECONDS: Final = 1.0
Reply = Callable[[Any], None]


class SinkCoordinator:
    """One partition's worth of sinks: host, machine, and the staging log beside them."""

    def __init__(self, host: Host, machine: SinkMachine, state: Partition, staging: Partition) -> None:
        self.host = host
        self.machine = machine
        self.state = state
        self.staging = staging
        self.relocation: Relocation | None = None
        self.arriving: dict[object, int] = {}
        """First offsets of what is appended to the staging log and not recorded yet, each under a token of its own: a
        request that was refused and the next one begin at the same offset."""
        self._unneeded = 0
        self._unneeded_at = -1

    def store(
        self,
        pieces: Sequence[Sequence[memoryview]],
        now_ms: int,
        done: Callable[[list[StagedRange] | KafkaError], None],
    ) -> Callable[[], None]:
        """Append pieces to the staging log; `done` when they are committed. Call what is returned once recorded."""
        first = self.staging.log_end_offset
        stored: list[StagedRange] = []
        storing = Storing(self.staging, now_ms, lambda error: done(stored if error is None else error))
        token = object()
        self.arriving[token] = first
        for piece in pieces:
            stored.append(storing.store(piece))
        storing.finish()

        def recorded() -> None:
            self.arriving.pop(token, None)

        return recorded

    def reclaim(self) -> None:
        """Let go of the staging log below what anybody needs, once the records that say so are committed."""
        if self._unneeded_at < 0:
            needed = [
                offset for offset in (self.machine.oldest_needed(), *self.arriving.values()) if offset is not None
            ]
            self._unneeded = min(needed, default=self.staging.high_watermark)
            self._unneeded_at = self.state.log_end_offset
        if self.state.high_watermark >= self._unneeded_at:
            if self.staging.log_start_offset < self._unneeded <= self.staging.high_watermark:
                self.staging.log.advance_start(self._unneeded)
                self.staging.touched()
            self._unneeded_at = -1


class SinkCoordinators:
    """The coordinators of one broker, by partition of `__duramen_sink_state`."""

    def __init__(self, context: CoordinatorContext) -> None:
        self._context = context
        self.relocation_rules = context.relocation_rules
        self._coordinators: dict[int, SinkCoordinator] = {}
        self._creating: list[Callable[[ErrorCode], None]] = []
        self._closed = False
        self._reclaiming = False
        self.materialiser = CommitApplier(
            context.clock,
            context.store.submit,
            LocalDestinations(context.store, context.clock, lambda: context.image, context.report),
            lambda: context.store.congested,
            self._durable,
            context.report,
        )
        context.publisher.on_deleted.append(self._topic_deleted)
        context.publisher.on_reconfigured.append(self._reconfigured)
        for directory in context.store.directories:
            directory.keep_producers(self.keeps_producer)

    # ---- finding ---------------------------------------------------------------------------------------------

    def ensure_topics(self, done: Callable[[ErrorCode], None]) -> None:
        """`done(NONE)` once both topics exist; they are created if need be."""
        image = self._context.image
        missing = [name for name in (STAGING_TOPIC, SINK_STATE_TOPIC) if name not in image.topics]
        if not missing:
            self._context.publisher.when_published(lambda: done(ErrorCode.NONE))
            return
        self._creating.append(done)
        if len(self._creating) == 1:
            controller = self._context.controller
            controller.create([controller.new_topic(name) for name in missing], self._created)

    def _created(self, results: Any) -> None:
        code = ErrorCode.NONE
        for created in results if isinstance(results, list) else [results]:
            error = created.code if isinstance(created, DuramenError) else created.result.error
            if error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                self._context.report("sink-topics-refused", error=str(created))
        if code is ErrorCode.NONE:
            self._context.publisher.when_published(self.load_all)
        waiting, self._creating = self._creating, []
        for done in waiting:
            done(code)

    def _partitions(self) -> int:
        topic = self._context.image.topic(SINK_STATE_TOPIC)
        return 0 if topic is None else len(topic.partitions)

    def load_all(self) -> None:
        """At start: begin to load every partition led here, and go on with what is committed."""
        for index in range(self._partitions()):
            self._coordinator(index)

    def _led(self, topic: str, index: int) -> Partition | None:
        partition = self._context.store.partitions.get(TopicPartition(topic, index))
        return None if partition is None or partition.closed or not partition.replication.is_leader else partition

    def _coordinator(self, index: int) -> SinkCoordinator | None:
        """The coordinator of a partition, which may still be loading; None when it cannot run here now."""
        found = self._coordinators.get(index)
        if found is not None and found.host.failed is None:
            return found
        state, staging = self._led(SINK_STATE_TOPIC, index), self._led(STAGING_TOPIC, index)
        if state is None or staging is None or self._closed:
            return None
        machine = SinkMachine(SinkSettings.from_config(self._context.config))
        host = Host(
            state, machine, self._context.clock, max_batch_bytes=MAX_BATCH_BYTES, commit_timeout_ms=COMMIT_TIMEOUT_MS
        )
        host.observers.append(partial(self._committed, index))
        coordinator = self._coordinators[index] = SinkCoordinator(host, machine, state, staging)
        coordinator.relocation = Relocation(
            coordinator,
            self.relocation_rules,
            self._context.clock,
            self._context.store.submit,
            self._context.report,
        )
        if state.log_start_offset == state.log_end_offset == state.high_watermark:
            host.load()
        else:
            host.start_loading(partial(self._loaded, index), self._context.load_turns)
        if not self._reclaiming:
            self._reclaiming = True
            self._context.clock.call_later(RECLAIM_SECONDS, self._reclaim)
        return self._coordinators[index]

    def _loaded(self, index: int, error: DuramenError | None) -> None:
        if isinstance(error, ClosedError):
            return  # the node stops
        if error is not None:
            if isinstance(error, CorruptLogError):
                self._context.store.found_damage(TopicPartition(SINK_STATE_TOPIC, index), error)
            self._context.report("coordinator-load-failed", topic=SINK_STATE_TOPIC, partition=index, error=error)
            return
        coordinator = self._coordinators[index]
        image = self._context.image
        gone = tuple(sorted(id for id in topics(coordinator.machine.sinks.values()) if image.topic_by_id(id) is None))
        if gone:
            coordinator.host.submit(TopicIdsDeleted(gone), lambda _: None)
        for sink, commit in list(coordinator.machine.unfinished()):
            self._context.report("sink-batch-resumed", sink=sink.id, batch=commit.batch_id)
            self.materialiser.start(sink.id, commit, coordinator.staging)

    # ---- commands --------------------------------------------------------------------------------------------

    def find(self, sink_id: str, done: Callable[[SinkCoordinator | KafkaError], None]) -> None:
        """The sink's coordinator, or why there is none now."""

        def answer() -> None:
            found = self._find(sink_id)
            if found is None:
                known = self._partitions() > 0
                done(KafkaError(ErrorCode.NOT_COORDINATOR if known else ErrorCode.COORDINATOR_NOT_AVAILABLE))
            else:
                done(found)

        found = self._find(sink_id)
        if found is not None:
            done(found)
        else:
            # Perhaps the partitions of the new topics are still being made.
            self._context.publisher.when_published(answer)

    def _find(self, sink_id: str) -> SinkCoordinator | None:
        count = self._partitions()
        return self._coordinator(partition_for(sink_id, count)) if count else None

    def submit(self, sink_id: str, command: Any, on_reply: Reply) -> None:
        """Have the sink's machine decide; errors reach `on_reply` as DuramenError."""

        def found(coordinator: SinkCoordinator | KafkaError) -> None:
            if isinstance(coordinator, KafkaError):
                on_reply(coordinator)
            else:
                coordinator.host.submit(command, on_reply)

        self.find(sink_id, found)

    def coordinators(self) -> Iterator[SinkCoordinator]:
        """Those that run here and have loaded."""
        return (each for each in self._coordinators.values() if each.host.loaded and each.host.failed is None)

    def commit(self, sink_id: str, batch_id: int) -> SinkCommit | None:
        """A batch that is committed and remembered."""
        found = self._find(sink_id)
        sink = None if found is None else found.machine.sinks.get(sink_id)
        return None if sink is None else sink.commits.get(batch_id)

    def oldest_seconds(self) -> float:
        """Since when the oldest batch that is committed and not finished waits; 0 without one."""
        now = self._context.clock.wall_ms()
        waits = [now - commit.committed_ms for each in self.coordinators() for _, commit in each.machine.unfinished()]
        return max([0, *waits]) / 1000

    def new_producer_id(self) -> int:
        """A producer id for a sink: random among so many that none is ever given twice."""
        drawn = int.from_bytes(self._context.entropy.random_bytes(8), "big")
        return FIRST_SINK_PRODUCER_ID | drawn & (FIRST_SINK_PRODUCER_ID - 1)

    # ---- what is committed is moved --------------------------------------------------------------------------

    def _committed(self, index: int, records: list[LogRecord], end: int) -> None:
        coordinator = self._coordinators[index]
        for record in records:
            if record.key is None or record.value is None or read_version(record.key) != schema.COMMIT:
                continue
            key = schema.decode_record(record.key, None).key
            sink = coordinator.machine.sinks.get(key.sink_id)
            commit = None if sink is None else sink.commits.get(key.batch_id)
            if commit is not None and commit.state == COMMITTED:
                self.materialiser.start(key.sink_id, commit, coordinator.staging)

    def _durable(self, key: BatchKey, shares: tuple[ShareDone, ...]) -> None:
        def answered(answer: Any) -> None:
            if not isinstance(answer, DuramenError):
                self.materialiser.finished(key)
            elif not self._closed:
                self._context.clock.call_later(RETRY_SECONDS, partial(self._durable, key, shares))

        if not self._closed:
            self.submit(key[0], FinishCommit(*key, shares), answered)

    def _reclaim(self) -> None:
        if self._closed:
            return
        for coordinator in self.coordinators():
            try:
                coordinator.reclaim()
                if coordinator.relocation is not None and not self._context.store.congested:
                    coordinator.relocation.look()
            except DuramenError as error:  # its directory failed, or the journal is full: later
                self._context.report("staging-not-reclaimed", error=error)
        self._context.clock.call_later(RECLAIM_SECONDS, self._reclaim)

    # ---- following -------------------------------------------------------------------------------------------

    def _topic_deleted(self, name: str, topic_id: TopicId) -> None:
        for coordinator in self.coordinators():
            if topic_id in topics(coordinator.machine.sinks.values()):
                coordinator.host.submit(TopicIdsDeleted((topic_id,)), lambda _: None)

    def _reconfigured(self, config: BrokerConfig) -> None:
        for coordinator in self._coordinators.values():
            coordinator.machine.settings = SinkSettings.from_config(config)

    def keeps_producer(self, producer_id: int) -> bool:
        """Whether this producer id is one of a sink that is not forgotten, as far as this node can tell."""
        if producer_id < FIRST_SINK_PRODUCER_ID:
            return False
        if len(list(self.coordinators())) < max(self._partitions(), 1):
            return True
        return any(
            sink.producer_id == producer_id for each in self.coordinators() for sink in each.machine.sinks.values()
        )

    def directory_failed(self, error: DuramenError) -> None:
        """The disk under some partitions failed: their hosts end; what waits is told so."""
        for coordinator in list(self._coordinators.values()):
            for partition in (coordinator.state, coordinator.staging):
                if self._context.store.home(partition.tp).journal.failed is not None:
                    coordinator.host.fail(error)

    def close(self) -> None:
        """End every host; what is under way goes on at the next start."""
        self._closed = True
        self.materialiser.close()
        for coordinator in self._coordinators.values():
            coordinator.host.close()
