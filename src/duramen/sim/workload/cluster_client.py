"""A client of a cluster: it knows several addresses, learns from metadata who leads what, and asks the leader.

As Kafka's clients it believes the newest leader epoch that it has heard of, whoever tells of an older one, and looks
again after every refusal and every lost connection. What a script sees is the answer, or None where nobody answered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

from duramen.client.loop.node_client import NodeClient, NodeRequest, call
from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.ports import Clock, Network
from duramen.sim.check.invariants import InvariantViolated

Address = tuple[str, int]
OnReply = Callable[[Any], None]

WITHOUT_LEADER_S: Final = 0.2
"""How long a client waits that was told of no leader."""
OF_GROUPS: Final = {
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "LeaveGroup",
    "OffsetCommit",
    "OffsetFetch",
    "TxnOffsetCommit",
    "ConsumerGroupHeartbeat",
    "ConsumerGroupDescribe",
}
"""What the coordinator is asked; a client of this kind has one group at most."""
OF_TRANSACTIONS: Final = {"InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"}
"""What the coordinator of its transactional id is asked; InitProducerId only where it names one."""
GROUP, TRANSACTION = 0, 1
"""Of what a coordinator is looked for."""
STALE: Final = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
"""What says that somebody else may lead."""


class Leader(NamedTuple):
    """Of a partition, as metadata told; node_id -1: nobody."""

    node_id: int
    epoch: int


class Waiting(NamedTuple):
    """A request for whose partition no leader is known."""

    tp: TopicPartition
    wanted: NodeRequest
    on_reply: OnReply


class ClusterClient:
    """bootstrap: addresses to begin with. nodes: where each node is in truth. tells_epoch: whether its fetches do."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        random: Random,
        bootstrap: list[Address],
        nodes: dict[int, Address],
        name: str,
    ) -> None:
        self.name = name
        self.lost = 0
        self.tells_epoch = random.random() < 0.5
        self._network = network
        self._clock = clock
        self._random = random
        self._bootstrap = bootstrap
        self._nodes = nodes
        self._patience_s = random.uniform(2.0, 6.0)
        self._known: dict[int, Address] = {}
        self._connections: dict[Address, NodeClient] = {}
        self._leaders: dict[TopicPartition, Leader] = {}
        self._waiting: list[Waiting] = []
        self._asked = ""
        self._coordinators: dict[int, Address] = {}
        """Of its group, and of its transactional id."""

    def send(self, wanted: NodeRequest, on_reply: OnReply) -> None:
        """See Sender: what is about a partition goes to its leader, a group's to its coordinator, else to any node."""
        tp = partition_of(wanted)
        kind = coordinated_by(wanted)
        if kind is not None:
            self._send(self._coordinators.get(kind) or self._any(), wanted, on_reply)
            return
        if wanted.api.name == "FindCoordinator":
            self._send(self._any(), wanted, partial(self._found, wanted.request.key_type, on_reply))
            return
        if tp is None:
            self._send(self._any(), wanted, on_reply)
            return
        leader = self._leaders.get(tp)
        if self._waiting or leader is None or leader.node_id < 0:
            self._waiting.append(Waiting(tp, wanted, on_reply))
            self._look()
        else:
            self._ask_leader(leader, tp, wanted, on_reply)

    def close(self) -> None:
        """End every connection."""
        for connection in self._connections.values():
            connection.drop()

    def _found(self, kind: int, on_reply: OnReply, answer: Any) -> None:
        found = None if answer is None else answer.coordinators[0]
        self._coordinators.pop(kind, None)
        if found is not None and not found.error_code:
            self._coordinators[kind] = found.host, found.port
        on_reply(answer)

    def _any(self) -> Address:
        return self._random.choice(self._bootstrap + list(self._known.values()))

    def _send(self, address: Address, wanted: NodeRequest, on_reply: OnReply) -> None:
        connection = self._connections.get(address)
        if connection is None:
            connection = NodeClient(self._network, self._clock, *address, self.name)
            self._connections[address] = connection
        is_over = False

        def replied(answer: Any) -> None:
            nonlocal is_over
            is_over = True
            on_reply(answer)

        def too_late() -> None:
            if not is_over:
                self.lost += 1
                connection.drop()

        self._clock.call_later(self._patience_s, too_late)
        connection.send(wanted, replied)

    def _ask_leader(self, leader: Leader, tp: TopicPartition, wanted: NodeRequest, on_reply: OnReply) -> None:
        if wanted.api.name == "Fetch" and self.tells_epoch:
            wanted.request.topics[0].partitions[0].current_leader_epoch = leader.epoch

        def replied(answer: Any) -> None:
            if answer is None or error_of(wanted, answer) in STALE:
                self._leaders[tp] = Leader(-1, leader.epoch)
            on_reply(answer)

        self._send(self._known[leader.node_id], wanted, replied)

    # ---- metadata --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Ask any node for the leaders of what waits first."""
        if self._asked or not self._waiting:
            return
        topic = self._asked = self._waiting[0].tp.topic
        wanted = call("Metadata", 12, allow_auto_topic_creation=False)
        wanted.request.topics = [wanted.api.request.MetadataRequestTopic(name=topic)]
        self._send(self._any(), wanted, partial(self._told, topic))

    def _told(self, topic: str, answer: Any) -> None:
        self._asked = ""
        if answer is not None:
            self._learn(answer)
        waiting, self._waiting = self._waiting, []
        without = []
        for each in waiting:
            leader = self._leaders.get(each.tp)
            if each.tp.topic != topic or leader is None or leader.node_id < 0:
                without.append(each)
            else:
                self._ask_leader(leader, *each)
        if without:
            self._clock.call_later(WITHOUT_LEADER_S * self._random.random(), partial(self._nobody, without))

    def _nobody(self, waiting: list[Waiting]) -> None:
        for each in waiting:
            each.on_reply(None)

    def _learn(self, answer: Any) -> None:
        for broker in answer.brokers:
            address = broker.host, broker.port
            if self._nodes.get(broker.node_id) != address:
                raise InvariantViolated(
                    "MetadataTrue", f"{self.name}: node {broker.node_id} is told to be at {address}"
                )
            self._known[broker.node_id] = address
        for topic in answer.topics:
            for told in topic.partitions:
                tp = TopicPartition(topic.name, told.partition_index)
                before = self._leaders.get(tp)
                if before is not None and told.leader_epoch < before.epoch:
                    continue  # from a node that has not heard of it yet
                is_known = told.leader_id in self._known
                self._leaders[tp] = Leader(told.leader_id if is_known else -1, told.leader_epoch)


