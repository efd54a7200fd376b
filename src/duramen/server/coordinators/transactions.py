"""The transaction coordinators of a node: one per partition of `__transaction_state`.

They carry out what their machine asks for after the commit of its records: markers (`MarkerSender`) and producer ids.
Whoever leads a partition asks them through `verify` whether a transaction has it, on this node or on another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from duramen.config import BrokerConfig
from duramen.errors import DuramenError, ErrorCode, KafkaError, check
from duramen.machines.contract import ProducerEpoch
from duramen.machines.metadata.image import NO_LEADER
from duramen.machines.transaction.commands import (
    SECOND_GENERATION,
    AddPartitions,
    DrawFailed,
    DrawProducerId,
    ResumeParked,
    VerifyPartitions,
    WriteMarkers,
)
from duramen.machines.transaction.machine import TransactionMachine
from duramen.machines.transaction.settings import TransactionSettings
from duramen.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from duramen.partition.host.host import Host
from duramen.partition.replica.partition import Partition
from duramen.ports import World
from duramen.server.api.services import ProducerIdSupply, TransactionSummary
from duramen.server.coordinators.context import CoordinatorContext
from duramen.server.coordinators.shell import (
    MAX_BATCH_BYTES,
    CoordinatorShell,
    DeletedTopics,
    StateTopic,
    coordinator_error,
)
from duramen.server.coordinators.transaction_markers import MarkerSender, MarkingCoordinator, OffsetsPartitions

if TYPE_CHECKING:
    from duramen.server.coordinators.transaction_peers import TransactionPeers

COMMIT_TIMEOUT_MS: Final = 30_000
PARKS_MS: Final = 100
"""What Kafka has a Produce wait for the last transaction's markers (add.partitions.to.txn.retry.backoff.max.ms)."""
FEATURE: Final = "transaction.version"
SHOWN_CHARACTERS: Final = 200
"""Of a transactional id in the node's log."""

Refused = dict[TopicPartition, ErrorCode]


class TransactionCoordinator:
    """One partition's worth of transactional ids."""

    def __init__(self, host: Host, machine: TransactionMachine, state: Partition) -> None:
        self.host = host
        self.machine = machine
        self.state = state

    @property
    def epoch(self) -> int:
        """Of the coordinator, as its markers say it: partitions refuse those of an earlier one."""
        return self.state.replication.epoch


