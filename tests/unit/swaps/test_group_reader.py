"""Members of a group on a fake librdkafka, whose every call fails once in turn: nothing is lost, nothing comes twice.

The fake keeps what the reader relies on: a position that moves when records are taken, also when the caller never
gets them; callbacks inside `consume`, whose exceptions come out of it; commits that are refused in an old generation.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from duramen.client import EARLIEST, ClusterMetadata, ListedOffset, PartitionMetadata, TopicMetadata
from duramen.errors import DuramenError, ErrorCode
from duramen.model import TopicPartition as Place
from duramen.model import topic_id_text
from duramen.swaps import CutLostError, GroupReader, Handover, SwapConflictError, group_reader
from duramen.swaps.cut_overs import PASSED_OVER, Committed, CutOver, Where, topics_of

CALLS_MAX = 400
Record = tuple[str, int, int]


class CallFailedError(KafkaException):
    """The one call that this test lets fail."""


class Taken(NamedTuple):
    """A record as librdkafka gives it, or word of this code that there is none."""

    place: Record
    code: int | None = None

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.place[2]

    def error(self) -> KafkaError | None:
        return None if self.code is None else KafkaError(self.code)


class Node:
    """Topics, chain and group of the one node; fails the call of this number, before or after it takes effect."""

    def __init__(self, fails: int = -1, late: bool = False) -> None:
        self.ends: dict[str, list[int]] = {}
        self.ids: dict[str, bytes] = {}
        self.errors: dict[str, ErrorCode] = {}
        self.cuts: tuple[CutOver, ...] = ()
        self.due: list[Record] = []
        self.commits: dict[Where, Committed] = {}
        self.members: list[FakeConsumer] = []
        self.generation = 0
        self.calls = 0
        self.fails = fails
        self.late = late
        self.meanwhile: list[Callable[[], None]] = []
        """What happens while members wait for records, one for each wait."""
        self.make("late", 2)

    def call(self, work: Callable[[], Any]) -> Any:
        self.calls += 1
        if self.calls - 1 != self.fails:
            return work()
        if self.late:
            work()
        raise CallFailedError(KafkaError(KafkaError._TRANSPORT))

    # ---- what happens on the node ----------------------------------------------------------------------------

    def make(self, topic: str, partitions: int) -> None:
        self.ends[topic] = [0] * partitions

    def put(self, topic: str, *counts: int, seen: bool = True) -> None:
        """So many records into each partition."""
        for partition, count in enumerate(counts):
            end = self.ends[topic][partition]
            self.ends[topic][partition] += count
            self.due += [(topic, partition, at) for at in range(end, end + count)] if seen else []

    def swap(self, new: str) -> None:
        old = topics_of("late", self.cuts)[-1]
        until, start = (dict(enumerate(self.ends[name])) for name in (old, new))
        self.cuts += (CutOver(old, until, new, start, topic_id_text(self.ids[new]) if new in self.ids else ""),)

    # ---- the group -------------------------------------------------------------------------------------------

    def rebalance(self) -> None:
        self.generation += 1

    def given_to(self, member: FakeConsumer) -> list[TopicPartition]:
        """Kafka's range assignor, for counts that the number of members divides or that are not larger."""
        found = []
        for topic in member.topics:
            if topic in self.ends:
                among = [each for each in self.members if topic in each.topics]
                size = -(-len(self.ends[topic]) // len(among))
                begin = among.index(member) * size
                numbers = range(len(self.ends[topic]))[begin : begin + size]
                found += [TopicPartition(topic, partition) for partition in numbers]
        return found


class FakeConsumer:
    """confluent_kafka.Consumer."""

    node: Node

    def __init__(self, _config: dict[str, Any], **_more: Any) -> None:
        self.topics: list[str] = []
        self.generation = -1
        self.positions: dict[Where, int] = {}
        self.told: set[Where] = set()
        self.paused: set[Where] = set()

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any) -> None:
        def work() -> None:
            self.topics, self.on_assign, self.on_revoke = topics, on_assign, on_revoke
            self.node.members += [] if self in self.node.members else [self]
            self.node.rebalance()

        self.node.call(work)

    def close(self) -> None:
        if self in self.node.members:
            self.node.members.remove(self)
            self.node.rebalance()

    def assign(self, given: list[TopicPartition]) -> None:
        self.node.call(lambda: self._assign({(each.topic, each.partition): each.offset for each in given}))

    def _assign(self, positions: dict[Where, int]) -> None:
        self.positions, self.told, self.paused, self.assigned = positions, set(), set(), True

    def pause(self, places: list[TopicPartition]) -> None:
        self.paused.update((each.topic, each.partition) for each in places)

    def resume(self, places: list[TopicPartition]) -> None:
        self.paused.difference_update((each.topic, each.partition) for each in places)

    def consume(self, count: int, timeout: float) -> list[Taken]:
        assert 0 <= timeout <= group_reader.LOOK_SECONDS, "nobody looks for cuts meanwhile"
        if self.node.meanwhile:
            self.node.meanwhile.pop(0)()
        self._serve()
        found: list[Taken] = []

        def work() -> list[Taken]:
            for topic, partition in [place for place in self.positions if place not in self.paused]:
                end = self.node.ends[topic][partition]
                while len(found) < count and self.positions[(topic, partition)] < end:
                    found.append(Taken((topic, partition, self.positions[(topic, partition)])))
                    self.positions[(topic, partition)] += 1
                    self.told.discard((topic, partition))
                if self.positions[(topic, partition)] >= end and (topic, partition) not in self.told:
                    self.told.add((topic, partition))
                    found.append(Taken((topic, partition, end), KafkaError._PARTITION_EOF))
            return found

        taken: list[Taken] = self.node.call(work)
        return taken

    def _serve(self) -> None:
        if self.generation != self.node.generation and self in self.node.members:
            if self.generation >= 0:
                self.on_revoke(self, [])
            self._assign({})
            self.generation = self.node.generation
            given = self.node.given_to(self)
            self.assigned = False
            try:
                self.on_assign(self, given)
            finally:
                if not self.assigned:  # then librdkafka's binding reads everything
                    places = [(each.topic, each.partition) for each in given]
                    self._assign({where: self.node.commits.get(where, Committed(0)).offset for where in places})

    def committed(self, asked: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert timeout > 0

        def work() -> list[TopicPartition]:
            found = []
            for each in asked:
                told = self.node.commits.get((each.topic, each.partition), Committed(-1001))
                found.append(TopicPartition(each.topic, each.partition, told.offset, told.metadata))
            return found

        answers: list[TopicPartition] = self.node.call(work)
        return answers

    def commit_within(self, offsets: list[TopicPartition], seconds: float) -> list[TopicPartition]:
        assert seconds > 0

        def work() -> list[TopicPartition]:
            if any(member.generation > self.generation for member in self.node.members):
                raise KafkaException(KafkaError(KafkaError.ILLEGAL_GENERATION))
            for each in offsets:
                self.node.commits[(each.topic, each.partition)] = Committed.told_by(each.offset, each.metadata)
            return offsets

        answers: list[TopicPartition] = self.node.call(work)
        return answers


class FakeCluster:
    """client.Cluster, and the SwapLog of it."""

    node: Node

    def __init__(self, _bootstrap: Any) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def cuts(self, _topic: str) -> tuple[CutOver, ...]:
        found: tuple[CutOver, ...] = self.node.call(lambda: self.node.cuts)
        return found

    def metadata(self, topics: list[str]) -> ClusterMetadata:
        def told(topic: str) -> TopicMetadata:
            missing = ErrorCode.NONE if topic in self.node.ends else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            error = self.node.errors.get(topic, missing)
            partitions = () if error else range(len(self.node.ends[topic]))
            found = {p: PartitionMetadata(p, 0, 0, (0,), (0,), ErrorCode.NONE) for p in partitions}
            return TopicMetadata(topic, self.node.ids.get(topic, bytes(16)), False, found, error)

        found: ClusterMetadata = self.node.call(
            lambda: ClusterMetadata(None, 0, {}, {topic: told(topic) for topic in topics})
        )
        return found

    def partitions(self, topic: str) -> list[int]:
        raise DuramenError(f"{topic}: {self.node.errors[topic].name}")

    def list_offsets(self, wanted: dict[Place, int], _isolation: int) -> dict[Place, ListedOffset]:
        def work() -> dict[Place, ListedOffset]:
            return {
                place: ListedOffset(0 if at == EARLIEST else self.node.ends[place.topic][place.partition], -1, -1)
                for place, at in wanted.items()
            }

        found: dict[Place, ListedOffset] = self.node.call(work)
        return found


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Node], Node]:
    """Readers that are made from now on are those of this node; each look at the clock lets 0.3 s go by."""

    def on(node: Node) -> Node:
        moments = itertools.count()
        for name in ("LibraryConsumer", "Cluster", "SwapLog"):
            fake: Any = FakeConsumer if name == "LibraryConsumer" else FakeCluster
            replaced = type(name, (fake,), {"node": node})
            monkeypatch.setattr(group_reader, name, replaced)
        clock = SimpleNamespace(monotonic=lambda: next(moments) * 0.3)
        monkeypatch.setattr("duramen.swaps.group_reader.time", clock)
        return node

    return on


