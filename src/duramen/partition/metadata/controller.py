"""The controller: this node's metadata log, what is read from it, and what is decided where the node leads its quorum.

Shared by the server and by `duramen.open`: topics made in one are topics in the other. What is committed comes back by
the log, on every node, and reaches the partitions through the publisher.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from duramen.config import BrokerConfig, TopicConfig
from duramen.errors import DuramenError, ErrorCode, KafkaError, StorageError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata.commands import (
    BeginCluster,
    BrokerHeartbeat,
    CreateTopics,
    DeleteTopics,
    NewTopic,
    RegisterBroker,
    Registered,
    TopicCreated,
    TopicRef,
)
from duramen.machines.metadata.committed_image import Changes, CommittedImage
from duramen.machines.metadata.image import MetadataImage
from duramen.machines.metadata.machine import MetadataMachine
from duramen.machines.raft.voters import ReplicaKey, Voter, VoterEndpoint, Voters
from duramen.model import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    OFFSETS_TOPIC,
    SINK_STATE_TOPIC,
    SINK_TOPICS,
    TRANSACTIONS_TOPIC,
    TopicId,
    TopicPartition,
    topic_id_from_text,
)
from duramen.partition.host.host import Host
from duramen.partition.metadata.directory_checks import check_metadata
from duramen.partition.metadata.image_reader import ImageReader
from duramen.partition.metadata.metadata_partition import MetadataPartition
from duramen.partition.metadata.metadata_repair import MetadataRepair
from duramen.partition.metadata.publisher import MetadataPublisher
from duramen.partition.metadata.quorum import Quorum, QuorumNetwork
from duramen.partition.metadata.quorum_records import latest_voters, voters_of_image
from duramen.partition.metadata.snapshots import Report, Snapshots
from duramen.partition.replica.partition import Partition
from duramen.partition.store.store import Store
from duramen.ports import World
from duramen.storage import QuorumStateFile, is_shared

METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)

SMALLEST_SEGMENT_BYTES = 1024 * 1024
"""Kafka accepts a smaller `offsets.topic.segment.bytes` for the broker than `segment.bytes` for a topic."""

SINK_SEGMENT_BYTES = 64 * 1024 * 1024
"""Of the sinks' topics: staged records are deleted by whole segments."""

METADATA_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""No setting for topics reaches the metadata log: a topic whose records went would be forgotten. Snapshots cut it."""

MOST_READS: Final = 10
"""Of the metadata log, a second apart, that may fail before a node among others ends."""

Created = Callable[["list[TopicCreated] | DuramenError"], None]


class NoHost:
    """In place of the active controller's host where another node has that part, or nobody."""

    def __init__(self, partition: Partition, failed: DuramenError) -> None:
        self.partition = partition
        self.failed = failed
        self.waiting = 0

    def submit(self, command: Any, on_reply: Callable[[Any], None]) -> None:
        on_reply(self.failed)

    def fail(self, error: DuramenError) -> None:
        self.failed = error

    def close(self) -> None:
        pass


