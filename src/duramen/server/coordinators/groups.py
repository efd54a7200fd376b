"""The group coordinators of a node: one per partition of `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from duramen.config import BrokerConfig
from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.machines.group.administration import CLASSIC, CONSUMER
from duramen.machines.group.commands import TopicsDeleted
from duramen.machines.group.consumer.commands import TopicsChanged
from duramen.machines.group.machine import GroupMachine
from duramen.machines.group.settings import GroupSettings
from duramen.model import NO_TOPIC_ID, OFFSETS_TOPIC, TopicPartition
from duramen.partition.host.host import Host
from duramen.partition.replica.partition import Partition
from duramen.partition.replica.transactional_writes import append_marker
from duramen.server.coordinators.context import CoordinatorContext
from duramen.server.coordinators.group_effects import GroupEffects
from duramen.server.coordinators.group_topics import ImageTopics
from duramen.server.coordinators.partitioner import partition_for
from duramen.server.coordinators.shell import (
    MAX_BATCH_BYTES,
    CoordinatorShell,
    DeletedTopics,
    StateTopic,
    coordinator_error,
)
from duramen.wire.batch import ABORT, COMMIT, Marker

group_error = coordinator_error
"""The code a group API answers with when its host refused or failed."""


class GroupsSummary(NamedTuple):
    """groups: how many there are by (type, state). rebalances: how often the epoch of a consumer group has risen."""

    groups: dict[tuple[str, str], int]
    members: dict[str, int]
    rebalances: int


@dataclass(frozen=True, slots=True)
class GroupCoordinator:
    """One partition's worth of groups."""

    partition: Partition
    host: Host
    machine: GroupMachine


class GroupCoordinators(CoordinatorShell[GroupCoordinator]):
    """The group coordinators of one broker, by partition of `__consumer_offsets`."""

    def __init__(self, context: CoordinatorContext) -> None:
        super().__init__(
            context,
            StateTopic(
                topics=(OFFSETS_TOPIC,),
                refused="offsets-topic-refused",
                copies="offsets.topic.replication.factor",
                make=self._make,
                loaded=self._loaded_groups,
                reconfigured=_reconfigured,
                forget=_forget,
            ),
        )
        self._topics = ImageTopics(lambda: context.image)
        self._effects = GroupEffects(context)
        context.publisher.on_topics.append(self._topics_changed)

    def _make(self, partitions: list[Partition]) -> GroupCoordinator:
        machine = GroupMachine(GroupSettings.from_config(self._context.config))
        host = Host(
            partitions[0],
            machine,
            self._context.clock,
            max_batch_bytes=MAX_BATCH_BYTES,
            commit_timeout_ms=self._context.config.integer("offsets.commit.timeout.ms"),
            on_clock_set=machine.ages.clock_set,
        )
        host.on_effect = partial(self._effects.carry_out, host)
        machine.consumers.configs = self._own_configs
        machine.consumers.topics.replaced(self._topics)
        return GroupCoordinator(partitions[0], host, machine)

    def _own_configs(self, group_id: str) -> dict[str, str]:
        return self._context.image.group_config(group_id)

    def _topics_changed(self, names: list[str], appeared: bool) -> None:
        command = TopicsChanged(self._topics, tuple(names), appeared)
        for coordinator in self.running():
            coordinator.host.submit(command, lambda _: None)

    def _loaded_groups(self, coordinator: GroupCoordinator) -> None:
        # What has changed was not reported to it since it was made.
        coordinator.machine.consumers.topics.replaced(self._topics)
        image = self._context.image
        deleted = [
            (name, topic_id)
            for name, topic_id in sorted(coordinator.machine.committed_topics())
            if image.topic_id(name) != topic_id and (topic_id != NO_TOPIC_ID or name not in image.topics)
        ]
        if deleted:
            coordinator.host.submit(TopicsDeleted(tuple(deleted)), lambda _: None)

    def end_transaction(
        self,
        index: int,
        producer: ProducerEpoch,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
        done: Callable[[KafkaError | None], None],
    ) -> None:
        """Write the marker that ends a producer's transaction in a partition of `__consumer_offsets`; `done(None)` once
        it is committed, and its offsets are the groups' own, or gone.
        """
        coordinator = self.at(index)
        if coordinator is None:
            what = f"{OFFSETS_TOPIC}-{index} is not led here"
            done(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, what))
        else:
            marker = Marker(COMMIT if commit else ABORT, coordinator_epoch)
            append = partial(
                append_marker, coordinator.partition, producer, commit, coordinator_epoch, transaction_version
            )
            coordinator.host.end_transaction(producer, marker, append, done)

    def partition_of(self, group_id: str) -> TopicPartition | None:
        """The partition of `__consumer_offsets` that has the group; None while there is no such topic."""
        count = self.partition_count
        return TopicPartition(OFFSETS_TOPIC, partition_for(group_id, count)) if count else None

    def summary(self) -> GroupsSummary:
        """Of every loaded group, for metrics."""
        counts: dict[tuple[str, str], int] = {}
        members = {CLASSIC: 0, CONSUMER: 0}
        rebalances = 0
        for coordinator in self.running():
            machine = coordinator.machine
            rebalances += machine.consumers.rebalances
            for kind, groups in ((CLASSIC, machine.groups), (CONSUMER, machine.consumers.groups)):
                for group in groups.values():
                    key = kind, group.state.value
                    counts[key] = counts.get(key, 0) + 1
                    members[kind] += len(group.members)
        return GroupsSummary(counts, members, rebalances)

    def committed_offsets(self) -> Iterator[tuple[str, TopicPartition, int]]:
        """(group, partition, committed offset) of every loaded group, for metrics; they may change between two."""
        for coordinator in list(self.running()):
            offsets = coordinator.machine.offsets
            for group_id in list(offsets):
                for (topic, partition), committed in list(offsets.of(group_id).items()):
                    yield group_id, TopicPartition(topic, partition), committed.offset


def _reconfigured(coordinator: GroupCoordinator, config: BrokerConfig) -> None:
    coordinator.machine.settings = GroupSettings.from_config(config)


def _forget(_: GroupCoordinator, deleted: DeletedTopics) -> TopicsDeleted:
    return TopicsDeleted(deleted)