def story(node: Node, alike: bool) -> Iterator[None]:
    """What happens on the node while readers read: records, a swap, a rebalance, a rollback."""
    node.put("late", 4, 3)
    yield
    node.put("late", 1, 2)
    yield
    node.make("late.v2", 2 if alike else 3)
    node.put("late.v2", 2, 1, seen=False)
    node.swap("late.v2")
    node.put("late.v2", 2, 3, *(() if alike else (2,)))
    yield
    node.rebalance()
    yield
    node.put("late", 3, 3, seen=False)
    node.swap("late")
    node.put("late", 1, 2)
    yield
    node.rebalance()
    node.put("late", 2, 0)
    yield


def opened(node: Node, handover: Callable[[], Handover] | None = None) -> GroupReader:
    while True:
        with contextlib.suppress(CallFailedError):
            return GroupReader("", "audit", "late", handover=handover)


def records(given: list[Any]) -> list[Record]:
    assert all(message.error() is None for message in given)
    return [message.place for message in given]


def check(node: Node, read: list[Record]) -> None:
    for partition in range(3):
        found = [record for record in read if record[1] == partition]
        assert found == [record for record in node.due if record[1] == partition], f"partition {partition}"
    where = {("late", p): node.ends["late"][p] for p in range(2)}
    assert {place: node.commits[place].offset for place in where} == where, "all of it is committed"


