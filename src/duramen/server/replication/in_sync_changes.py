"""Who is in sync with the partitions that this node leads: their proposals, asked of the active controller (KIP-497).

Each leader says by itself who should be in sync (`machines/replication/leader.py`); here they are asked when that may
have changed, and what they propose goes to the controller, many partitions in a request, one request at a time. What
the controller takes comes back as committed metadata, not by its answer. What it refuses is asked again: it may be a
controller that another one has replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.metadata.commands import AlterPartition, IsrChange
from duramen.machines.metadata.image import MetadataImage
from duramen.model import TopicId
from duramen.partition.replica.partition import Partition
from duramen.ports import Clock, Timer
from duramen.server.api.services import EventReport

MOST_AT_ONCE: Final = 500
"""Partitions in a request, and partitions that are asked in one turn of the loop."""
PATIENCE_S: Final = 5.0
"""How long one request looks for a controller: what it proposes may be old by then."""
SCANS: Final = 5
"""Looks at every partition in the time for which a replica may lack something."""
PAUSE_S: Final = 0.5
"""Until a partition is asked again whose proposal was refused, unless metadata comes before that, as with most refusals
it does; or whose high watermark waits for a replica."""

Proposals = dict[tuple[TopicId, int], Partition]


class Tries(Protocol):
    """A question under way."""

    @property
    def tries(self) -> int:
        """How often it may have been sent."""


class AskedController(Protocol):
    """The active controller, wherever it is."""

    def ask(self, command: Any, done: Callable[[Any], None], timeout: float) -> Tries:
        """Have a metadata command decided: `done(answer)`, or with a DuramenError, at latest after `timeout` s."""


class Metadata(Protocol):
    """The committed metadata."""

    @property
    def image(self) -> MetadataImage: ...


class Partitions(Protocol):
    """The partitions of this node."""

    def partition_by_id(self, topic_id: TopicId, index: int) -> Partition | None: ...


class InSyncChanges:
    """Of one node. Loop thread only. broker_epoch: of this process; max_lag_s: `replica.lag.time.max.ms`."""

    def __init__(
        self,
        clock: Clock,
        controllers: AskedController,
        metadata: Metadata,
        partitions: Partitions,
        node_id: int,
        broker_epoch: Callable[[], int],
        max_lag_s: float,
        report: EventReport,
    ) -> None:
        self._clock = clock
        self._controllers = controllers
        self._metadata = metadata
        self._partitions = partitions
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._max_lag_s = max_lag_s
        self._report = report
        self._led: dict[Partition, None] = {}
        """Those with several replicas."""
        self._to_ask: dict[Partition, None] = {}
        self._proposing: dict[Partition, None] = {}
        """Those that had something to propose when they were asked."""
        self._pausing: dict[Partition, None] = {}
        """Those that are asked again in a moment, and propose nothing before."""
        self._waiting: dict[Partition, None] = {}
        """Those whose high watermark waits for a replica; it may have died."""
        self._told: dict[Partition, tuple[tuple[int, ...], ErrorCode | None]] = {}
        """Who was proposed since the metadata moved, and why that was refused: told once, however often it is asked."""
        self._under_way: Proposals | None = None
        self._errand: Tries | None = None
        self._is_planned = False
        self._closed = False
        self._pause: Timer | None = None
        self._scan: Timer = clock.call_later(max_lag_s / SCANS, self._look_at_all)

    # ---- what may have changed -------------------------------------------------------------------------------

    def follow(self, name: str) -> None:
        """Partitions of the topic may be led here by now, or not any more, or have other replicas in sync."""
        topic = self._metadata.image.topic(name)
        if topic is None:
            return
        for index, image in enumerate(topic.partitions):
            if len(image.replicas) == 1 or self._node_id not in image.replicas:
                continue
            partition = self._partitions.partition_by_id(topic.id, index)
            if partition is None:
                continue
            if not partition.replication.is_leader:
                self._forget(partition)
                continue
            self._led[partition] = None
            self._pausing.pop(partition, None)  # what was refused may be out of date
            self._told.pop(partition, None)
            partition.on_candidate = self.ask
            if len(image.isr) < len(image.replicas):
                self.ask(partition)

    def brokers_changed(self) -> None:
        """Who may not be in sync may have changed: brokers were registered, fenced or unfenced."""
        for partition in self._led:
            if len(partition.replication.isr) < len(partition.replication.replicas):
                self.ask(partition)

    def ask(self, partition: Partition) -> None:
        """Ask the partition for its proposal, at the end of this turn of the loop."""
        self._to_ask[partition] = None
        self._plan()

    def _look_at_all(self) -> None:
        """What is not fetched tells nothing: only time shows who lacks something."""
        if not self._closed:
            self._scan = self._clock.call_later(self._max_lag_s / SCANS, self._look_at_all)
            self._to_ask.update(self._led)
            self._plan()

    def _look_again(self) -> None:
        self._pause = None
        self._to_ask.update(self._pausing)
        self._to_ask.update(self._waiting)
        self._pausing, self._waiting = {}, {}
        self._plan()

    def _later(self, partitions: dict[Partition, None], partition: Partition) -> None:
        partitions[partition] = None
        if self._pause is None and not self._closed:
            self._pause = self._clock.call_later(PAUSE_S, self._look_again)

    def _forget(self, partition: Partition) -> None:
        self._told.pop(partition, None)
        if partition in self._led:
            del self._led[partition]
            partition.on_candidate = None

    # ---- asking ----------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        if not self._is_planned and not self._closed:
            self._is_planned = True
            self._clock.call_last(self._run)

    def _run(self) -> None:
        self._is_planned = False
        if self._closed:
            return
        for partition in list(self._to_ask)[:MOST_AT_ONCE]:
            del self._to_ask[partition]
            if partition.closed or not partition.replication.is_leader:
                self._forget(partition)
            elif self._change_of(partition) is not None and partition not in self._pausing:
                self._proposing[partition] = None
        if self._to_ask:
            self._plan()
        elif self._proposing and self._under_way is None:
            self._propose()

    def _change_of(self, partition: Partition) -> tuple[int, ...] | None:
        replication = partition.replication
        change = replication.in_sync_change(
            partition.log_end_offset, self._clock.monotonic(), self._max_lag_s, self._may_join
        )
        self._settle(partition)
        if replication.is_waiting:
            self._later(self._waiting, partition)
        return change

    def _settle(self, partition: Partition) -> None:
        """Fewer replicas may bound its high watermark."""
        if partition.replication.advance():
            partition.settle_fetched()

    def _may_join(self, node_id: int, broker_epoch: int) -> bool:
        broker = self._metadata.image.brokers.get(node_id)
        return broker is not None and broker.active and broker.epoch == broker_epoch

    # ---- proposing -------------------------------------------------------------------------------------------

    def _propose(self) -> None:
        changes: list[IsrChange] = []
        under_way: Proposals = {}
        joining: set[int] = set()
        leaving: set[int] = set()
        news = 0
        for partition in list(self._proposing)[:MOST_AT_ONCE]:
            del self._proposing[partition]
            isr = None if partition.closed else self._change_of(partition)  # things may have changed since
            if isr is None:
                continue
            replication = partition.replication
            if self._told.get(partition, ((), None))[0] != isr:
                self._told[partition] = isr, None
                news += 1
                joining |= {*isr} - {*replication.isr}
                leaving |= {*replication.isr} - {*isr}
            replication.proposed(isr)
            changes.append(
                IsrChange(
                    partition.topic_id,
                    partition.tp.partition,
                    replication.epoch,
                    tuple((node, self._epoch_of(partition, node)) for node in isr),
                    replication.partition_epoch,
                )
            )
            under_way[partition.topic_id, partition.tp.partition] = partition
        if not changes:
            self._go_on()
            return
        if news:
            self._report("in-sync-proposed", partitions=news, joining=_listed(joining), leaving=_listed(leaving))
        self._under_way, self._errand = under_way, None
        command = AlterPartition(self._node_id, self._broker_epoch(), tuple(changes))
        errand = self._controllers.ask(command, partial(self._answered, under_way), PATIENCE_S)
        if self._under_way is under_way:
            self._errand = errand

    def _epoch_of(self, partition: Partition, node_id: int) -> int:
        return self._broker_epoch() if node_id == self._node_id else partition.replication.broker_epoch_of(node_id)

    def _answered(self, proposals: Proposals, answer: Any) -> None:
        sent_once = self._errand is not None and self._errand.tries == 1
        self._under_way = self._errand = None
        errors: dict[tuple[TopicId, int], ErrorCode] = {}
        missing = ErrorCode.UNKNOWN_SERVER_ERROR
        if isinstance(answer, DuramenError):
            missing = answer.code
        else:
            errors = {(each.topic_id, each.index): each.error for each in answer}
        refused: dict[str, int] = {}
        for key, partition in proposals.items():
            error = errors.get(key, missing)
            isr, told = self._told.pop(partition, ((), None))
            if error is ErrorCode.NONE:
                continue  # the metadata is on its way
            self._told[partition] = isr, error
            if error is not told:
                refused[error.name] = refused.get(error.name, 0) + 1
            partition.replication.proposal_failed(error, sent_once=sent_once)
            self._settle(partition)
            self._later(self._pausing, partition)
        for name, count in refused.items():
            self._report("in-sync-refused", partitions=count, error=name)
        self._go_on()

    def _go_on(self) -> None:
        if self._proposing:
            self._plan()

    def close(self) -> None:
        """Nothing is proposed any more."""
        self._closed = True
        self._scan.cancel()
        if self._pause is not None:
            self._pause.cancel()


def _listed(nodes: set[int]) -> str:
    return ",".join(str(node) for node in sorted(nodes))
