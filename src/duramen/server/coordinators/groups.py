"""Which coordinator a group has here, and the hosts that run them: one per partition of `__consumer_offsets`.

The topic is created when somebody first asks for a coordinator. A partition's host replays it when this node begins to
lead it; until that is done its groups are told COORDINATOR_LOAD_IN_PROGRESS, and NOT_COORDINATOR where it fails.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from operator import mul
from struct import unpack
from typing import TYPE_CHECKING, Any

from duramen.config import BrokerConfig
from duramen.errors import ClosedError, CorruptLogError, DuramenError, ErrorCode, KafkaError
from duramen.machines.group.commands import TopicsDeleted
from duramen.machines.group.machine import GroupMachine
from duramen.machines.group.settings import GroupSettings
from duramen.model import NO_TOPIC_ID, OFFSETS_TOPIC, TopicId, TopicPartition
from duramen.partition.host.host import Host
from duramen.server.coordinators.context import CoordinatorContext

if TYPE_CHECKING:
    from duramen.server.api.services import Asker

MAX_BATCH_BYTES = 8 << 20
"""Largest batch of coordinator records: the generation of a large group must fit in one."""

RELOAD_SECONDS = 10.0
"""From a replay that failed to the next one: each reads the partition up to where it is damaged."""

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


_utf_16 = codecs.getencoder("utf-16-be")
"""Here, for a codec is imported when it is first asked for, which takes a descriptor."""

_CHUNK = 256
_POWERS = tuple(pow(31, exponent, 1 << 32) for exponent in range(_CHUNK, -1, -1))

LONGEST_KEPT = 256
"""Characters of an id whose partition is remembered; longer ones are nobody's, and 16,384 of them would take 2 GB."""

SLICE_CHARACTERS = 20_000
"""Of ids that are looked for in one turn of the loop: a request brings up to `socket.request.max.bytes` of them."""

MOST_CHARACTERS = 20_000_000
"""Of one request, which keeps them in memory until the last one."""

ID_CHARACTERS = 100
"""What an id costs beside its characters, in characters."""


def java_hash(text: str) -> int:
    """String.hashCode of the text's UTF-16 units, as an unsigned number."""
    encoded, _ = _utf_16(text, "surrogatepass")
    count = len(encoded) // 2
    units = unpack(f">{count}H", encoded)
    value = 0
    for start in range(0, count, _CHUNK):
        chunk = units[start : start + _CHUNK]
        powers = _POWERS[-len(chunk) - 1 :]
        value = (value * powers[0] + sum(map(mul, chunk, powers[1:]))) & 0xFFFFFFFF
    return value