def resting(node: Node, *readers: GroupReader) -> bool:
    """Whether nothing is left to do, after a turn in which nothing came."""
    known = all(member.generation == node.generation for member in node.members)
    return known and all(reader.at_end and not reader._handed for reader in readers)


def one_member(node: Node, alike: bool) -> None:
    """Who gets an error asks for more, without repeating what failed."""
    read: list[Record] = []
    acts = story(node, alike)
    next(acts)
    reader = opened(node)
    for turn in range(CALLS_MAX):
        try:
            found = records(reader.consume(3, 0.1))
            read += found
            if turn % 2:
                reader.commit()
            if not found and resting(node, reader) and next(acts, "done") == "done":
                check(node, read)
                return
        except CallFailedError:
            pass
    raise AssertionError(f"no end: {read}")


def slow_member(node: Node, alike: bool) -> None:
    """Who works on one record a turn commits it, and gives back what it has not begun when the group is shared anew."""
    read: list[Record] = []
    waiting: list[Record] = []
    done: dict[Where, int] = {}

    def handover() -> Handover:
        undone = {(topic, partition): at for topic, partition, at in reversed(waiting)}
        waiting.clear()
        return Handover(dict(done), undone)

    acts = story(node, alike)
    next(acts)
    reader = opened(node, handover)
    for turn in range(CALLS_MAX):
        try:
            if not waiting:
                reader.commit(done)
                reader.resume()
                done.clear()
                waiting += records(reader.consume(5, 0.1))
                if not waiting and resting(node, reader) and next(acts, "done") == "done":
                    check(node, read)
                    return
            else:
                reader.pause()
                assert reader.consume(5, 0.0) == []
                if waiting:
                    topic, partition, at = waiting.pop(0)
                    read.append((topic, partition, at))
                    done[topic, partition] = at + 1
                    if turn % 8 == 0:
                        node.rebalance()
                    elif turn % 4 == 1:
                        reader.commit(done)
        except CallFailedError:
            pass
    raise AssertionError(f"no end: {read}")


