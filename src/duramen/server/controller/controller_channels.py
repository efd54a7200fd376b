"""The connections of one node to the active controller: one for heartbeats, one for everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duramen.client.loop.node_client import NodeRequest
from duramen.client.loop.peer_channels import PeerChannels, Purpose
from duramen.machines.raft.voters import VoterEndpoint
from duramen.ports import World


class ControllerChannels:
    """See the module."""

    def __init__(self, world: World, node_id: int) -> None:
        self._channels = PeerChannels(
            world.network, world.clock, world.entropy, f"duramen-{node_id}", lambda purpose, died: None
        )
        self._leader_id = -1

    def send(
        self,
        leader_id: int,
        endpoint: VoterEndpoint,
        request: NodeRequest,
        on_reply: Callable[[Any | None], None],
        seconds: float,
        *,
        is_heartbeat: bool = False,
    ) -> None:
        """Send it to the controller there; `on_reply(None)`: it is lost, and may have been decided all the same."""
        self.follow(leader_id)
        self._leader_id = leader_id
        purpose = Purpose.HEARTBEAT if is_heartbeat else Purpose.CONTROL
        self._channels.to(purpose, leader_id, endpoint.host, endpoint.port).send(request, on_reply, seconds)

    def follow(self, leader_id: int) -> None:
        """Another one leads, or nobody (-1) is known to: what is on the way to the one before is lost."""
        if self._leader_id not in (-1, leader_id):
            for purpose in (Purpose.CONTROL, Purpose.HEARTBEAT):
                self._channels.drop(purpose, self._leader_id)
            self._leader_id = -1

    def close(self) -> None:
        """Everything on the way is lost."""
        self._channels.close()
