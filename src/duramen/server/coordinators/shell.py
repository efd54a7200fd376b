"""One shell for every kind of coordinator: which one has an id here, and the hosts that run them.

A kind keeps its state in a topic of its own (`StateTopic`); partition i of it has the ids that hash to i. The topic is
created when somebody first asks for a coordinator. A partition's host replays it when this node begins to lead it;
until that is done its ids get COORDINATOR_LOAD_IN_PROGRESS, and NOT_COORDINATOR where it fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from duramen.config import BrokerConfig
from duramen.errors import ClosedError, CorruptLogError, DuramenError, ErrorCode, KafkaError
from duramen.machines.metadata.image import NO_LEADER
from duramen.model import TopicId, TopicPartition
from duramen.partition.host.host import Host
from duramen.partition.replica.partition import Partition
from duramen.server.coordinators.context import CoordinatorContext
from duramen.server.coordinators.id_slices import MOST_CHARACTERS, are_too_many, slices
from duramen.server.coordinators.partitioner import partition_for

if TYPE_CHECKING:
    from duramen.server.api.services import Asker

MAX_BATCH_BYTES: Final = 8 << 20
"""Largest batch of coordinator records: the generation of a large group must fit in one."""

RELOAD_SECONDS: Final = 10.0
"""From a replay that failed to the next one: each reads the partition up to where it is damaged."""

DeletedTopics = tuple[tuple[str, TopicId], ...]

_HOST_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.CORRUPT_MESSAGE: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What a failed append or replay means to a client of a coordinator, as Kafka's coordinators have it."""


def coordinator_error(error: DuramenError) -> ErrorCode:
    """The code that a client gets when its coordinator's host refused or failed."""
    return _HOST_ERRORS.get(error.code, error.code)


class Coordinator(Protocol):
    """What runs for one partition of a state topic."""

    @property
    def host(self) -> Host: ...


C = TypeVar("C", bound=Coordinator)


@dataclass(frozen=True, slots=True)
class StateTopic(Generic[C]):
    """What one kind of coordinator differs in.

    topics: the state topic, and what it needs beside it, with as many partitions; the last one is created last.
    refused: the event that says that they could not be created. copies: the setting that says how many they have.
    make: a coordinator for these partitions, one of each topic in their order, whose host has loaded nothing yet.
    loaded: is called with a coordinator that has replayed its log.
    reconfigured: has it go on with new settings.
    forget: the command that removes what it keeps of deleted topics; None when it keeps nothing of them.
    """

    topics: tuple[str, ...]
    refused: str
    copies: str
    make: Callable[[list[Partition]], C]
    loaded: Callable[[C], None]
    reconfigured: Callable[[C, BrokerConfig], None]
    forget: Callable[[C, DeletedTopics], Any | None]


