"""The metadata machine: it decides what `__cluster_metadata` records, and builds the image from those records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from duramen.config import BrokerConfig
from duramen.errors import check
from duramen.machines.contract import LogRecord, Outcome, ProducerEpoch, TimerFired, TransactionMarks
from duramen.machines.metadata import codec, configs, features, producer_ids, topics
from duramen.machines.metadata.application import Application
from duramen.machines.metadata.brokers import Brokers, Refused
from duramen.machines.metadata.commands import (
    AllocateProducerIds,
    AlterPartition,
    Barrier,
    BeginCluster,
    BrokerHeartbeat,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    FenceBroker,
    RaiseEpochs,
    RegainTopics,
    RegisterBroker,
    SetConfigs,
    SkipProducerIds,
    UnregisterBroker,
    UpdateFeatures,
)
from duramen.machines.metadata.image import MetadataImage

Decision = tuple[list[LogRecord], Any]


class MetadataMachine:
    """State machine over the metadata log. `config` is this broker's; whoever changes it assigns the new one."""

    def __init__(self, config: BrokerConfig) -> None:
        self._brokers = Brokers(config)
        self._application = Application(MetadataImage())
        self.transaction_marks: TransactionMarks | None = codec.TRANSACTION_MARKS

    @property
    def config(self) -> BrokerConfig:
        return self._brokers.config

    @config.setter
    def config(self, config: BrokerConfig) -> None:
        self._brokers.config = config

    @property
    def image(self) -> MetadataImage:
        """Everything applied, committed or not: what decisions are made by, and nobody else reads."""
        return self._application.image

    # ------------------------------------------------------------------ decisions

    def decide(self, command: Any, ticket: int, now: int) -> Outcome:
        """Judge one command of `commands`; TypeError for anything else."""
        kind = type(command)
        if kind in _DECISIONS:
            records, answer = _DECISIONS[kind](self, command)
            return Outcome(records=records, replies=[(ticket, answer)])
        image, brokers = self.image, self._brokers
        if kind is Refused:
            return brokers.refused(image, command, now)
        decide = _OF_BROKERS.get(kind)
        if decide is None:
            raise TypeError(f"not a metadata command: {command!r}")
        return decide(brokers, image, command, ticket, now)

    def on_loaded(self, now: int) -> Outcome:
        """Go on where an earlier controller stopped; and close a transaction that it left open.

        Nothing that is written later may become a part of that. Where records are lost its end may be one of them, and
        much that came later be held with it: it counts.
        """
        records = []
        if self._application.held is not None:
            marks = codec.TRANSACTION_MARKS
            records.append(marks.end if self._application.forgiving else marks.abort)
        return Outcome(records, timers=self._brokers.on_loaded(self.image, now))

    # ------------------------------------------------------------------ application

    def forgive(self) -> None:
        """A repair took records out of the log: see `Application.forgiving`. Before the first record."""
        self._application.forgiving = True

    def restore(self, image: MetadataImage, held: list[tuple[str, Any]] | None = None) -> None:
        """Begin with what a reader of the log has applied; held: of a transaction that the log has not ended yet."""
        check(self.image.next_offset == 0, "an image comes before the first record")
        self._application.image = image
        self._application.held = held

    def apply_control(self, record: LogRecord, offset: int, producer: ProducerEpoch | None = None) -> None:
        """Keep what a control record of the log says of the quorum; the machine decides nothing by it."""
        self._application.take_control(record, offset)

    def apply(self, record: LogRecord, offset: int, timestamp: int, producer: ProducerEpoch | None = None) -> None:
        """Make one record of the metadata log part of the image."""
        self._application.take(record, offset)


_DECISIONS: Final[dict[type, Callable[[MetadataMachine, Any], Decision]]] = {
    BeginCluster: lambda machine, command: features.begin_cluster(machine.image, machine.config),
    CreateTopics: lambda machine, command: topics.create_topics(machine.image, machine.config, command),
    CreatePartitions: lambda machine, command: topics.create_partitions(machine.image, command),
    DeleteTopics: lambda machine, command: topics.delete_topics(machine.image, command),
    RegainTopics: lambda machine, command: topics.regain_topics(machine.image, command),
    RaiseEpochs: lambda machine, command: topics.raise_epochs(machine.image, command),
    SetConfigs: lambda machine, command: configs.set_configs(machine.image, machine.config, command),
    AllocateProducerIds: lambda machine, command: producer_ids.allocate(machine.image, command),
    SkipProducerIds: lambda machine, command: producer_ids.skip_producer_ids(machine.image, command),
    UpdateFeatures: lambda machine, command: features.update(machine.image, command),
    Barrier: lambda machine, command: ([], True),
}

_OF_BROKERS: Final[dict[type, Callable[[Brokers, MetadataImage, Any, int, int], Outcome]]] = {
    RegisterBroker: Brokers.register,
    BrokerHeartbeat: Brokers.heartbeat,
    FenceBroker: Brokers.fence,
    UnregisterBroker: Brokers.unregister,
    ElectLeaders: Brokers.elect,
    AlterPartition: Brokers.alter,
    TimerFired: Brokers.fire,
}
