"""A node that was formatted for another cluster hears so from its peers, and says it once for each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from duramen.errors import ErrorCode
from duramen.machines.raft.messages import FetchRequest
from duramen.machines.raft.voters import ReplicaKey
from duramen.server.quorum.network import QuorumPeers


class _Refusing:
    """Channels to nodes of another cluster."""

    def __init__(self) -> None:
        self.code = ErrorCode.INCONSISTENT_CLUSTER_ID

    def to(self, *_: Any) -> _Refusing:
        return self

    def send(self, request: Any, on_reply: Any, seconds: float) -> None:
        on_reply(request.api.response.new(error_code=int(self.code)))


def test_who_is_of_another_cluster_is_told_once() -> None:
    world: Any = SimpleNamespace(network=None, clock=None, entropy=None)
    quorum: Any = None
    peers = QuorumPeers(quorum, world, "A" * 22, 1, [("127.0.0.1", 9093), ("127.0.0.1", 9094)])
    channels: Any = _Refusing()
    peers._channels = channels
    told: list[str] = []
    peers.on_another_cluster = told.append
    fetch = FetchRequest(ReplicaKey(1, bytes(16)), 0, 0, 0, 0, 0.5, 1000)
    answers: list[Any] = []
    for _ in range(4):
        peers.send(-1, None, fetch, 1.0, answers.append)
    assert told == ["127.0.0.1:9093", "127.0.0.1:9094"]
    channels.code = ErrorCode.UNKNOWN_SERVER_ERROR
    peers.send(-1, None, fetch, 1.0, answers.append)
    assert len(told) == 2
    assert len(answers) == 5