def coordinated_by(wanted: NodeRequest) -> int | None:
    """Which kind of coordinator is asked; None: none."""
    name = wanted.api.name
    if name in OF_GROUPS:
        return GROUP
    if name in OF_TRANSACTIONS and (name != "InitProducerId" or wanted.request.transactional_id is not None):
        return TRANSACTION
    return None


def partition_of(wanted: NodeRequest) -> TopicPartition | None:
    """Which one the request is about, of which there is one at most."""
    request = wanted.request
    match wanted.api.name:
        case "Produce":
            topic = request.topic_data[0]
            return TopicPartition(topic.name, topic.partition_data[0].index)
        case "Fetch":
            return TopicPartition(request.topics[0].topic, request.topics[0].partitions[0].partition)
        case "ConditionalAppend" | "OpenWriter":
            return TopicPartition(request.topic_name, request.partition)
        case "ListOffsets" | "DeleteRecords":
            return TopicPartition(request.topics[0].name, request.topics[0].partitions[0].partition_index)
    return None


def error_of(wanted: NodeRequest, answer: Any) -> ErrorCode:
    """What the partition was answered."""
    match wanted.api.name:
        case "Produce":
            found = answer.responses[0].partition_responses[0]
        case "Fetch":
            found = answer.responses[0].partitions[0]
        case "ConditionalAppend" | "OpenWriter":
            found = answer
        case _:
            found = answer.topics[0].partitions[0]
    return ErrorCode(found.error_code)
