"""The client against nodes that answer oddly: too much, too little, out of order, in old versions, or not at all."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from duramen.client import Cluster, CoordinatorKey
from duramen.client.blocking.connection import RECEIVE_BYTES, BlockingConnection
from duramen.client.blocking.segment_plans import release_leases
from duramen.client.protocol.addresses import parse_bootstrap
from duramen.client.protocol.fetch import whole_batches
from duramen.client.protocol.segments import HeldLease
from duramen.client.protocol.versions import ApiVersions
from duramen.errors import ConfigError, CorruptLogError, DeadlineError, ErrorCode, KafkaError, NetworkError
from duramen.model import TopicPartition
from duramen.wire.batch import build_batch, stamp
from duramen.wire.errors import DecodeError
from duramen.wire.frame import encode_response, parse_request_header
from duramen.wire.messages import API

TP = TopicPartition("t", 0)
A_MESSAGE = struct.pack(">qiIbbqii", 4, 22, 0, 1, 0, 0, -1, -1)
"""Of format 1 (magic 1), without key and value: shorter than the header of a record batch."""
Answer = Callable[[int, int, Any], Any]
"""(key, version, request) -> a response, bytes to send as they are, or None to hang up"""


class OddNode:
    """A listening socket whose answers a test decides."""

    def __init__(self, answer: Answer, versions: dict[int, tuple[int, int]]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.answer = answer
        self.versions = versions
        self.asked: list[tuple[int, int]] = []
        self.rest_s = 0.0
        """Between the quarters of what it sends."""
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while True:
                try:
                    size = connection.recv(4, socket.MSG_WAITALL)
                    frame = connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
                    if len(size) < 4:
                        return
                    key, version, number = struct.unpack_from(">hhi", frame)
                    self.asked.append((key, version))
                    reply = self._reply(key, version, frame)
                    if reply is None:
                        return
                    if not isinstance(reply, bytes):
                        version, reply = reply
                        reply = b"".join(bytes(part) for part in encode_response(API[key], version, number, reply))  # type: ignore[arg-type]
                    for start in range(0, len(reply), quarter := -(-len(reply) // 4)):
                        time.sleep(self.rest_s)
                        connection.sendall(reply[start : start + quarter])
                except OSError:
                    return

    def _reply(self, key: int, version: int, frame: bytes) -> Any:
        if key == 18:
            low, high = self.versions[18]
            known = low <= version <= high
            message = API[18].response
            ranges = [
                message.ApiVersion(api_key=k, min_version=a, max_version=b) for k, (a, b) in self.versions.items()
            ]
            code = 0 if known else int(ErrorCode.UNSUPPORTED_VERSION)
            return (version if known else 0), message.new(error_code=code, api_keys=ranges)
        view = memoryview(frame)
        header = parse_request_header(view)
        reply = self.answer(key, version, API[key].request.decode(view, version, header.body_position))
        return reply if reply is None or isinstance(reply, bytes) else (version, reply)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self._open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join(5)


@contextmanager
def odd_node(answer: Answer, **versions: tuple[int, int]) -> Iterator[OddNode]:
    node = OddNode(
        answer, {18: (0, 4), 3: (0, 13), 1: (4, 18), 0: (3, 13), **{int(k[1:]): v for k, v in versions.items()}}
    )
    try:
        yield node
    finally:
        node.close()


def metadata(node: OddNode, version: int, leader: int = 1) -> Any:
    message = API[3].response
    partition = message.MetadataResponsePartition(error_code=0, partition_index=0, leader_id=leader)
    topic_id = b"i" * 16 if version >= 10 else bytes(16)
    return message.new(
        brokers=[message.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=node.port)],
        controller_id=1,
        topics=[message.MetadataResponseTopic(error_code=0, name="t", topic_id=topic_id, partitions=[partition])],
    )


def a_batch(offset: int, *values: bytes) -> bytes:
    batch = build_batch([(None, value, (), 1000) for value in values])
    stamp(batch, offset, 0)
    return bytes(batch)


def fetched(data: bytes, version: int, code: int = 0) -> Any:
    message = API[1].response
    partition = message.PartitionData(partition_index=0, error_code=code, high_watermark=9, records=data)
    topic_id = b"i" * 16 if version >= 13 else bytes(16)
    return message.new(
        responses=[
            message.FetchableTopicResponse(topic="t" if version < 13 else "", topic_id=topic_id, partitions=[partition])
        ]
    )


@pytest.mark.parametrize("highest", [(4, 12), (7, 13), (9, 15), (13, 18)])
def test_old_and_new_versions_of_everything(highest: tuple[int, int]) -> None:
    def answer(key: int, version: int, request: Any) -> Any:
        return metadata(node, version) if key == 3 else fetched(a_batch(5, b"v"), version)

    with (
        odd_node(answer, _3=(1, highest[0]), _1=(4, highest[1]), _18=(0, 2)) as node,
        Cluster(node.bootstrap) as cluster,
    ):
        found = cluster.fetch(TP, 5)
        assert (found.next_offset, found.high_watermark) == (6, 9)
        # Fetch goes by name where no topic ids are told.
        assert node.asked == [(18, 4), (18, 2), (3, highest[0]), (1, highest[1] if highest[0] >= 10 else 12)]


def test_a_frame_that_is_too_long_takes_no_memory() -> None:
    with (
        odd_node(lambda *_: struct.pack(">i", 1 << 30) + b"x") as node,
        Cluster(node.bootstrap) as cluster,
        pytest.raises(DecodeError, match="1073741824"),
    ):
        cluster.metadata()


@pytest.mark.parametrize(
    "reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\0\x02\x02\x0a"], ids=["http", "tls"]
)
def test_who_speaks_otherwise_is_called_no_node(reply: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said "a frame of 1213486160 bytes; 268435456 are allowed", and not of whom."""
    monkeypatch.setattr(OddNode, "_reply", lambda *_: reply)
    said = "does not speak Kafka's protocol in plain text: is it the port of a node"
    with (
        odd_node(lambda *_: None) as node,
        Cluster(node.bootstrap) as cluster,
        pytest.raises(DecodeError, match=f"^{re.escape(node.bootstrap)} {said}"),
    ):
        cluster.metadata()