class CoordinatorShell(Generic[C]):
    """The coordinators of one kind in one broker, by partition of their state topic."""

    def __init__(self, context: CoordinatorContext, state: StateTopic[C]) -> None:
        self._context = context
        self._state = state
        self._topic = state.topics[0]
        self._running: dict[int, C] = {}
        self._load_again: dict[int, float] = {}
        """When (monotonic seconds) a partition whose replay failed may have another one."""
        self._creating: list[Callable[[ErrorCode], None]] = []
        self._held: dict[str, deque[Callable[[C | KafkaError], None]]] = {}
        """By id, who waits for its partition to be made: none overtakes another one of its id."""
        self._deleted: list[tuple[str, TopicId]] = []
        """Deleted topics that no coordinator was asked to forget yet."""
        self._forgetting = False
        self._closed = False
        self._has_begun = False
        context.publisher.on_deleted.append(self._topic_deleted)
        context.publisher.on_leaders.append(self._leaders_changed)
        context.publisher.on_reconfigured.append(self._reconfigured)

    # ---- finding ---------------------------------------------------------------------------------------------

    def ensure_topics(self, done: Callable[[ErrorCode], None]) -> None:
        """`done(NONE)` once the topics exist; they are created if need be."""
        image = self._context.image
        missing = [name for name in reversed(self._state.topics) if name not in image.topics]
        if not missing:
            # Whoever asked first is still waiting for the partitions, perhaps: the topics alone run no coordinator.
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
                why = str(created) if isinstance(created, DuramenError) else created.result.message
                if error is ErrorCode.INVALID_REPLICATION_FACTOR:
                    why = f"{why} {self._state.copies} says how many copies there are."
                self._context.report(self._state.refused, error=why)
        if code is ErrorCode.NONE:
            self._context.publisher.when_published(self.load_all)
        waiting, self._creating = self._creating, []
        for done in waiting:
            done(code)

    @property
    def partition_count(self) -> int:
        """Of the state topic; 0 while there is none."""
        topic = self._context.image.topic(self._topic)
        return 0 if topic is None else len(topic.partitions)

    def load_all(self) -> None:
        """Begin to load every partition led here, from now on with each that comes to be."""
        self._has_begun = True
        for index in range(self.partition_count):
            self.at(index)

    def at(self, index: int) -> C | None:
        """The coordinator of a partition, which may still be loading; None when it cannot run here now."""
        found = self._running.get(index)
        if found is not None and (
            found.host.failed is None or self._context.clock.monotonic() < self._load_again.get(index, 0)
        ):
            return found
        partitions = [led for topic in self._state.topics if (led := self._led(topic, index)) is not None]
        if self._closed or len(partitions) < len(self._state.topics):
            return None
        made = self._running[index] = self._state.make(partitions)
        state = partitions[0]
        if state.log_start_offset == state.log_end_offset == state.high_watermark:
            made.host.load()
        else:
            made.host.start_loading(partial(self._loaded, index, made), self._context.load_turns)
        return made

    def _led(self, topic: str, index: int) -> Partition | None:
        partition = self._context.store.partitions.get(TopicPartition(topic, index))
        return None if partition is None or partition.closed or not partition.replication.is_leader else partition

    def _loaded(self, index: int, coordinator: C, error: DuramenError | None) -> None:
        if isinstance(error, ClosedError):
            return  # the node stops
        if error is None:
            self._state.loaded(coordinator)
            return
        self._load_again[index] = self._context.clock.monotonic() + RELOAD_SECONDS
        if isinstance(error, CorruptLogError):
            self._context.store.found_damage(TopicPartition(self._topic, index), error)
        self._context.report("coordinator-load-failed", topic=self._topic, partition=index, error=error)

    def place(self, name: str) -> int:
        """The node that has the coordinator of an id: the leader of its partition; -1 when there is none."""
        count = self.partition_count
        if not count:
            return NO_LEADER
        image = self._context.image
        partition = image.partition(TopicPartition(self._topic, partition_for(name, count)))
        return NO_LEADER if partition is None else image.leader(partition)

    def of(self, name: str) -> C | None:
        """The coordinator of an id, which may still be loading; None when it cannot run here now."""
        count = self.partition_count
        return self.at(partition_for(name, count)) if count else None

    def running(self) -> Iterator[C]:
        """Those that have loaded."""
        return (each for each in self._running.values() if each.host.loaded and each.host.failed is None)

    # ---- commands --------------------------------------------------------------------------------------------

    def find(self, name: str, done: Callable[[C | KafkaError], None]) -> None:
        """The id's coordinator, or why there is none now."""
        held = self._held.get(name)
        if held is not None:
            held.append(done)
        elif (found := self.of(name)) is not None:
            done(found)
        else:
            # Perhaps the partitions of a new topic are still being made.
            self._held[name] = deque([done])
            self._context.publisher.when_published(partial(self._let_go, name))

    def _let_go(self, name: str) -> None:
        held = self._held[name]
        try:
            while held:
                found = self.of(name)
                if found is None:
                    known = self.partition_count > 0
                    code = ErrorCode.NOT_COORDINATOR if known else ErrorCode.COORDINATOR_NOT_AVAILABLE
                held.popleft()(KafkaError(code) if found is None else found)
        finally:
            del self._held[name]

    def submit(self, name: str, command: Any, on_reply: Callable[[Any], None]) -> None:
        """Have the id's machine decide; errors reach `on_reply` as DuramenError."""

        def found(coordinator: C | KafkaError) -> None:
            if isinstance(coordinator, KafkaError):
                on_reply(coordinator)
            else:
                coordinator.host.submit(command, on_reply)

        self.find(name, found)

    def submit_everywhere(self, command: Any, on_replies: Callable[[list[Any]], None]) -> None:
        """Ask every machine here; `on_replies` gets all their answers, in the order of their partitions."""
        hosts = [found.host for index in range(self.partition_count) if (found := self.at(index)) is not None]
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

    def in_turns(self, request: Asker, ids: list[str], ask: Callable[[list[str]], None]) -> None:
        """`ask` about the request's ids, so many at a time, with the loop free in between."""
        if are_too_many(ids):
            request.drop_connection(f"ids of more than {MOST_CHARACTERS} characters in one request")
            return
        waiting = slices(ids)

        def go_on() -> None:
            some = next(waiting, None)
            if some is not None:
                ask(some)
                if not request.connection.closed:
                    self._context.clock.call_soon(go_on)

        go_on()

    def sharing(self, ids: Iterable[str]) -> list[list[str]]:
        """The ids, those of one machine together: who asks about many asks each machine once."""
        count = self.partition_count
        if not count:  # not known yet
            return [[each] for each in ids]
        found: dict[int, list[str]] = {}
        for each in ids:
            found.setdefault(partition_for(each, count), []).append(each)
        return list(found.values())

    # ---- following -------------------------------------------------------------------------------------------

    def _leaders_changed(self, name: str) -> None:
        """Partitions of the topic may be led here by now, or no more: their hosts begin, and end, with that."""
        if name not in self._state.topics or not self._has_begun:
            return
        for index, coordinator in list(self._running.items()):
            if any(self._led(topic, index) is None for topic in self._state.topics):
                del self._running[index]
                self._load_again.pop(index, None)
                topic = TopicPartition(self._topic, index)
                coordinator.host.fail(KafkaError(ErrorCode.NOT_COORDINATOR, f"{topic} is not led here any more"))
        self._context.clock.call_soon(self.load_all)

    def _topic_deleted(self, name: str, topic_id: TopicId) -> None:
        if name in self._state.topics:
            # Clients look for another one.
            self.unload(KafkaError(ErrorCode.NOT_COORDINATOR, f"{name} was deleted"))
            return
        self._deleted.append((name, topic_id))
        if not self._forgetting:
            self._forgetting = True
            self._forget_deleted()

    def _forget_deleted(self) -> None:
        """All topics that are gone by now, in one host after the other: all at once would hold up the loop."""
        deleted, self._deleted = tuple(self._deleted), []
        # Others look for themselves when they have loaded.
        self._context.clock.call_soon(partial(self._forget_in, deque(self.running()), deleted))

    def _forget_in(self, coordinators: deque[C], deleted: DeletedTopics) -> None:
        if coordinators:
            coordinator = coordinators.popleft()
            follow = partial(self._context.clock.call_soon, partial(self._forget_in, coordinators, deleted))
            command = self._state.forget(coordinator, deleted)
            if command is None:
                follow()
            else:
                coordinator.host.submit(command, lambda _: follow())
        elif self._deleted:
            self._forget_deleted()
        else:
            self._forgetting = False

    def _reconfigured(self, config: BrokerConfig) -> None:
        for coordinator in self._running.values():
            self._state.reconfigured(coordinator, config)

    def directory_failed(self, error: DuramenError) -> None:
        """The disk under some partitions failed: their hosts end; what waits is answered with that."""
        for index, coordinator in list(self._running.items()):
            for topic in self._state.topics:
                if self._context.store.home(TopicPartition(topic, index)).journal.failed is not None:
                    coordinator.host.fail(error)

    def unload(self, error: DuramenError) -> None:
        """End every host, and answer who waits with `error`; whoever asks next has the partition loaded again."""
        running, self._running = self._running, {}
        self._load_again = {}
        for coordinator in running.values():
            coordinator.host.fail(error)

    def close(self) -> None:
        """End every host for good."""
        self._closed = True
        self.unload(ClosedError(f"the coordinators of {self._topic} were closed"))