class Controller:
    """The metadata of one node: its copy of the log, the image read from it and, on the quorum's leader, the machine.

    publisher: gets what is committed. report(event, **fields): takes what an operator should see. Loop thread only.
    """

    def __init__(self, world: World, store: Store, publisher: MetadataPublisher, node_id: int, report: Report) -> None:
        self._world = world
        self._store = store
        self._publisher = publisher
        self._node_id = node_id
        self._report = report
        self.host: Host | NoHost
        """Decides, where this node is the active controller."""
        self.machine: MetadataMachine | None = None
        """The active controller's."""
        self.quorum: Quorum
        self.reader: ImageReader
        self._committed = CommittedImage()
        self._repair = MetadataRepair(store, publisher.closed_directories, publisher.readopted)
        self.is_alone = True
        """Whether there never was another voter or broker: by a sign outside of the log, which may be damaged."""
        self._recorded_voters: Voters | None = None
        """Those whom the log named at the start."""
        self._first_voters: Voters | None = None
        """Those whom init named, where the log names nobody yet."""
        self.on_halt: Callable[[str], None] = lambda reason: None
        """After the start: this node must not go on in its quorum."""
        self._has_begun = False
        self.on_active: Callable[[], None] = lambda: None
        """This node decides from now on."""
        self.on_leader: list[Callable[[int, int], None]] = []
        """Called with leader (-1: unknown) and epoch when either has changed."""
        self._when_begun: list[Callable[[], None]] = []
        publisher.on_reconfigured.append(self._reconfigured)

    # ---- start -----------------------------------------------------------------------------------------------

    def start(
        self,
        connect: Callable[[Quorum], QuorumNetwork] | None = None,
        endpoints: tuple[VoterEndpoint, ...] = (),
    ) -> None:
        """Open the metadata log and take part in its quorum.

        A sole voter has opened the partitions that it names when this returns: what is in its log is committed, for no
        other node could have another history. connect: makes what carries messages to other nodes, where there are any;
        endpoints: where the node's controller listens. StorageError where the node cannot take part.
        """
        store, publisher = self._store, self._publisher
        check_metadata(store.directories)
        config = _metadata_config(publisher.config)
        partition = store.open_partition(METADATA_PARTITION, METADATA_TOPIC_ID, config, MetadataPartition)
        assert isinstance(partition, MetadataPartition)
        self.partition = partition
        self.host = NoHost(partition, KafkaError(ErrorCode.NOT_CONTROLLER, "no controller is known yet"))
        self._repair.find_losses(self._world.disk, self._committed, self._report)
        self._snapshots = Snapshots(
            self._world,
            store,
            partition,
            publisher.config,
            self._report,
            lambda: publisher.image,
            self._may_snapshot,
        )
        forgiving = self._repair.is_beginning_recorded(partition)
        self.is_alone = not any(is_shared(self._world.disk, each.path) for each in store.directories)
        if self.is_alone:
            publisher.withdraw_by(self._withdraw)
        position = self._snapshots.load(self._committed, forgiving=forgiving, may_be_ahead=not self.is_alone)
        if position > partition.log.end_offset:  # a crash came between the leader's snapshot and the new beginning
            partition.begin_at(store.home(METADATA_PARTITION), position)
        self.reader = ImageReader(
            partition, self._committed, self._world.clock, self._changed, self._unreadable, self._repair.note_gap
        )
        self._load(position)
        self._snapshots.is_due = self._repair.found
        publisher.load(self._committed)
        self.quorum = self._make_quorum(endpoints)
        if not self.quorum.is_sole_voter:
            if connect is None:
                raise StorageError(f"{partition.log.path}: it belongs to a cluster of several nodes")
            self.quorum.network = connect(self.quorum)
            self.quorum.on_caught_up = self._caught_up
        self.reader.follow()
        self.quorum.start()
        if self.quorum.halted is not None:
            raise StorageError(self.quorum.halted)
        self.quorum.on_halt = self.on_halt
        if self.quorum.is_sole_voter:
            self._begin()

    def _load(self, position: int) -> None:
        """Apply to the image what is known to be committed, and find out who votes. position: the snapshot's end."""
        partition, named = self.partition, voters_of_image(self._committed.image)
        # What init wrote at offset 0 is only here: the first leader appends it.
        self._first_voters = None if position else named
        if not self.is_alone:
            self._recorded_voters = latest_voters(partition.log, position, named if position else None)
            is_sole = (self._recorded_voters or named or Voters()).only(self._local_key())
            partition.begin_commit_at(position)
            if is_sole:
                partition.commit(partition.log.durable_end)
            self.reader.load(position)
            return
        partition.commit(partition.log.durable_end)
        self.reader.load(position)
        self._recorded_voters = voters_of_image(self._committed.image) if self.reader.position else None

    def _local_key(self) -> ReplicaKey:
        return ReplicaKey(self._node_id, topic_id_from_text(self._store.home(METADATA_PARTITION).directory_id))

    def _make_quorum(self, endpoints: tuple[VoterEndpoint, ...]) -> Quorum:
        local = self._local_key()
        voters = self._recorded_voters or self._first_voters or Voters()
        if self.is_alone:
            if len(voters) and [voter.id for voter in voters] != [self._node_id]:
                raise StorageError(
                    f"{self.partition.log.path}: the log names other voters than this node, {self._node_id}, and the "
                    "directory does not belong to a cluster of several"
                )
            # It is the log that makes it the voter, also where somebody moved it to another directory.
            known = voters.endpoints(self._node_id)
            voters = Voters([Voter(self._node_id, local.directory_id, endpoints or known)])
        quorum = Quorum(
            self._world,
            self._store,
            self.partition,
            self._snapshots,
            local,
            voters,
            QuorumStateFile(self._world.disk, self.partition.log.path).read(),
            self._publisher.config,
            self._report,
        )
        quorum.recorded_voters, quorum.first_voters = self._recorded_voters, self._first_voters
        quorum.on_opened, quorum.on_leader, quorum.on_restart = self._opened, self._leader_changed, self.reader.restart
        return quorum

    def _caught_up(self) -> None:
        """What is committed is all that this node may have known before it started.

        By less, partitions would be made in the place of newer ones that are here, and those taken for nobody's.
        """
        self.reader.when_applied(self.partition.high_watermark, self._begin)

    def _begin(self) -> None:
        """The image is what the quorum has committed: make this node's partitions what it says."""
        publisher = self._publisher
        publisher.reconfigure()
        if self.is_alone and isinstance(self.host, Host) and self.machine is not None:
            now = self._world.clock.wall_ms()
            self._repair.record_again(self.host, self._committed, self._node_id, now, self.new_topic)
        publisher.is_one_of_several = not (self.is_alone or self._repair.found)
        publisher.start(self._committed.removed)
        self._committed.forget_removed()
        self._has_begun = True
        waiting, self._when_begun = self._when_begun, []
        for callback in waiting:
            callback()

    @property
    def image(self) -> MetadataImage:
        """What is committed, as far as it has been read here."""
        return self._committed.image

    @property
    def position(self) -> int:
        """Everything below this offset is in the image."""
        return self.reader.position

    def when_applied(self, offset: int, callback: Callable[[], None]) -> None:
        """Call back once everything below the offset is in the image: now, or as soon as it is."""
        self.reader.when_applied(offset, callback)

    def when_begun(self, callback: Callable[[], None]) -> None:
        """Call back once the partitions that the committed metadata names are open: now, or as soon as they are."""
        if self._has_begun:
            callback()
        else:
            self._when_begun.append(callback)

    @property
    def is_active(self) -> bool:
        """Whether this node decides."""
        return self.machine is not None

    @property
    def has_others(self) -> bool:
        """Whether other voters or brokers are there, or were and may come back."""
        if self.is_alone:
            return False
        return not self.quorum.is_sole_voter or bool(self.image.brokers.keys() - {self._node_id})

    # ---- the active controller -------------------------------------------------------------------------------

    def _opened(self, records: list[LogRecord], end: int) -> None:
        """This node leads the quorum, and its epoch begins with these records."""
        if self.quorum.is_sole_voter:
            self._activate(records, end)
        else:
            epoch = self.quorum.epoch
            self.reader.when_applied(end, partial(self._activate_in, epoch))

    def _activate_in(self, epoch: int) -> None:
        if self.quorum.is_leader and self.quorum.epoch == epoch:
            self._activate([], self.reader.position)

    def _activate(self, opening: list[LogRecord], end: int) -> None:
        """Decide from now on, by a copy of the image; opening: what of the log it does not have yet."""
        machine = MetadataMachine(self._publisher.config)
        if self._repair.found:
            machine.forgive()
        machine.restore(self._committed.image.copy(), self._committed.held)
        for offset, record in enumerate(opening, end - len(opening)):
            machine.apply_control(record, offset)
        host = Host(self.partition, machine, self._world.clock)
        self.machine, self.host = machine, host
        host.begin()
        host.submit(BeginCluster(), lambda answer: None)
        self.on_active()

    def _leader_changed(self, leader_id: int, epoch: int) -> None:
        if isinstance(self.host, Host) and not self.quorum.is_leader:
            error: DuramenError = KafkaError(
                ErrorCode.NOT_CONTROLLER, f"node {leader_id} is the active controller, or nobody"
            )
            if self.quorum.is_sole_voter and self.host.failed is not None:
                error = self.host.failed  # nobody else can be asked
            self.host.fail(error)
            self.machine, self.host = None, NoHost(self.partition, error)
        for callback in self.on_leader:
            callback(leader_id, epoch)

    def _changed(self, changes: Changes, size: int) -> None:
        if self._has_begun and changes:
            self._publisher.publish(changes)
        self._snapshots.applied(size)

    def _unreadable(self, error: DuramenError, failures: int) -> None:
        """The image stays behind. A node alone goes on with what it has; among others it would go on with the past."""
        offset, is_alone = self.reader.position, self.quorum.is_sole_voter
        if self.reader.failed is None and (is_alone or failures < MOST_READS):
            if failures == 1:
                self._report("metadata-not-applied", offset=offset, error=error)
            return
        self._report("metadata-unreadable", offset=offset, error=error)
        self.reader.close()
        self.fail(error)
        if not is_alone:
            self.quorum.halt(f"the metadata log cannot be read at offset {offset}: {error}")

    def fail(self, error: DuramenError) -> None:
        """The log takes no more writes, or cannot be read: nothing is decided here until a restart."""
        if hasattr(self, "host"):
            self.host.fail(error)
            self.quorum.append_failed()

    def close(self) -> None:
        """Decide nothing more, and leave the quorum."""
        self.host.close()
        self.reader.close()
        self.quorum.stop()

    def _may_snapshot(self) -> bool:
        return self._has_begun and self.reader.failed is None and self._publisher.is_settled

    def _reconfigured(self, config: BrokerConfig) -> None:
        if self.machine is not None:
            self.machine.config = config

    # ---- creating topics -------------------------------------------------------------------------------------

    def create(self, topics: list[NewTopic], done: Created) -> None:
        """Create topics with the broker's defaults where they leave something open; answers when they can be used."""
        config = self._publisher.config
        command = CreateTopics(
            tuple(topics),
            False,
            config.integer("num.partitions"),
            config.integer("default.replication.factor"),
        )
        self.submit(command, done)

    def submit(self, command: Any, done: Callable[[Any], None]) -> None:
        """Have the metadata machine decide; `done(answer)` once that is committed and its partitions are there."""
        publisher = self._publisher
        self.decide(
            command, lambda answer: publisher.when_published(lambda: done(publisher.with_creation_errors(answer)))
        )

    def decide(self, command: Any, done: Callable[[Any], None], *, makes_room: bool = False) -> None:
        """Have the metadata machine decide; `done(answer)` once that is committed, and in the image here.

        makes_room: a full disk does not refuse it.
        """
        partition, reader = self.partition, self.reader

        def decided(answer: Any) -> None:
            reader.when_applied(partition.high_watermark, lambda: done(answer))

        if makes_room:
            with self._store.disk_full.making(self._store.home(METADATA_PARTITION)):
                self.host.submit(command, decided)
        else:
            self.host.submit(command, decided)

    def heartbeat(self, command: BrokerHeartbeat, done: Callable[[Any], None]) -> None:
        """Decide about a heartbeat; `done(answer)` once a majority has shown that this node still is the active one.

        The answer renews a lease: one that is deposed and does not know it must not.
        """

        def decided(answer: Any) -> None:
            if isinstance(answer, DuramenError):
                done(answer)
            else:
                self.quorum.confirm(partial(confirmed, answer))

        def confirmed(answer: Any, leads: bool) -> None:
            done(answer if leads else KafkaError(ErrorCode.NOT_CONTROLLER, "it leads the quorum no more"))

        self.decide(command, decided)

    def register(self, command: RegisterBroker, done: Callable[[Any], None], *, makes_room: bool = False) -> None:
        """Have this process registered, and unfenced in the same commit; `done(answer)` once it is: Registered.

        Where the node is the active controller itself: what is committed has been applied here by then, which is what a
        fenced broker waits for. Where copies that it lost leave the ISR first, a heartbeat of its own unfences it.
        """
        answers: list[Any] = []
        expected = 1

        def answered(answer: Any) -> None:
            """Of the registration, then of the heartbeat; the first error is the answer."""
            answers.append(answer)
            errors = [each for each in answers if isinstance(each, DuramenError)]
            if errors:
                if len(errors) == 1 and errors[0] is answer:
                    done(answer)
            elif len(answers) == expected:
                done(next(each for each in answers if isinstance(each, Registered)))

        self.decide(command, answered, makes_room=makes_room)
        broker = None if self.machine is None else self.machine.image.brokers.get(command.node_id)
        if broker is not None and broker.incarnation_id == command.incarnation_id:
            expected = 2
            heartbeat = BrokerHeartbeat(broker.id, broker.epoch, broker.epoch)
            self.decide(heartbeat, answered, makes_room=makes_room)

    def _withdraw(self, topic_id: TopicId, done: Callable[[Any], None]) -> None:
        if self.host.failed is None:
            self.decide(DeleteTopics((TopicRef(None, topic_id),)), done)

    def new_topic(self, name: str, partitions: int = -1, configs: dict[str, str] | None = None) -> NewTopic:
        """A topic of this name; internal topics get the partitions and settings they are born with."""
        config = self._publisher.config
        settings: list[tuple[str, str | None]] = [*(configs or {}).items()]
        copies = -1
        if name == OFFSETS_TOPIC:
            partitions = config.integer("offsets.topic.num.partitions")
            copies = config.integer("offsets.topic.replication.factor")
            settings = [
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(max(config.integer("offsets.topic.segment.bytes"), SMALLEST_SEGMENT_BYTES))),
            ]
        elif name == TRANSACTIONS_TOPIC:
            partitions = config.integer("transaction.state.log.num.partitions")
            copies = config.integer("transaction.state.log.replication.factor")
            segment_bytes = max(config.integer("transaction.state.log.segment.bytes"), SMALLEST_SEGMENT_BYTES)
            settings = [
                ("cleanup.policy", "compact"),
                ("compression.type", "uncompressed"),
                ("min.insync.replicas", str(config.integer("transaction.state.log.min.isr"))),
                ("segment.bytes", str(segment_bytes)),
            ]
        elif name in SINK_TOPICS:
            partitions = config.integer("duramen.sink.topic.num.partitions")
            settings = [
                ("compression.type", "producer"),
                ("message.timestamp.type", "CreateTime"),
                ("segment.bytes", str(SINK_SEGMENT_BYTES)),
            ]
            if name == SINK_STATE_TOPIC:
                settings.append(("cleanup.policy", "compact"))
            else:
                # Its records go when nothing needs them any more, which only the sinks' coordinator knows.
                settings += [("cleanup.policy", "delete"), ("retention.ms", "-1"), ("retention.bytes", "-1")]
        return NewTopic(name, self.new_uuid(), partitions, copies, (), tuple(settings))

    def new_uuid(self) -> bytes:
        """16 random bytes that Kafka accepts as an id: no dash first in text form, not one of the reserved few."""
        while True:
            raw = self._world.entropy.random_bytes(16)
            if raw[0] & 0xFC != 0xF8 and any(raw[:15]):
                return raw


def _metadata_config(config: BrokerConfig) -> TopicConfig:
    segments = {
        "segment.bytes": str(config.integer("metadata.log.segment.bytes")),
        "segment.ms": str(config.integer("metadata.log.segment.ms")),
    }
    return TopicConfig(config, METADATA_CONFIG | segments)


def silent(event: str, **fields: Any) -> None:
    """A report that goes nowhere."""
