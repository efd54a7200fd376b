"""The group coordinators of a node: one per partition of `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from duramen.config import BrokerConfig
from duramen.errors import DuramenError, ErrorCode
from duramen.machines.group.commands import TopicsDeleted
from duramen.machines.group.machine import GroupMachine
from duramen.machines.group.settings import GroupSettings
from duramen.model import NO_TOPIC_ID, OFFSETS_TOPIC, TopicPartition
from duramen.partition.host.host import Host
from duramen.partition.replica.partition import Partition
from duramen.server.coordinators.context import CoordinatorContext
from duramen.server.coordinators.partitioner import partition_for
from duramen.server.coordinators.shell import MAX_BATCH_BYTES, CoordinatorShell, DeletedTopics, StateTopic

if TYPE_CHECKING:
    from duramen.server.api.services import Asker

_HOST_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.CORRUPT_MESSAGE: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What a failed append or replay means to a group member, as Kafka's group coordinator has it."""


def group_error(error: DuramenError) -> ErrorCode:
    """The code a group API answers with when its host refused or failed."""
    return _HOST_ERRORS.get(error.code, error.code)


SLICE_CHARACTERS = 20_000
"""Of ids that are looked for in one turn of the loop: a request brings up to `socket.request.max.bytes` of them."""

MOST_CHARACTERS = 20_000_000
"""Of one request, which keeps them in memory until the last one."""

ID_CHARACTERS = 100
"""What an id costs beside its characters, in characters."""


def slices(ids: Iterable[str]) -> Iterator[list[str]]:
    """The ids, so many at a time as one turn of the loop may look for."""
    some: list[str] = []
    left = SLICE_CHARACTERS
    for each in ids:
        some.append(each)
        left -= len(each) + ID_CHARACTERS
        if left <= 0:
            yield some
            some, left = [], SLICE_CHARACTERS
    if some:
        yield some


@dataclass(frozen=True, slots=True)
class GroupCoordinator:
    """One partition's worth of groups."""

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
        return GroupCoordinator(host, machine)

    def _loaded_groups(self, coordinator: GroupCoordinator) -> None:
        image = self._context.image
        deleted = [
            (name, topic_id)
            for name, topic_id in sorted(coordinator.machine.committed_topics())
            if image.topic_id(name) != topic_id and (topic_id != NO_TOPIC_ID or name not in image.topics)
        ]
        if deleted:
            coordinator.host.submit(TopicsDeleted(tuple(deleted)), lambda _: None)

    def in_turns(self, request: Asker, group_ids: list[str], ask: Callable[[list[str]], None]) -> None:
        """`ask` about the request's groups, so many at a time, with the loop free in between."""
        if sum(map(len, group_ids)) + ID_CHARACTERS * len(group_ids) > MOST_CHARACTERS:
            request.drop_connection(f"ids of more than {MOST_CHARACTERS} characters in one request")
            return
        waiting = slices(group_ids)

        def go_on() -> None:
            some = next(waiting, None)
            if some is not None:
                ask(some)
                if not request.connection.closed:
                    self._context.clock.call_soon(go_on)

        go_on()

    def sharing(self, group_ids: Iterable[str]) -> list[list[str]]:
        """The groups, those of one machine together: who asks about many asks each machine once."""
        count = self.partition_count
        if not count:  # nobody knows yet
            return [[group_id] for group_id in group_ids]
        found: dict[int, list[str]] = {}
        for group_id in group_ids:
            found.setdefault(partition_for(group_id, count), []).append(group_id)
        return list(found.values())

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