def two_members(node: Node, alike: bool) -> None:
    """Who gets an error asks again; what was handed out is committed before anything else happens."""
    read: list[Record] = []
    acts = story(node, alike)
    next(acts)
    readers = [opened(node), opened(node)]
    for _ in range(CALLS_MAX):
        more = False
        for reader in readers:
            try:
                found = records(reader.consume(2, 0.1))
            except CallFailedError:
                continue
            read += found
            more |= bool(found)
            try:
                reader.commit()
            except CallFailedError:
                reader.commit()
        if not more and resting(node, *readers) and next(acts, "done") == "done":
            check(node, read)
            return
    raise AssertionError(f"no end: {read}")


def one_after_the_other(node: Node, alike: bool) -> None:
    """Who gets an error is replaced; only what was handed out since the last commit may come once more."""
    read: list[Record] = []
    loose: list[Record]
    acts = story(node, alike)
    next(acts)
    reader = opened(node)
    for _ in range(CALLS_MAX):
        loose = []
        try:
            loose = records(reader.consume(3, 0.1))
            reader.commit()
            read += loose
            if not loose and resting(node, reader) and next(acts, "done") == "done":
                check(node, read)
                return
        except CallFailedError:
            if node.late and loose and all(node.commits[each[:2]].offset > each[2] for each in loose):
                read += loose  # the commit was made, though nobody was told
            reader.close()
            reader = opened(node)
    raise AssertionError(f"no end: {read}")


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("alike", [True, False], ids=["alike", "others"])
@pytest.mark.parametrize("members", [one_member, two_members, one_after_the_other])
def test_every_call_fails_once(
    install: Callable[[Node], Node], members: Callable[[Node, bool], None], alike: bool, late: bool
) -> None:
    let_each_call_fail(install, members, alike, late)


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_every_call_fails_once_while_records_wait_for_who_works_on_them(
    install: Callable[[Node], Node], late: bool
) -> None:
    let_each_call_fail(install, slow_member, True, late)


def let_each_call_fail(
    install: Callable[[Node], Node], members: Callable[[Node, bool], None], alike: bool, late: bool
) -> None:
    undisturbed = install(Node())
    members(undisturbed, alike)
    assert undisturbed.calls > 50
    for number in range(undisturbed.calls):
        node = install(Node(number, late))
        try:
            members(node, alike)
        except BaseException as error:
            error.add_note(f"call {number} failed")
            raise
        assert node.calls > number


