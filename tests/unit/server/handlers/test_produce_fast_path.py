"""Requests that begin like an earlier one: the same bytes get the same replies and do the same, known or not."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worlds.broker_world import NOW, InProcess, Line
from tests.worlds.partition_world import Numbers

from duramen.server.handlers import produce_fast_path
from duramen.server.handlers.produce_fast_path import KnownProduces, batch_behind
from duramen.server.net.listener_type import ListenerType
from duramen.wire.batch import build_batch
from duramen.wire.frame import encode_request
from duramen.wire.messages import API

VERSIONS = range(3, 14)
PRODUCE = API[0]


class Decoded(KnownProduces):
    """Knows nothing, ever."""

    def handle_known(self, *_: Any) -> bool:
        return False


class Counted(KnownProduces):
    """Counts what it takes."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def handle_known(self, *arguments: Any) -> bool:
        took = super().handle_known(*arguments)
        self.taken += took
        return took


class Side:
    """A broker with topics `a` (two partitions) and `topic-b`, and a connection to it."""

    def __init__(self, known: KnownProduces) -> None:
        self.server = InProcess(entropy=Numbers())
        self.admin = self.server.connect()
        self.create("a", 2)
        self.create("topic-b", 1)
        self.known = known
        self.server.broker.decoders[ListenerType.BROKER].fast_paths[0] = known
        self.line: Line = self.server.connect()

    def create(self, name: str, partitions: int) -> None:
        request = API[19].request
        topic = request.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        self.admin.call(19, 7, topics=[topic], timeout_ms=1000)

    def delete(self, name: str) -> None:
        self.admin.call(20, 5, topic_names=[name], timeout_ms=1000)

    def topic_id(self, name: str) -> bytes:
        topic = self.server.broker.image.topics.get(name)
        return bytes(16) if topic is None else topic.id

    def send(self, frame: bytes) -> None:
        self.line._arrived += frame
        self.line.deliver()

    def outcome(self) -> tuple[bytes, bool, dict[str, int]]:
        """All that a client and the disk can tell: replies so far, whether it was hung up on, where logs end."""
        self.server.run()
        ends = {str(tp): partition.log_end_offset for tp, partition in self.server.broker.store.partitions.items()}
        return bytes(self.line._received), self.line.closed, ends


def produce_frame(
    version: int, client: str | None, topic: str, topic_id: bytes, index: int, acks: int, batch: bytes | None
) -> bytearray:
    message = PRODUCE.request
    data = message.PartitionProduceData(index=index, records=batch)
    if version >= 13:
        named = message.TopicProduceData(topic_id=topic_id, partition_data=[data])
    else:
        named = message.TopicProduceData(name=topic, partition_data=[data])
    body = message.new(acks=acks, timeout_ms=1000, topic_data=[named])
    return bytearray(b"".join(encode_request(PRODUCE, version, 7, client, body)))  # type: ignore[arg-type]


BATCHES = [
    bytes(build_batch([(b"k", b"v", (), NOW)])),
    bytes(build_batch([(None, b"v" * 30, (), NOW)])),
    bytes(build_batch([(None, b"w" * 200, (), NOW), (None, b"x", (), NOW)])),
    bytes(build_batch([(None, b"y" * 17_000, (), NOW)])),
    b"",
    None,
]

produces = st.tuples(
    st.sampled_from(VERSIONS),
    st.sampled_from(["c", "c", "c", "other", "", None]),
    st.sampled_from(["a", "a", "a", "topic-b", "missing", "__consumer_offsets", "é" * 100]),
    st.integers(0, 2),
    st.sampled_from([-1, -1, 1, 0, 5]),
    st.sampled_from(range(len(BATCHES))),
)
damage = st.one_of(
    st.none(),
    st.none(),
    st.tuples(st.just("flip"), st.integers(0, 400), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.integers(0, 400), st.just(0)),
    st.tuples(st.just("longer"), st.integers(1, 4), st.integers(0, 1)),
    st.tuples(st.just("tag"), st.integers(1, 3), st.just(0)),
)
steps = st.one_of(
    st.tuples(st.just("produce"), produces, st.integers(1, 4), damage),
    st.tuples(st.just("delete"), st.sampled_from(["a", "topic-b"]), st.just(0), st.none()),
    st.tuples(st.just("create"), st.sampled_from(["a", "topic-b"]), st.just(0), st.none()),
)


def damaged(frame: bytearray, how: tuple[str, int, int] | None) -> bytes:
    """The frame with some of it changed; its size field stays true."""
    if how is not None:
        kind, at, value = how
        if kind == "flip":
            frame[4 + at % (len(frame) - 4)] ^= value
        elif kind == "cut":
            del frame[max(5, len(frame) - 1 - at) :]
        elif kind == "longer":
            frame += bytes([value]) * at
        else:
            frame[len(frame) - at : len(frame) - at + 1] = b"\1\x09\2\0\0"  # an unknown tagged field of two bytes
    struct.pack_into(">i", frame, 0, len(frame) - 4)
    return bytes(frame)


