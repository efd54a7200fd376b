"""The channels of one node to its peers: one for each purpose and node, so that no purpose waits behind another."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, unique
from functools import partial

from duramen.client.loop.peer_channel import DEFAULT_LIMITS, ChannelLimits, PeerChannel
from duramen.ports import Clock, Entropy, Network


@unique
class Purpose(Enum):
    """What a channel is for; the value is part of its client id."""

    QUORUM = "quorum"
    CONTROL = "control"
    """To the active controller: BrokerRegistration, AlterPartition, Envelope, AllocateProducerIds."""
    HEARTBEAT = "heartbeat"
    """To the active controller: heartbeats, which wait behind nothing."""
    COORDINATION = "coordination"
    """From a coordinator to the leaders of its targets: markers of transactions."""
    TRANSACTIONS = "transactions"
    """From a leader to the coordinators of the transactions that write there."""
    STABLE = "stable"
    """Fetches the stable topics of one leader: what it names is on stable storage."""
    PAGE_CACHE = "page-cache"
    """Fetches its page-cache topics: what it names is written."""
    CATCH_UP = "catch-up"
    """Fetches stable topics outside of the ISR."""
    PAGE_CACHE_CATCH_UP = "page-cache-catch-up"


class PeerChannels:
    """Channels that come into being when they are asked for. on_died: a process is gone (`PeerChannel`)."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        entropy: Entropy,
        client_id: str,
        on_died: Callable[[Purpose, int], None],
        limits: dict[Purpose, ChannelLimits] | None = None,
    ) -> None:
        self._network = network
        self._clock = clock
        self._entropy = entropy
        self._client_id = client_id
        self._on_died = on_died
        self._limits = limits or {}
        self._channels: dict[tuple[Purpose, int], PeerChannel] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._channels)

    def to(self, purpose: Purpose, node_id: int, host: str, port: int) -> PeerChannel:
        """The channel to this node, whose address is host:port now."""
        channel = self._channels.get((purpose, node_id))
        if channel is not None:
            channel.move(host, port)
            return channel
        channel = PeerChannel(
            self._network,
            self._clock,
            self._entropy,
            host,
            port,
            f"{self._client_id}-{purpose.value}",
            on_died=partial(self._on_died, purpose, node_id),
            limits=self._limits.get(purpose, DEFAULT_LIMITS),
        )
        if self._closed:
            channel.close()
        else:
            self._channels[purpose, node_id] = channel
        return channel

    def ended_at(self, purpose: Purpose, node_id: int) -> tuple[str, int] | None:
        """Where the node was when it ended a connection of this channel last."""
        channel = self._channels.get((purpose, node_id))
        return None if channel is None else channel.ended_at

    def drop(self, purpose: Purpose, node_id: int) -> None:
        """Close the channel, if there is one: it leads nowhere any more."""
        channel = self._channels.pop((purpose, node_id), None)
        if channel is not None:
            channel.close()

    def close(self) -> None:
        """Close all; whoever asks for one from here on gets one that is closed."""
        self._closed = True
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()
