"""Carries what raft says to other nodes: a channel to each, and to bootstrap servers while nobody is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from duramen.client.loop.peer_channels import PeerChannels, Purpose
from duramen.errors import ErrorCode
from duramen.machines.raft.events import PeerDied
from duramen.machines.raft.messages import FetchRequest
from duramen.machines.raft.voters import VoterEndpoint
from duramen.partition.metadata.quorum import Quorum
from duramen.ports import World
from duramen.server.quorum.messages import response_from_wire, to_wire

FIRST_BOOTSTRAP_ID: Final = -2
"""Bootstrap servers have no node id yet; as in Kafka's clients they count down from here."""


class QuorumPeers:
    """The other nodes of the quorum, from this one. bootstrap: (host, port) of nodes to ask for the leader."""

    def __init__(
        self, quorum: Quorum, world: World, cluster_id: str, node_id: int, bootstrap: Sequence[tuple[str, int]]
    ) -> None:
        self.on_died: Callable[[int, tuple[str, int]], None] = lambda node_id, address: None
        """Called with a node whose process is gone, and where it was."""
        self.on_another_cluster: Callable[[str], None] = lambda address: None
        """Called once with the address of a node that is of another cluster."""
        self._quorum = quorum
        self._channels = PeerChannels(world.network, world.clock, world.entropy, f"duramen-{node_id}", self._died)
        self._cluster_id = cluster_id
        self._bootstrap = bootstrap
        self._next_bootstrap = 0
        self._fetching: dict[int, FetchRequest] = {}
        """What each node is asked for, and has not answered yet."""
        self._of_another_cluster: set[str] = set()

    def send(
        self,
        to: int,
        endpoint: VoterEndpoint | None,
        request: Any,
        seconds: float,
        on_reply: Callable[[Any | None], None],
    ) -> None:
        """See QuorumNetwork; a node without an address is one of the bootstrap servers."""
        if endpoint is not None:
            node_id, host, port = to, endpoint.host, endpoint.port
        elif self._bootstrap:
            index = self._next_bootstrap % len(self._bootstrap)
            self._next_bootstrap += 1
            node_id, (host, port) = FIRST_BOOTSTRAP_ID - index, self._bootstrap[index]
        else:
            on_reply(None)
            return
        if isinstance(request, FetchRequest):
            seconds += request.max_wait
            if node_id in self._fetching:
                # By a new connection: behind an answer comes what was sent when it had been read (LeadershipProof).
                self._channels.drop(Purpose.QUORUM, node_id)
            self._fetching[node_id] = request
            on_reply = partial(self._fetched, node_id, request, on_reply)
        channel = self._channels.to(Purpose.QUORUM, node_id, host, port)
        channel.send(
            to_wire(request, self._cluster_id), partial(self._replied, f"{host}:{port}", request, on_reply), seconds
        )

    def _fetched(
        self, node_id: int, request: FetchRequest, on_reply: Callable[[Any | None], None], response: Any | None
    ) -> None:
        if self._fetching.get(node_id) is request:
            del self._fetching[node_id]
        on_reply(response)

    def _replied(self, address: str, request: Any, on_reply: Callable[[Any | None], None], response: Any) -> None:
        refused = response is not None and response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        if refused and address not in self._of_another_cluster:
            self._of_another_cluster.add(address)
            self.on_another_cluster(address)
        on_reply(None if response is None else response_from_wire(request, response))

    def _died(self, purpose: Purpose, node_id: int) -> None:
        """The process at the other end of a channel is gone."""
        if purpose is Purpose.QUORUM and node_id >= 0:
            self._quorum.step(PeerDied(node_id))
            address = self._channels.ended_at(purpose, node_id)
            if address is not None:
                self.on_died(node_id, address)

    def close(self) -> None:
        """End every channel."""
        self._channels.close()