def test_of_what_waits_nothing_is_committed(install: Callable[[Node], Node]) -> None:
    node = install(Node())
    node.put("late", 4, 2)
    reader = GroupReader("", "audit", "late", handover=lambda: Handover({("late", 0): 2}, {("late", 0): 3}))
    assert len(reader.consume(10, 0.1)) == 6
    reader.commit({("late", 0): 1})
    assert [node.commits["late", partition].offset for partition in (0, 1)] == [1, 0]
    node.rebalance()
    assert records(reader.consume(10, 0.1)) == [("late", 0, 3)], "the third is on its way out"
    assert [node.commits["late", partition].offset for partition in (0, 1)] == [2, 0]
    reader.commit({("late", 0): 4, ("late", 1): 2})
    assert [node.commits["late", partition].offset for partition in (0, 1)] == [4, 2]


def everything(reader: GroupReader) -> list[Record]:
    """What comes until the end, also after the next look for cuts."""
    read: list[Record] = []
    idle = 0
    for _ in range(CALLS_MAX):
        found = records(reader.consume(3, 0.1))
        read += found
        idle = idle + 1 if not found and reader.at_end else 0
        if idle > 5:
            return read
    raise AssertionError(f"no end: {read}")


def test_a_commit_that_was_made_though_it_failed_is_known_as_ours(install: Callable[[Node], Node]) -> None:
    node = install(Node(late=True))
    node.put("late", 5)
    reader = GroupReader("", "audit", "late")
    read = records(reader.consume(2, 0.1))
    node.fails = node.calls
    with pytest.raises(CallFailedError):
        reader.commit()
    assert node.commits[("late", 0)].offset == 2
    read += records(reader.consume(2, 0.1))
    node.rebalance()
    assert read + everything(reader) == node.due


def test_a_partition_that_went_to_another_member_is_not_committed(install: Callable[[Node], Node]) -> None:
    """The new member's place would be set back to where the old one was."""
    node = install(Node())
    node.put("late", 0, 4)
    first = GroupReader("", "audit", "late")
    assert len(first.consume(3, 0.1)) == 2
    second = GroupReader("", "audit", "late")
    assert everything(second) == node.due
    second.commit()
    first._next_look = float("inf")
    node.fails = node.calls  # the first thing that is asked in the rebalance
    with pytest.raises(CallFailedError):
        first.consume(2, 0.1)
    assert not first.at_end, "what it was given is not known"
    first.commit()
    assert node.commits[("late", 1)].offset == 4


@pytest.mark.parametrize("code", [KafkaError.ILLEGAL_GENERATION, KafkaError.GROUP_ID_NOT_FOUND])
@pytest.mark.parametrize("refused", [1, 5])
def test_a_group_that_goes_on_meanwhile_is_no_error(
    install: Callable[[Node], Node], monkeypatch: pytest.MonkeyPatch, refused: int, code: int
) -> None:
    """The member's commit is refused until it has its partitions anew, which librdkafka tells who asks for records."""
    node = install(Node())
    node.put("late", 2, 2)
    reader = GroupReader("", "audit", "late")
    commit = FakeConsumer.commit_within
    left = [refused]

    def stale(consumer: FakeConsumer, offsets: list[TopicPartition], seconds: float) -> list[TopicPartition]:
        if left[0]:
            left[0] -= 1
            node.rebalance()
            raise KafkaException(KafkaError(code))
        return commit(consumer, offsets, seconds)

    monkeypatch.setattr(FakeConsumer, "commit_within", stale)
    read = everything(reader)
    assert left == [0], "where a group begins is written down"
    assert sorted(read) == sorted(node.due)


def test_where_a_group_begins_is_written_down(install: Callable[[Node], Node]) -> None:
    """Also where it has read nothing: behind a cut nobody could tell any more."""
    node = install(Node())
    node.put("late", 2, 2, seen=False)
    with GroupReader("", "audit", "late", start="latest") as reader:
        assert everything(reader) == []
    node.put("late", 1, 1)
    node.make("late.v2", 2)
    node.put("late.v2", 3, 3, seen=False)
    node.swap("late.v2")
    node.put("late.v2", 1, 1)
    with GroupReader("", "audit", "late", start="latest") as reader:
        assert sorted(everything(reader)) == sorted(node.due)


