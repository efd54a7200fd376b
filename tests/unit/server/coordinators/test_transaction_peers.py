"""What one turn of the loop asks of another node goes in one request, and each gets its own part of the reply."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.worlds.broker_world import Agenda

from duramen.client.loop.node_client import NodeRequest
from duramen.client.loop.peer_channels import Purpose
from duramen.errors import ErrorCode
from duramen.machines.contract import ProducerEpoch
from duramen.machines.metadata.image import BrokerImage, Endpoint, MetadataImage
from duramen.model import TopicPartition
from duramen.server.coordinators.transaction_markers import MarkerErrand
from duramen.server.coordinators.transaction_peers import MOST_ON_THE_WAY, MOST_PARTITIONS, TransactionPeers
from duramen.wire.messages import API

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ENDPOINTS = (Endpoint("PLAINTEXT", "clients", 1, 0), Endpoint("REPLICATION", "there", 9, 0))


class Peers:
    """The peers of a node, and the channels that they would have."""

    def __init__(self) -> None:
        self.clock = Agenda()
        self.image = MetadataImage()
        self.image.brokers[2] = BrokerImage(2, 1, b"", ENDPOINTS)
        self.sent: list[tuple[Purpose, NodeRequest, Callable[[Any], None]]] = []
        self.addresses: list[tuple[Any, ...]] = []
        world: Any = SimpleNamespace(clock=self.clock, network=None, entropy=None)
        self.peers = TransactionPeers(world, lambda: self.image, 1, "REPLICATION")
        self.peers._channels = self  # type: ignore[assignment]
        self.answers: dict[str, Any] = {}

    def to(self, purpose: Purpose, node_id: int, host: str, port: int) -> Any:
        self.addresses.append((purpose, node_id, host, port))
        return SimpleNamespace(send=lambda request, on_reply, timeout: self.sent.append((purpose, request, on_reply)))

    def run(self) -> None:
        while self.clock.ready:
            self.clock.ready.pop(0)()

    def verify(self, transactional_id: str, *partitions: TopicPartition, verify_only: bool = False) -> None:
        def done(codes: dict[TopicPartition, ErrorCode]) -> None:
            self.answers[transactional_id] = codes

        self.peers.verify(2, transactional_id, ProducerEpoch(5, 0), partitions, verify_only, done)

    def mark(self, producer_id: int, *partitions: TopicPartition) -> None:
        def done(codes: dict[TopicPartition, ErrorCode]) -> None:
            self.answers[str(producer_id)] = codes

        self.peers.write_markers(2, MarkerErrand(ProducerEpoch(producer_id, 0), True, 4, 2, partitions), done)


def verified(codes: dict[str, dict[int, ErrorCode]], error: ErrorCode = ErrorCode.NONE) -> Any:
    response = API[24].response
    return response.new(
        error_code=int(error),
        results_by_transaction=[
            response.AddPartitionsToTxnResult(
                transactional_id=transactional_id,
                topic_results=[
                    response.AddPartitionsToTxnTopicResult(
                        name="t",
                        results_by_partition=[
                            response.AddPartitionsToTxnPartitionResult(
                                partition_index=index, partition_error_code=int(code)
                            )
                            for index, code in found.items()
                        ],
                    )
                ],
            )
            for transactional_id, found in codes.items()
        ],
    )


@pytest.fixture
def node() -> Peers:
    return Peers()


def test_one_turns_questions_are_one_request(node: Peers) -> None:
    node.verify("a", T0, T1)
    node.verify("b", T0, verify_only=True)
    assert node.sent == []
    node.run()
    ((purpose, request, on_reply),) = node.sent
    assert purpose is Purpose.TRANSACTIONS
    assert (request.api.key, request.version) == (24, 5)
    asked = {each.transactional_id: each for each in request.request.transactions}
    assert [(each.name, each.partitions) for each in asked["a"].topics] == [("t", [0, 1])]
    assert [each.verify_only for each in asked.values()] == [False, True]
    assert node.addresses == [(Purpose.TRANSACTIONS, 2, "there", 9)]
    abortable = ErrorCode.TRANSACTION_ABORTABLE
    on_reply(verified({"b": {0: abortable}, "a": {0: ErrorCode.NONE, 1: ErrorCode.NONE}}))
    assert node.answers == {"a": {}, "b": {T0: abortable}}


@pytest.mark.parametrize(
    "reply", [None, verified({}), verified({"a": {0: ErrorCode.NONE}}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]
)
def test_without_an_answer_nothing_is_verified(node: Peers, reply: Any) -> None:
    node.verify("a", T0)
    node.run()
    node.sent[0][2](reply)
    assert node.answers == {"a": {T0: ErrorCode.NETWORK_EXCEPTION}}


def test_a_code_that_nobody_knows_verifies_nothing(node: Peers) -> None:
    node.verify("a", T0)
    node.run()
    reply = verified({"a": {0: ErrorCode.NONE}})
    reply.results_by_transaction[0].topic_results[0].results_by_partition[0].partition_error_code = 9_999
    node.sent[0][2](reply)
    assert node.answers == {"a": {T0: ErrorCode.UNKNOWN_SERVER_ERROR}}


def test_a_broker_that_is_not_known_answers_nothing(node: Peers) -> None:
    node.image.brokers.clear()
    node.verify("a", T0)
    node.run()
    assert node.sent == []
    assert node.answers == {"a": {T0: ErrorCode.NETWORK_EXCEPTION}}


def test_one_id_is_in_a_request_once(node: Peers) -> None:
    """The reply names nothing else."""
    node.verify("a", T0)
    node.verify("a", T1)
    node.run()
    assert [len(request.request.transactions) for _, request, _ in node.sent] == [1, 1]


def test_so_many_requests_are_on_the_way_and_the_next_brings_what_waits(node: Peers) -> None:
    for number in range(MOST_ON_THE_WAY):
        node.verify(str(number), T0)
        node.run()
    for number in range(10, 15):
        node.verify(str(number), T0)
        node.run()
    assert len(node.sent) == MOST_ON_THE_WAY
    node.sent[0][2](verified({"0": {0: ErrorCode.NONE}}))
    assert len(node.sent) == MOST_ON_THE_WAY + 1
    assert len(node.sent[-1][1].request.transactions) == 5


def test_a_request_has_so_many_partitions(node: Peers) -> None:
    many = tuple(TopicPartition("t", index) for index in range(MOST_PARTITIONS - 1))
    node.verify("a", *many)
    node.verify("b", T0)
    node.verify("c", T0)
    node.run()
    assert [len(request.request.transactions) for _, request, _ in node.sent] == [2, 1]


def test_markers_have_a_channel_of_their_own(node: Peers) -> None:
    node.mark(5, T0)
    node.mark(6, T0, T1)
    node.verify("a", T0)
    node.run()
    assert [purpose for purpose, _, _ in node.sent] == [Purpose.COORDINATION, Purpose.TRANSACTIONS]
    request = node.sent[0][1]
    assert (request.api.key, request.version) == (27, 2)
    marker = request.request.markers[1]
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (6, 0, True)
    assert (marker.coordinator_epoch, marker.transaction_version) == (4, 2)
    assert [(each.name, each.partition_indexes) for each in marker.topics] == [("t", [0, 1])]
    response = API[27].response
    behind, fine = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE

    def result(producer_id: int, codes: dict[int, ErrorCode]) -> Any:
        partitions = [
            response.WritableTxnMarkerPartitionResult(partition_index=index, error_code=int(code))
            for index, code in codes.items()
        ]
        topic = response.WritableTxnMarkerTopicResult(name="t", partitions=partitions)
        return response.WritableTxnMarkerResult(producer_id=producer_id, topics=[topic])

    node.sent[0][2](response.new(markers=[result(6, {0: fine, 1: behind}), result(5, {0: fine})]))
    assert node.answers == {"5": {T0: fine}, "6": {T0: fine, T1: behind}}


def test_markers_without_a_reply_may_be_written_or_not(node: Peers) -> None:
    node.mark(5, T0)
    node.run()
    node.sent[0][2](None)
    assert node.answers == {"5": {}}