@pytest.mark.parametrize(
    "reply", [struct.pack(">ii", 4, 999), struct.pack(">iiq", 12, 3, -1), struct.pack(">i", 0), struct.pack(">i", -5)]
)
def test_nonsense_is_an_error_and_ends_the_connection(reply: bytes) -> None:
    with odd_node(lambda *_: reply) as node:
        connection = BlockingConnection("127.0.0.1", node.port, "c", time.monotonic() + 5, 1 << 20)
        with pytest.raises((DecodeError, NetworkError)):
            connection.call(3, API[3].request.new(), time.monotonic() + 5)
        assert connection.closed


def test_a_partial_batch_at_the_end_is_left_out() -> None:
    data = a_batch(0, b"a", b"b") + a_batch(2, b"c")

    def answer(key: int, version: int, request: Any) -> Any:
        return metadata(node, version) if key == 3 else fetched((data + a_batch(3, b"d" * 500))[:-7], version)

    with odd_node(answer) as node, Cluster(node.bootstrap) as cluster:
        found = cluster.fetch(TP, 1)
        assert bytes(found.data) == data
        assert found.next_offset == 3


def test_bytes_that_are_no_batches_are_damage() -> None:
    good = a_batch(3, b"x")
    assert whole_batches(memoryview(good), "t") == (len(good), 4)
    with pytest.raises(CorruptLogError):
        whole_batches(memoryview(good + a_batch(1, b"back")), "t")
    with pytest.raises(CorruptLogError):
        whole_batches(memoryview(good + bytes(100)), "t")
    with pytest.raises(CorruptLogError, match="magic 2"):
        whole_batches(memoryview(good + A_MESSAGE), "t")
    assert whole_batches(memoryview(b""), "t") == (0, -1)
    assert whole_batches(memoryview(good[:40]), "t") == (0, -1)


def test_a_node_that_listens_elsewhere_is_found_there() -> None:
    request = API[3].request.new(topics=[])
    with odd_node(lambda key, version, _: metadata(moved, version)) as moved:
        with odd_node(lambda key, version, _: metadata(first, version)) as first:
            cluster = Cluster([first.bootstrap, moved.bootstrap], timeout_s=10)
            assert cluster.call(1, 3, request).brokers[0].port == first.port
        with cluster:
            assert cluster.call(1, 3, request).brokers[0].port == moved.port


def test_a_leader_that_moved_is_asked_anew() -> None:
    refusals = iter([int(ErrorCode.NOT_LEADER_OR_FOLLOWER), int(ErrorCode.FENCED_LEADER_EPOCH), 0])

    def answer(key: int, version: int, request: Any) -> Any:
        return metadata(node, version) if key == 3 else fetched(a_batch(0, b"v"), version, next(refusals))

    with odd_node(answer) as node, Cluster(node.bootstrap) as cluster:
        assert cluster.fetch(TP, 0).next_offset == 1
        assert [key for key, _ in node.asked] == [18, 3, 1, 3, 1, 3, 1]


def test_a_node_that_asks_for_a_pause_gets_it() -> None:
    def answer(key: int, version: int, request: Any) -> Any:
        reply = metadata(node, version)
        reply.throttle_time_ms = 150
        return reply

    with odd_node(answer) as node, Cluster(node.bootstrap) as cluster:
        cluster.metadata()
        asked = time.monotonic()
        cluster.metadata()
        assert time.monotonic() - asked >= 0.14


