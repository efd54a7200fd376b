"""Who leads instead, in replies that refuse because this node does not (KIP-951): clients need not ask for metadata.

Named are the leader and its epoch, beside the partition's error, and once in the reply where that broker listens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from duramen.errors import ErrorCode

if TYPE_CHECKING:
    from duramen.server.api.request import Request

NOT_THE_LEADER: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
"""Errors of partitions whose leader is named. Where the leader is not known there is nothing to name."""


class LeaderHints:
    """Of one reply, whose class is `response`."""

    __slots__ = ("_named", "_request", "_response", "endpoints")

    def __init__(self, request: Request, response: Any) -> None:
        self._request = request
        self._response = response
        self._named: set[int] = set()
        self.endpoints: list[Any] = []
        """Where the leaders that were named listen."""

    def name(self, entry: Any, topic: str | None, index: int) -> None:
        """Name the leader in the partition's part of the reply, if it is known and where it can be reached.

        Not this node, which has just refused: it does not lead yet, or must not for the moment. Its newer epoch is.
        """
        services = self._request.services
        image = services.image
        known = None if topic is None else image.topic(topic)
        if known is None or not 0 <= index < len(known.partitions):
            return
        partition = known.partitions[index]
        broker = image.brokers.get(image.leader(partition))
        endpoint = None if broker is None else broker.endpoint(self._request.connection.listener)
        refuses = entry.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        if broker is None or endpoint is None or (refuses and broker.id == services.node.id):
            return
        kind = self._response
        entry.current_leader = kind.LeaderIdAndEpoch(leader_id=broker.id, leader_epoch=partition.leader_epoch)
        if broker.id not in self._named:
            self._named.add(broker.id)
            self.endpoints.append(
                kind.NodeEndpoint(node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
            )