def partition_for(group_id: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that holds a group (Kafka's partitionFor: abs(hash) mod count)."""
    return (_kept if len(group_id) <= LONGEST_KEPT else _computed)(group_id, partitions)


def _computed(group_id: str, partitions: int) -> int:
    value = java_hash(group_id)
    signed = value - (1 << 32) if value & 0x80000000 else value
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


_kept = lru_cache(maxsize=16_384)(_computed)


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


class GroupCoordinators:
    """The group hosts of one broker, by partition of `__consumer_offsets`."""

    def __init__(self, context: CoordinatorContext) -> None:
        self._context = context
        self._hosts: dict[int, Host] = {}
        self._machines: dict[int, GroupMachine] = {}
        self._load_again: dict[int, float] = {}
        """When (monotonic seconds) a partition whose replay failed may have another one."""
        self._creating: list[Callable[[ErrorCode], None]] = []
        self._held: dict[str, deque[tuple[Any, Callable[[Any], None]]]] = {}
        """By group, commands that wait for its partition to be made: none overtakes another one of its group."""
        self._gone: list[tuple[str, TopicId]] = []
        """Deleted topics whose offsets no host was asked to remove yet."""
        self._removing = False
        context.publisher.on_deleted.append(self._topic_deleted)
        context.publisher.on_reconfigured.append(self._reconfigured)

    # ---- finding ---------------------------------------------------------------------------------------------

    def ensure_topic(self, done: Callable[[ErrorCode], None]) -> None:
        """`done(NONE)` once `__consumer_offsets` exists; it is created if need be."""
        if OFFSETS_TOPIC in self._context.image.topics:
            # Whoever asked first is still waiting for its partitions, perhaps: the topic alone runs no group.
            self._context.publisher.when_published(lambda: done(ErrorCode.NONE))
            return
        self._creating.append(done)
        if len(self._creating) == 1:
            controller = self._context.controller
            controller.create([controller.new_topic(OFFSETS_TOPIC)], self._created)

    def _created(self, results: Any) -> None:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        created = results[0].result if isinstance(results, list) else None
        if created is not None and created.error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            code = ErrorCode.NONE
        else:
            self._context.report("offsets-topic-refused", error=created.message if created is not None else results)
        waiting, self._creating = self._creating, []
        for done in waiting:
            done(code)

    def _partitions(self) -> int:
        topic = self._context.image.topic(OFFSETS_TOPIC)
        return 0 if topic is None else len(topic.partitions)

    def load_all(self) -> None:
        """At start: begin to load every partition led here."""
        for index in range(self._partitions()):
            self._host(index)

    def _host(self, index: int) -> Host | None:
        """The host of a partition, which may still be loading; None when this node does not lead it."""
        host = self._hosts.get(index)
        if host is not None and (
            host.failed is None or self._context.clock.monotonic() < self._load_again.get(index, 0)
        ):
            return host
        partition = self._context.store.partitions.get(TopicPartition(OFFSETS_TOPIC, index))
        if partition is None or not partition.replication.is_leader or partition.closed:
            return None
        machine = GroupMachine(GroupSettings.from_config(self._context.config))
        host = Host(
            partition,
            machine,
            self._context.clock,
            max_batch_bytes=MAX_BATCH_BYTES,
            commit_timeout_ms=self._context.config.integer("offsets.commit.timeout.ms"),
            on_clock_set=machine.ages.clock_set,
        )
        self._hosts[index] = host
        self._machines[index] = machine
        if partition.log_start_offset == partition.log_end_offset == partition.high_watermark:
            host.load()
        else:
            host.start_loading(partial(self._loaded, index), self._context.load_turns)
        return host

    def _loaded(self, index: int, error: DuramenError | None) -> None:
        if isinstance(error, ClosedError):
            return  # the node stops
        if error is not None:
            self._load_again[index] = self._context.clock.monotonic() + RELOAD_SECONDS
            if isinstance(error, CorruptLogError):
                self._context.store.found_damage(TopicPartition(OFFSETS_TOPIC, index), error)
            self._context.report("coordinator-load-failed", partition=index, error=error)
            return
        image = self._context.image
        gone = [
            (name, topic_id)
            for name, topic_id in sorted(self._machines[index].committed_topics())
            if image.topic_id(name) != topic_id and (topic_id != NO_TOPIC_ID or name not in image.topics)
        ]
        if gone:
            self._hosts[index].submit(TopicsDeleted(tuple(gone)), lambda _: None)

    # ---- commands --------------------------------------------------------------------------------------------

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
        count = self._partitions()
        if not count:  # nobody knows yet
            return [[group_id] for group_id in group_ids]
        found: dict[int, list[str]] = {}
        for group_id in group_ids:
            found.setdefault(partition_for(group_id, count), []).append(group_id)
        return list(found.values())

    def submit(self, group_id: str, command: Any, on_reply: Callable[[Any], None]) -> None:
        """Have the group's machine decide; errors reach `on_reply` as DuramenError."""
        held = self._held.get(group_id)
        if held is not None:
            held.append((command, on_reply))
        elif not self._try_to_submit(group_id, command, on_reply):
            # Perhaps the partitions of a new `__consumer_offsets` are still being made.
            self._held[group_id] = deque([(command, on_reply)])
            self._context.publisher.when_published(partial(self._let_go, group_id))

    def _let_go(self, group_id: str) -> None:
        held = self._held[group_id]
        try:
            while held:
                self._submit_or_refuse(group_id, *held.popleft())
        finally:
            del self._held[group_id]

    def _try_to_submit(self, group_id: str, command: Any, on_reply: Callable[[Any], None]) -> bool:
        count = self._partitions()
        host = self._host(partition_for(group_id, count)) if count else None
        if host is not None:
            host.submit(command, on_reply)
        return host is not None

    def _submit_or_refuse(self, group_id: str, command: Any, on_reply: Callable[[Any], None]) -> None:
        if not self._try_to_submit(group_id, command, on_reply):
            known = self._partitions() > 0
            on_reply(KafkaError(ErrorCode.NOT_COORDINATOR if known else ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def submit_everywhere(self, command: Any, on_replies: Callable[[list[Any]], None]) -> None:
        """Ask every machine here; `on_replies` gets all their answers, in the order of their partitions."""
        hosts = [host for host in (self._host(index) for index in range(self._partitions())) if host is not None]
        answers: list[Any] = [None] * len(hosts)
        left = len(hosts)
        if not hosts:
            on_replies([])

        def answered(number: int, answer: Any) -> None:
            nonlocal left
            answers[number] = answer
            left -= 1
            if left == 0:
                on_replies(answers)

        for number, host in enumerate(hosts):
            host.submit(command, partial(answered, number))

    # ---- following -------------------------------------------------------------------------------------------

    def _topic_deleted(self, name: str, topic_id: TopicId) -> None:
        if name == OFFSETS_TOPIC:
            for host in self._hosts.values():
                host.fail(KafkaError(ErrorCode.NOT_COORDINATOR, f"{name} was deleted"))  # clients look for another one
            self.close()
            return
        self._gone.append((name, topic_id))
        if not self._removing:
            self._removing = True
            self._remove_offsets()

    def _remove_offsets(self) -> None:
        """Of all topics that are gone by now, in one host after the other: all at once would hold up the loop."""
        topics, self._gone = tuple(self._gone), []
        hosts = deque(host for host in self._hosts.values() if host.loaded)  # others look for themselves when they are
        self._context.clock.call_soon(partial(self._remove_from, hosts, topics))

    def _remove_from(self, hosts: deque[Host], topics: tuple[tuple[str, TopicId], ...]) -> None:
        if hosts:
            host = hosts.popleft()
            follow = partial(self._context.clock.call_soon, partial(self._remove_from, hosts, topics))
            host.submit(TopicsDeleted(topics), lambda _: follow())
        elif self._gone:
            self._remove_offsets()
        else:
            self._removing = False

    def _reconfigured(self, config: BrokerConfig) -> None:
        settings = GroupSettings.from_config(config)
        for machine in self._machines.values():
            machine.settings = settings

    def directory_failed(self, error: DuramenError) -> None:
        """The disk under some partitions failed: their hosts end; what waits is told so."""
        for index, host in list(self._hosts.items()):
            if self._context.store.home(TopicPartition(OFFSETS_TOPIC, index)).journal.failed is not None:
                host.fail(error)

    def committed_offsets(self) -> Iterator[tuple[str, TopicPartition, int]]:
        """(group, partition, committed offset) of every loaded group, for metrics; they may change between two."""
        for machine in list(self._machines.values()):
            for group_id in list(machine.offsets):
                for (topic, partition), committed in list(machine.offsets.of(group_id).items()):
                    yield group_id, TopicPartition(topic, partition), committed.offset

    def close(self) -> None:
        """End every host."""
        hosts, self._hosts = self._hosts, {}
        self._machines = {}
        self._load_again = {}
        for host in hosts.values():
            host.close()