def test_a_partition_without_a_leader_ends_with_the_time_limit() -> None:
    with (
        odd_node(lambda key, version, _: metadata(node, version, leader=-1)) as node,
        Cluster(node.bootstrap, timeout_s=0.3) as cluster,
        pytest.raises(DeadlineError) as late,
    ):
        cluster.fetch(TP, 0)
    assert isinstance(late.value.last, KafkaError)
    assert late.value.last.code == ErrorCode.LEADER_NOT_AVAILABLE


def test_a_node_that_never_answers_is_given_up_in_time() -> None:
    hanging = threading.Event()

    def answer(key: int, version: int, request: Any) -> Any:
        hanging.wait(60)

    with odd_node(answer) as node:
        began = time.monotonic()
        with Cluster(node.bootstrap, timeout_s=0.5, request_timeout_s=0.2) as cluster, pytest.raises(DeadlineError):
            cluster.metadata()
        assert time.monotonic() - began < 30
        hanging.set()


def test_an_address_told_to_clients_that_is_closed_is_named_with_who_told_it() -> None:
    def answer(_key: int, version: int, _request: Any) -> Any:
        told = metadata(node, version)
        told.brokers[0].host, told.brokers[0].port = "::1", 1
        return told

    with (
        odd_node(answer) as node,
        Cluster(node.bootstrap, timeout_s=0.3) as cluster,
        pytest.raises(DeadlineError, match=r"cannot reach \[::1\]:1: .*; which is what .* see advertised.listeners"),
    ):
        cluster.fetch(TP, 0)


def test_a_slow_answer_is_waited_for_while_it_comes() -> None:
    """It was given up at the limit for a node that does not answer, and asked for again, as slow as before."""
    data = a_batch(0, bytes(4 * RECEIVE_BYTES))

    def answer(key: int, version: int, request: Any) -> Any:
        node.rest_s = 0.7 if key == 1 else 0.0
        return metadata(node, version) if key == 3 else fetched(data, version)

    with odd_node(answer) as node, Cluster(node.bootstrap, timeout_s=60, request_timeout_s=2) as cluster:
        assert bytes(cluster.fetch(TP, 0, max_wait_ms=0).data) == data
        assert [key for key, _ in node.asked] == [18, 3, 1]
        with pytest.raises(DeadlineError):
            cluster.fetch(TP, 0, max_wait_ms=0, timeout_s=1)


def test_an_api_that_is_not_served_is_refused_before_it_is_sent() -> None:
    with odd_node(lambda *_: None) as node, Cluster(node.bootstrap) as cluster:
        with pytest.raises(KafkaError, match="InitProducerId") as refused:
            cluster.init_producer_id()
        assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
    assert ApiVersions({1: (4, 11)}).version(1) == 11
    assert not ApiVersions({1: (90, 99)}).serves(1)
    assert not ApiVersions({1: (4, 11)}).is_duramen
    assert ApiVersions({10010: (0, 0)}).is_duramen


def test_bootstrap_addresses() -> None:
    assert parse_bootstrap("a:1, [::1]:2") == [("a", 1), ("::1", 2)]
    assert parse_bootstrap(["PLAINTEXT://h:9092"]) == [("h", 9092)]
    for wrong in ("", "host", "h:0", "h:70000", "SSL://h:1", ["a:1,b:2"]):
        with pytest.raises(ConfigError):
            parse_bootstrap(wrong)


def test_the_next_bootstrap_address_is_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()[1]
    with (
        odd_node(lambda key, version, _: metadata(node, version)) as node,
        Cluster(f"127.0.0.1:{nobody},{node.bootstrap}") as cluster,
    ):
        assert cluster.partitions("t") == [0]


def test_an_answer_that_says_nothing_of_what_was_asked_for_is_an_error_with_a_name() -> None:
    def answer(key: int, version: int, request: Any) -> Any:
        if key == 3:
            return metadata(node, version)
        return API[key].response.new()

    with odd_node(answer, k10=(0, 6), k10011=(0, 0)) as node, Cluster(node.bootstrap, timeout_s=2.0) as cluster:
        for ask in (
            lambda: cluster.call(CoordinatorKey("g"), 9, API[9].request.new()),
            lambda: release_leases(cluster, [HeldLease(1, 7, 1000)]),
            lambda: cluster.produce(TP, build_batch([(None, b"v", (), 1000)])),
        ):
            with pytest.raises(KafkaError, match="leaves it out"):
                ask()


def test_an_error_that_nobody_knows_instead_of_versions_is_an_error_with_a_name() -> None:
    def reply(key: int, version: int, frame: bytes) -> Any:
        return version, API[18].response.new(error_code=999)

    with odd_node(lambda *_: None) as node:
        node._reply = reply  # type: ignore[method-assign]
        with Cluster(node.bootstrap, timeout_s=2.0) as cluster, pytest.raises(KafkaError, match="which versions"):
            cluster.metadata()
