"""The sink coordinators of a node, and the staging logs beside them.

Partition i of `__duramen_sink_state` has the sinks whose names hash to i, and partition i of `__duramen_staging` what
is staged for them. Committed batches that a stop or a crash left on their way are taken up again when their host has
replayed its log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from duramen.config import BrokerConfig
from duramen.errors import DuramenError, KafkaError
from duramen.machines.contract import LogRecord
from duramen.machines.sink import SinkMachine, SinkSettings
from duramen.machines.sink.commands import COMMITTED, FinishCommit, ShareDone, TopicIdsDeleted
from duramen.machines.sink.footprint import topics
from duramen.machines.sink.pieces import StagedRange
from duramen.machines.sink.state import SinkCommit
from duramen.model import FIRST_SINK_PRODUCER_ID, SINK_STATE_TOPIC, STAGING_TOPIC
from duramen.partition.host.host import Host
from duramen.partition.replica.partition import Partition
from duramen.partition.sinks.commit_applier import BatchKey, CommitApplier
from duramen.partition.sinks.destinations import LocalDestinations
from duramen.partition.sinks.staging import Storing
from duramen.server.coordinators.context import CoordinatorContext
from duramen.server.coordinators.shell import MAX_BATCH_BYTES, CoordinatorShell, DeletedTopics, StateTopic
from duramen.server.coordinators.staging_relocation import Relocation
from duramen.wire.records import sinks as schema
from duramen.wire.records.versioned import read_version

COMMIT_TIMEOUT_MS: Final = 30_000
RECLAIM_SECONDS: Final = 1.0
"""Between two looks at how far the staging logs are still needed."""
RETRY_SECONDS: Final = 1.0


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


class SinkCoordinators(CoordinatorShell[SinkCoordinator]):
    """The sink coordinators of one broker, by partition of `__duramen_sink_state`."""

    def __init__(self, context: CoordinatorContext) -> None:
        super().__init__(
            context,
            StateTopic(
                topics=(SINK_STATE_TOPIC, STAGING_TOPIC),
                refused="sink-topics-refused",
                copies="default.replication.factor",
                make=self._make,
                loaded=self._loaded_sinks,
                reconfigured=_reconfigured,
                forget=_forget,
            ),
        )
        self.relocation_rules = context.relocation_rules
        self._reclaiming = False
        self.materialiser = CommitApplier(
            context.clock,
            context.store.submit,
            LocalDestinations(context.store, context.clock, lambda: context.image, context.report),
            lambda: context.store.congested,
            self._durable,
            context.report,
        )
        for directory in context.store.directories:
            directory.keep_producers(self.keeps_producer)

    def _make(self, partitions: list[Partition]) -> SinkCoordinator:
        context = self._context
        state, staging = partitions
        machine = SinkMachine(SinkSettings.from_config(context.config))
        host = Host(state, machine, context.clock, max_batch_bytes=MAX_BATCH_BYTES, commit_timeout_ms=COMMIT_TIMEOUT_MS)
        coordinator = SinkCoordinator(host, machine, state, staging)
        host.observers.append(partial(self._committed, coordinator))
        coordinator.relocation = Relocation(
            coordinator, self.relocation_rules, context.clock, context.store.submit, context.report
        )
        if not self._reclaiming:
            self._reclaiming = True
            context.clock.call_later(RECLAIM_SECONDS, self._reclaim)
        return coordinator

    def _loaded_sinks(self, coordinator: SinkCoordinator) -> None:
        image = self._context.image
        gone = tuple(sorted(id for id in topics(coordinator.machine.sinks.values()) if image.topic_by_id(id) is None))
        if gone:
            coordinator.host.submit(TopicIdsDeleted(gone), lambda _: None)
        for sink, commit in list(coordinator.machine.unfinished()):
            self._context.report("sink-batch-resumed", sink=sink.id, batch=commit.batch_id)
            self.materialiser.start(sink.id, commit, coordinator.staging)

    def commit(self, sink_id: str, batch_id: int) -> SinkCommit | None:
        """A batch that is committed and remembered."""
        found = self.of(sink_id)
        sink = None if found is None else found.machine.sinks.get(sink_id)
        return None if sink is None else sink.commits.get(batch_id)

    def oldest_seconds(self) -> float:
        """Since when the oldest batch that is committed and not finished waits; 0 without one."""
        now = self._context.clock.wall_ms()
        waits = [now - commit.committed_ms for each in self.running() for _, commit in each.machine.unfinished()]
        return max([0, *waits]) / 1000

    def new_producer_id(self) -> int:
        """A producer id for a sink: random among so many that none is ever given twice."""
        drawn = int.from_bytes(self._context.entropy.random_bytes(8), "big")
        return FIRST_SINK_PRODUCER_ID | drawn & (FIRST_SINK_PRODUCER_ID - 1)

    # ---- what is committed is moved --------------------------------------------------------------------------

    def _committed(self, coordinator: SinkCoordinator, records: list[LogRecord], end: int) -> None:
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
        for coordinator in self.running():
            try:
                coordinator.reclaim()
                if coordinator.relocation is not None and not self._context.store.congested:
                    coordinator.relocation.look()
            except DuramenError as error:  # its directory failed, or the journal is full: later
                self._context.report("staging-not-reclaimed", error=error)
        self._context.clock.call_later(RECLAIM_SECONDS, self._reclaim)

    def keeps_producer(self, producer_id: int) -> bool:
        """Whether this producer id is one of a sink that is not forgotten, as far as this node can tell."""
        if producer_id < FIRST_SINK_PRODUCER_ID:
            return False
        if len(list(self.running())) < max(self.partition_count, 1):
            return True
        return any(sink.producer_id == producer_id for each in self.running() for sink in each.machine.sinks.values())

    def close(self) -> None:
        """End every host; what is under way goes on at the next start."""
        self.materialiser.close()
        super().close()


def _reconfigured(coordinator: SinkCoordinator, config: BrokerConfig) -> None:
    coordinator.machine.settings = SinkSettings.from_config(config)


def _forget(coordinator: SinkCoordinator, deleted: DeletedTopics) -> TopicIdsDeleted | None:
    kept = topics(coordinator.machine.sinks.values())
    gone = tuple(topic_id for _, topic_id in deleted if topic_id in kept)
    return TopicIdsDeleted(gone) if gone else None