class TransactionCoordinators(CoordinatorShell[TransactionCoordinator]):
    """The transaction coordinators of one broker, by partition of `__transaction_state`."""

    def __init__(
        self,
        context: CoordinatorContext,
        world: World,
        node_id: int,
        producer_ids: ProducerIdSupply,
        offsets: OffsetsPartitions,
    ) -> None:
        super().__init__(
            context,
            StateTopic(
                topics=(TRANSACTIONS_TOPIC,),
                refused="transactions-topic-refused",
                copies="transaction.state.log.replication.factor",
                make=self._make,
                loaded=_loaded,
                reconfigured=_reconfigured,
                forget=_forget,
            ),
        )
        self._world = world
        self._node_id = node_id
        self._producer_ids = producer_ids
        self._peers: TransactionPeers | None = None
        self.markers = MarkerSender(
            context.clock,
            context.store,
            lambda: context.image,
            node_id,
            offsets,
            self._reach,
            context.report,
            self._markers_order,
        )

    def _make(self, partitions: list[Partition]) -> TransactionCoordinator:
        context = self._context
        machine = TransactionMachine(TransactionSettings.from_config(context.config))
        machine.transaction_version = self._level
        machine.parks_ms = PARKS_MS
        host = Host(
            partitions[0],
            machine,
            context.clock,
            max_batch_bytes=MAX_BATCH_BYTES,
            commit_timeout_ms=COMMIT_TIMEOUT_MS,
            on_clock_set=machine.ages.clock_set,
        )
        coordinator = TransactionCoordinator(host, machine, partitions[0])
        host.on_effect = partial(self._carry_out, coordinator)
        host.keeps_order = partial(self._keeps_order, coordinator)
        return coordinator

    @property
    def _level(self) -> int:
        """The finalized level of the feature, which the coordinator's own aborts go by."""
        return self._context.image.features.get(FEATURE, 0)

    def _reach(self) -> TransactionPeers:
        """The coordinators' and leaders' way to other nodes."""
        if self._peers is None:
            # Loaded on demand: a node alone, as most are, does without it.
            module = import_module("duramen.server.coordinators.transaction_peers")
            context = self._context
            self._peers = module.TransactionPeers(
                self._world, lambda: context.image, self._node_id, context.config.inter_broker_listener
            )
        peers: TransactionPeers = self._peers
        return peers

    def submit(self, name: str, command: Any, on_reply: Callable[[Any], None]) -> None:
        """Have the transactional id's machine decide; errors reach `on_reply` as DuramenError."""
        found = self.of(name)
        if found is not None:
            found.machine.transaction_version = self._level
        super().submit(name, command, on_reply)

    # ---- effects ---------------------------------------------------------------------------------------------

    def _carry_out(self, coordinator: TransactionCoordinator, effect: Any) -> None:
        if isinstance(effect, WriteMarkers):
            if effect.cause:
                self._context.report(
                    "transaction-aborted",
                    transactional_id=effect.transactional_id[:SHOWN_CHARACTERS],
                    producer=effect.producer.id,
                    cause=effect.cause,
                    partitions=len(effect.partitions),
                )
            self.markers.start(coordinator, effect)
        elif isinstance(effect, ResumeParked):
            coordinator.host.submit(effect, _ignore)
        else:
            check(isinstance(effect, DrawProducerId), "an unknown effect of transactions")
            self._producer_ids.next(partial(self._drawn, coordinator, effect))

    def _keeps_order(self, coordinator: TransactionCoordinator, effect: Any) -> bool:
        """Whether all of the markers go to the journal that has the Prepare: no crash leaves them without it."""
        if isinstance(effect, ResumeParked):
            return True  # it is decided, and written, after what this log has
        return isinstance(effect, WriteMarkers) and self._order(coordinator, effect.partitions)

    def _order(self, coordinator: TransactionCoordinator, partitions: Iterable[TopicPartition]) -> bool:
        """Whether what these partitions get from now on is never there without what the coordinator's log has now."""
        store = self._context.store
        found = map(store.partitions.get, partitions)
        return all(partition is not None and store.keep_order(coordinator.state, partition) for partition in found)

    def _markers_order(self, coordinator: MarkingCoordinator, partitions: Iterable[TopicPartition]) -> bool:
        """Whether what the coordinator's log gets from now on is never there without the markers that these have now.

        Then the end of a transaction is recorded in the group commit of its markers.
        """
        store = self._context.store
        if not isinstance(coordinator, TransactionCoordinator):
            return False
        return all(
            tp.topic != OFFSETS_TOPIC
            and (partition := store.partitions.get(tp)) is not None
            and store.keep_order(partition, coordinator.state, of_markers=True)
            for tp in partitions
        )

    def _drawn(self, coordinator: TransactionCoordinator, effect: DrawProducerId, drawn: int | KafkaError) -> None:
        command = effect.command
        if isinstance(drawn, KafkaError):
            # Whoever asked comes again: nothing has changed.
            error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no producer id could be drawn: {drawn}")
            command = DrawFailed(command, error)
        else:
            command = command._replace(fresh_id=drawn)
        coordinator.host.resume(effect.ticket, command)

    # ---- verification ----------------------------------------------------------------------------------------

    def verify(
        self,
        transactional_id: str,
        producer: ProducerEpoch,
        partitions: tuple[TopicPartition, ...],
        verify_only: bool,
        done: Callable[[Refused], None],
    ) -> None:
        """Ask the coordinator, wherever it is, whether the transaction has the partitions, or add them to it; `done`
        gets what was refused."""
        node_id = self.place(transactional_id)
        if node_id == NO_LEADER:
            done(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        elif node_id != self._node_id:
            self._reach().verify(node_id, transactional_id, producer, partitions, verify_only, done)
        else:
            command: Any = VerifyPartitions(transactional_id, producer, partitions)
            if not verify_only:
                command = AddPartitions(transactional_id, producer, partitions, SECOND_GENERATION)
            self._verify_here(transactional_id, command, lambda answer: done(refused_of(answer, partitions)))

    def _verify_here(self, name: str, command: AddPartitions | VerifyPartitions, answer: Callable[[Any], None]) -> None:
        """What the answer lets into the partitions need not wait for the commit of what is recorded here, where they
        share a journal: both are in one group commit, or what is recorded is in an earlier one."""
        found = self.of(name)
        if found is None or not self._order(found, command.partitions):
            self.submit(name, command, answer)
            return

        def answered(result: Any) -> None:
            self._order(found, command.partitions)
            answer(result)

        found.machine.transaction_version = self._level
        found.host.submit(command, answered, is_ordered=True)

    # ---- metrics ---------------------------------------------------------------------------------------------

    def summary(self) -> TransactionSummary:
        """What metrics tell."""
        machines = [each.machine for each in self.running()]
        now = self._context.clock.wall_ms()
        return TransactionSummary(
            ids=sum(len(each.transactions) for each in machines),
            open=sum(len(each.ongoing) for each in machines),
            oldest_open_seconds=max((each.oldest_open_ms(now) for each in machines), default=0) / 1000,
            ending=sum(len(each.unmarked) for each in machines),
            oldest_ending_seconds=self.markers.oldest_seconds,
            markers=self.markers.written,
            fenced=sum(each.fenced for each in machines),
        )

    def close(self) -> None:
        """End every host; markers that are missing are written by whoever leads the partition next."""
        super().close()
        self.markers.close()
        if self._peers is not None:
            self._peers.close()


def transaction_error(error: DuramenError, *, knows_fenced: bool) -> ErrorCode:
    """The code that a client gets; older ones do not know PRODUCER_FENCED, and get INVALID_PRODUCER_EPOCH."""
    code = coordinator_error(error)
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED and not knows_fenced else code


def refused_of(answer: Any, partitions: tuple[TopicPartition, ...]) -> Refused:
    """What of the partitions is not part of a transaction, by the answer to AddPartitions or VerifyPartitions."""
    if isinstance(answer, DuramenError):
        return dict.fromkeys(partitions, coordinator_error(answer))
    return {tp: code for tp, code in (answer or {}).items() if code is not ErrorCode.NONE}


def _ignore(_: Any) -> None:
    """Whoever waits for it has a ticket of its own."""


def _loaded(_: TransactionCoordinator) -> None:
    """What a Prepare of the log calls for the machine has asked for itself."""


def _reconfigured(coordinator: TransactionCoordinator, config: BrokerConfig) -> None:
    coordinator.machine.settings = TransactionSettings.from_config(config)


def _forget(_: TransactionCoordinator, __: DeletedTopics) -> None:
    """A partition that is gone needs no marker: that is seen when its transaction ends."""