@settings(max_examples=100, deadline=None)
@given(st.lists(steps, min_size=1, max_size=12))
def test_replies_and_effects_do_not_depend_on_what_is_known(plan: list[Any]) -> None:
    sides = [Side(KnownProduces()), Side(Decoded())]
    for action, what, times, how in plan:
        for side in sides:
            if action == "produce":
                version, client, topic, index, acks, number = what
                sound = produce_frame(version, client, topic, side.topic_id(topic), index, acks, BATCHES[number])
                for _ in range(times):
                    side.send(bytes(sound))
                side.send(damaged(sound, how))
                side.send(bytes(sound))
            elif action == "delete":
                side.delete(what)
            else:
                side.create(what, 2)
        known, decoded = (side.outcome() for side in sides)
        assert known == decoded
        for side in sides:
            if side.line.closed:
                side.line = side.server.connect()


@pytest.mark.parametrize("version", range(9, 14))
def test_what_is_repeated_is_taken(version: int) -> None:
    side = Side(Counted())
    for index in (0, 1, 0, 1, 0):
        for topic in ("a", "topic-b"):
            side.send(bytes(produce_frame(version, "c", topic, side.topic_id(topic), index, -1, BATCHES[1])))
    assert side.known.taken == (10 - 3 - 2)  # type: ignore[attr-defined]  # three were new, two have no partition
    assert side.outcome()[2]["a-0"] == 3


def test_another_client_id_makes_everything_new() -> None:
    side = Side(Counted())
    for client in ("c", "c", "d", "c", "c"):
        side.send(bytes(produce_frame(9, client, "a", b"", 0, -1, BATCHES[0])))
    connection = list(side.server.broker.acceptor.connections)[-1]
    assert (connection.client_id, side.known.taken) == ("c", 2)  # type: ignore[attr-defined]


def test_a_topic_made_anew_is_not_taken_for_the_old_one() -> None:
    side = Side(Counted())
    frame = bytes(produce_frame(9, "c", "a", b"", 0, -1, BATCHES[0]))
    for _ in range(3):
        side.send(frame)
    side.delete("a")
    side.create("a", 1)
    side.send(frame)
    assert side.outcome()[2]["a-0"] == 1
    assert side.known.taken == 2  # type: ignore[attr-defined]


def test_an_authorizer_is_asked_every_time() -> None:
    side = Side(Counted())
    asked: list[set[str]] = []

    class Denies:
        def denied(self, principal: str, host: str, operation: Any, resource: Any, names: Any) -> frozenset[str]:
            asked.append(set(names))
            return frozenset({"a"})

    frame = bytes(produce_frame(9, "c", "a", b"", 0, -1, BATCHES[0]))
    side.send(frame)
    side.send(frame)
    side.server.broker.access.authorizer = Denies()
    side.send(frame)
    assert asked == [{"a"}]
    assert side.outcome()[2]["a-0"] == 2


def test_connections_of_one_client_id_share_what_is_known() -> None:
    side = Side(Counted())
    frame = bytes(produce_frame(9, "c", "a", b"", 0, -1, BATCHES[0]))
    for _ in range(4):
        side.line = side.server.connect()
        for _ in range(3):
            side.send(frame)
    # The first request of each is looked at, because it says who the client is.
    assert side.known.taken == 4 * 2  # type: ignore[attr-defined]
    assert {c.client_id for c in list(side.server.broker.acceptor.connections)[-4:]} == {"c"}


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_fast_path, "MOST_PREFIXES", 20)
    side = Side(Counted())
    for timeout in range(50):
        frame = produce_frame(9, "c", "a", b"", 0, -1, BATCHES[0])
        frame[19:23] = struct.pack(">i", timeout)
        side.send(bytes(frame))
    assert len(side.known._known[9]) == 10
    assert side.outcome()[2]["a-0"] == 50


@given(st.binary(max_size=40), st.integers(0, 45))
def test_a_batch_is_found_only_where_it_fills_the_message(data: bytes, position: int) -> None:
    found = batch_behind(memoryview(data), position)
    if found is not None:
        size = len(found) + 1
        length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
        assert found.nbytes > 0
        ordinary = data[:position] + length + found.tobytes() + bytes(3)
        longer = data[:position] + bytes([size & 127 | 128, size >> 7]) + found.tobytes() + bytes(3)
        assert data in (ordinary, longer)


def test_a_long_client_id_is_not_learnt() -> None:
    """What is learnt stays: thousands of them, of 14 KB each, took hundreds of megabytes."""
    side = Side(KnownProduces())
    for client in ("c" * 300, "c" * 600):
        side.send(bytes(produce_frame(9, client, "a", bytes(16), 0, -1, BATCHES[0])))
    side.server.run()
    assert [len(prefix) < 512 for known in side.known._known.values() for prefix in known] == [True]
