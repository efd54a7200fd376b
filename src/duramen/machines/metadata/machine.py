"""The metadata machine: it decides what `__cluster_metadata` records, and builds the image from those records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from duramen.config import BrokerConfig
from duramen.errors import check
from duramen.machines.contract import LogRecord, Outcome, TransactionMarks
from duramen.machines.metadata import brokers, codec, configs, features, topics
from duramen.machines.metadata.application import Application
from duramen.machines.metadata.commands import (
    OK,
    AllocateProducerIds,
    Barrier,
    BrokerStopping,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    RaiseEpochs,
    RegainTopics,
    RegisterBroker,
    SetConfigs,
    SkipProducerIds,
    UpdateFeatures,
)
from duramen.machines.metadata.image import MetadataImage
from duramen.model import TopicId

Decision = tuple[list[LogRecord], Any]


class MetadataMachine:
    """State machine over the metadata log. `config` is this broker's; whoever changes it assigns the new one."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self._application = Application(MetadataImage(), set())
        self.transaction_marks: TransactionMarks | None = codec.TRANSACTION_MARKS
        self._open_transaction: list[LogRecord] | None = None
        self.removed: frozenset[TopicId] = frozenset()
        """Topics that the log says were deleted before it was loaded."""

    @property
    def image(self) -> MetadataImage:
        """Everything applied, committed or not: what decisions are made by, and nobody else reads."""
        return self._application.image

    # ------------------------------------------------------------------ decisions

    def decide(self, command: Any, ticket: int, now: int) -> Outcome:
        """Judge one command of `commands`; TypeError for anything else."""
        decision = _DECISIONS.get(type(command))
        if decision is None:
            raise TypeError(f"not a metadata command: {command!r}")
        records, answer = decision(self, command)
        return Outcome(records=records, replies=[(ticket, answer)])

    def on_loaded(self, now: int) -> Outcome:
        """Close a transaction that a crash left open, so that nothing written later becomes part of it.

        Where records are lost its end may be one of them, and much that came later be held with it: it counts.
        """
        self.removed = frozenset(self._application.removed or ())
        self._application.removed = None
        if self._open_transaction is None:
            return Outcome()
        marks = codec.TRANSACTION_MARKS
        return Outcome(records=[marks.end if self._application.forgiving else marks.abort])

    def _register(self, command: RegisterBroker) -> Decision:
        return brokers.register(self.image, self.config, command)

    def _stopping(self, command: BrokerStopping) -> Decision:
        return brokers.stopping(self.image, command), OK

    # ------------------------------------------------------------------ application

    def forgive(self) -> None:
        """A repair took records out of the log: see `Application.forgiving`. Before the first record."""
        self._application.forgiving = True

    def restore(self, image: MetadataImage) -> None:
        """Begin with an image that a snapshot holds; what follows it in the log is applied to it."""
        check(self.image.next_offset == 0, "a snapshot comes before the first record")
        self._application.image = image

    def apply_control(self, record: LogRecord, offset: int) -> None:
        """Keep what a control record of the log says of the quorum; this node decides nothing by it."""
        codec.apply_control(self.image, record)
        self.image.next_offset = offset + 1

    def apply(self, record: LogRecord, offset: int, timestamp: int) -> None:
        """Make one record of the metadata log part of the image."""
        check(offset >= self.image.next_offset, "metadata records are applied in the order of their offsets")
        kind, message = codec.decode(record)
        if kind == "BeginTransactionRecord":
            if self._application.forgiving:
                self._end_transaction()  # its own end is lost
            check(self._open_transaction is None, "metadata transactions do not nest")
            self._open_transaction = []
        elif kind == "EndTransactionRecord":
            self._end_transaction()
        elif kind == "AbortTransactionRecord":
            self._open_transaction = None
        elif self._open_transaction is not None:
            self._open_transaction.append(record)
        else:
            self._application.apply(kind, message)
        self.image.next_offset = offset + 1
        self.image.version += 1

    def _end_transaction(self) -> None:
        inside, self._open_transaction = self._open_transaction or [], None
        for held in inside:
            self._application.apply(*codec.decode(held))


_DECISIONS: Final[dict[type, Callable[[MetadataMachine, Any], Decision]]] = {
    RegisterBroker: MetadataMachine._register,
    BrokerStopping: MetadataMachine._stopping,
    CreateTopics: lambda machine, command: topics.create_topics(machine.image, machine.config, command),
    CreatePartitions: lambda machine, command: topics.create_partitions(machine.image, command),
    DeleteTopics: lambda machine, command: topics.delete_topics(machine.image, command),
    RegainTopics: lambda machine, command: topics.regain_topics(machine.image, command),
    RaiseEpochs: lambda machine, command: topics.raise_epochs(machine.image, command),
    SetConfigs: lambda machine, command: configs.set_configs(machine.image, machine.config, command),
    AllocateProducerIds: lambda machine, command: brokers.allocate(machine.image, command),
    SkipProducerIds: lambda machine, command: brokers.skip_producer_ids(machine.image, command),
    ElectLeaders: lambda machine, command: brokers.elect(machine.image, command),
    UpdateFeatures: lambda machine, command: features.update(machine.image, command),
    Barrier: lambda machine, command: ([], True),
}