@pytest.mark.parametrize("timeout", [60.0, -1.0])
def test_who_waits_for_long_finds_a_swap(install: Callable[[Node], Node], timeout: float) -> None:
    """In the old topic nothing comes any more that would end the wait."""
    node = install(Node())
    node.put("late", 1, 1)
    node.make("late.v2", 2)
    with GroupReader("", "audit", "late") as reader:
        read = everything(reader)

        def swapped() -> None:
            node.swap("late.v2")
            node.put("late.v2", 1, 0)

        node.meanwhile = [lambda: None] * 3 + [swapped]
        assert read + records(reader.consume(3, timeout)) == node.due


def test_who_waits_for_nothing_gets_nothing(install: Callable[[Node], Node]) -> None:
    install(Node())
    with GroupReader("", "audit", "late") as reader:
        assert [reader.consume(3, timeout) for timeout in (0.0, 2.5)] == [[], []]


def test_a_chain_that_is_another_and_a_topic_that_is_gone_are_told(install: Callable[[Node], Node]) -> None:
    node = install(Node())
    node.put("late", 1, 1)
    node.make("late.v2", 2)
    with GroupReader("", "audit", "late") as reader:
        reader.consume(1, 0.1)
        reader.commit()
        node.swap("late.v2")
        everything(reader)
        node.cuts = ()
        for _ in range(2):
            with pytest.raises(SwapConflictError):
                everything(reader)
    node.swap("late.v2")
    del node.ends["late"]
    with GroupReader("", "audit", "late") as reader:
        for _ in range(2):
            with pytest.raises(CutLostError, match="late-1 to offset 0, not to its cut at 1"):
                reader.consume(1, 0.1)
        assert not reader.at_end


def test_a_topic_is_not_there_only_where_the_node_says_so(install: Callable[[Node], Node]) -> None:
    """Its commits would not be looked at: the group would begin anew."""
    node = install(Node())
    node.put("late", 1, 1)
    node.make("late.v2", 2)
    with GroupReader("", "audit", "late") as reader:
        everything(reader)
        reader.commit()
        node.swap("late.v2")
        node.put("late.v2", 2, 2)
        node.errors["late"] = ErrorCode.LEADER_NOT_AVAILABLE
        for _ in range(2):
            with pytest.raises(DuramenError, match="LEADER_NOT_AVAILABLE"):
                everything(reader)
        node.errors.clear()
        assert everything(reader) == node.due[2:]
        node.errors["late.v2"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        node.rebalance()
        with pytest.raises(DuramenError, match="TOPIC_AUTHORIZATION_FAILED"):
            reader.consume(1, 0.1)


def test_a_group_that_another_client_set_back_goes_on_there(install: Callable[[Node], Node]) -> None:
    """Such commits say no generation; they are given one, for later they could not be told from those before a move."""
    node = install(Node())
    node.put("late", 3, 2)
    node.make("late.v2", 2)
    node.put("late.v2", 3, 2, seen=False)
    with GroupReader("", "audit", "late") as reader:
        everything(reader)
        reader.commit()
        node.swap("late.v2")
        node.put("late.v2", 2, 2)
        everything(reader)
        reader.commit()
    node.commits[("late", 0)] = Committed(1)
    node.commits[("late", 1)] = Committed(2)  # at its cut: nothing is new
    with GroupReader("", "audit", "late") as reader:
        again = everything(reader)
        assert again == [record for record in node.due if record[1] == 0][1:]
        assert node.commits[("late", 0)] == Committed(1, 0, 0)
        assert node.commits[("late", 1)] == Committed(2, 0, 0)
        assert node.commits[("late.v2", 0)].generation == PASSED_OVER
        node.rebalance()
        assert everything(reader) == []
        reader.commit()
        assert node.commits[("late.v2", 0)] == Committed(5, 1, 0)
    with GroupReader("", "audit", "late") as reader:
        assert everything(reader) == []
