"""The metadata quorum as its controllers tell it: DescribeQuorum, asked of all that are known, at once.

All, because a leader that does not know yet that it is deposed answers as if it led: the latest epoch counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from duramen.client.blocking.connection import MAX_FRAME_BYTES, BlockingConnection
from duramen.errors import DuramenError, ErrorCode
from duramen.model import METADATA_TOPIC, topic_id_text
from duramen.wire.messages import API
from duramen.wire.messages.describe_quorum import DescribeQuorumRequest

_DESCRIBE_QUORUM: Final = 55
_DESCRIBE_CLUSTER: Final = 60
_CONTROLLERS: Final = 2
_MOST_ASKED: Final = 16

Address = tuple[str, int]


class Replica(NamedTuple):
    """A voter or an observer, as the leader sees it."""

    id: int
    directory_id: str | None
    endpoints: tuple[tuple[str, str, int], ...]
    """(listener, host, port) of each."""
    log_end_offset: int
    lag: int
    """Offsets that it has not fetched."""
    last_fetch_ms: int | None
    last_caught_up_ms: int | None


NO_LEADER: Final = "answers, and finds no leader"
"""Why nothing came from a node that lives."""


class QuorumAnswer(NamedTuple):
    """What one controller says."""

    address: Address
    leader_id: int
    leader_epoch: int
    leads: bool
    high_watermark: int
    voters: tuple[Replica, ...]
    observers: tuple[Replica, ...]
    nodes: tuple[Address, ...]
    """Where the voters are."""
    cluster_id: str | None = None


class QuorumLook(NamedTuple):
    """Who answered, and why others did not."""

    answers: tuple[QuorumAnswer, ...]
    silent: dict[Address, str]

    @property
    def leader(self) -> QuorumAnswer | None:
        """What the leader says, by itself or through another one; None where somebody knows of a later epoch."""
        latest = max(self.answers, key=lambda each: (each.leader_epoch, each.leads), default=None)
        if latest is None or not latest.leads:
            return None
        own = (at for voter in latest.voters if voter.id == latest.leader_id for at in voter.endpoints)
        for _, host, port in own:
            return latest._replace(address=(host, port))
        return latest


def replicas_of(quorum: QuorumAnswer) -> dict[int, tuple[Replica, bool]]:
    """For each node that of its replicas which fetched last, and whether it votes.

    A node that lost its metadata directory, and was formatted anew, is told twice: as the voter that it was, and as the
    observer that it is. So it is for a while when the voter's directory was put back.
    """
    found: dict[int, tuple[Replica, bool]] = {}
    for replicas, votes in ((quorum.voters, True), (quorum.observers, False)):
        for each in replicas:
            known = found.get(each.id)
            if known is None or (each.id != quorum.leader_id and _fetched(each) > _fetched(known[0])):
                found[each.id] = each, votes
    return found


def _fetched(replica: Replica) -> int:
    return -1 if replica.last_fetch_ms is None else replica.last_fetch_ms


def shown(address: Address) -> str:
    """host:port."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def look_at_quorum(bootstrap: Sequence[Address], seconds: float) -> QuorumLook:
    """Ask these, then the voters of whom they tell. seconds: for one answer."""
    answers: list[QuorumAnswer] = []
    silent: dict[Address, str] = {}
    asked: set[Address] = set()
    next_ones = list(dict.fromkeys(bootstrap))
    with ThreadPoolExecutor(_MOST_ASKED, "quorum-look") as threads:
        while next_ones:
            asked.update(next_ones)
            found = list(threads.map(lambda address: _ask(address, seconds), next_ones))
            for address, answer in zip(next_ones, found, strict=True):
                if isinstance(answer, str):
                    silent[address] = answer
                else:
                    answers.append(answer)
            told = dict.fromkeys(address for answer in answers for address in answer.nodes)
            next_ones = [address for address in told if address not in asked][: _MOST_ASKED * 4 - len(asked)]
    return QuorumLook(tuple(answers), silent)


def serves_clients(address: Address, seconds: float) -> bool:
    """Whether a broker answers there."""
    try:
        BlockingConnection(*address, "duramen", time.monotonic() + seconds, MAX_FRAME_BYTES).close()
    except (DuramenError, OSError):
        return False
    return True


def _ask(address: Address, seconds: float) -> QuorumAnswer | str:
    """What it says, or why nothing."""
    until = time.monotonic() + seconds
    try:
        connection = BlockingConnection(*address, "duramen", until, MAX_FRAME_BYTES)
    except (DuramenError, OSError) as error:
        return reason_of(address, error)
    try:
        asked = DescribeQuorumRequest
        partition = asked.PartitionData(partition_index=0)
        topic = asked.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
        answer = _understood(address, connection.call(_DESCRIBE_QUORUM, asked.new(topics=[topic]), until))
        if isinstance(answer, QuorumAnswer) and answer.leads and connection.versions.serves(_DESCRIBE_CLUSTER):
            request = API[_DESCRIBE_CLUSTER].request.new(endpoint_type=_CONTROLLERS)
            told = connection.call(_DESCRIBE_CLUSTER, request, until)
            answer = answer._replace(cluster_id=told.cluster_id or None)
        return answer
    except (DuramenError, OSError) as error:
        # It has told its versions, so it lives: it asks the leader, and waits for one.
        return NO_LEADER if time.monotonic() >= until else reason_of(address, error)
    finally:
        connection.close()


def reason_of(address: Address, error: BaseException) -> str:
    """Why nothing came from there, without the address."""
    cause = error.__cause__
    said = getattr(cause, "strerror", None) or str(cause or error)
    return said.removeprefix(f"{shown(address)}: ").removeprefix(f"{shown(address)} ")


def _understood(address: Address, response: Any) -> QuorumAnswer | str:
    if response.error_code:
        return ErrorCode(response.error_code).name
    part = response.topics[0].partitions[0]
    nodes = {each.node_id: [(at.name, at.host, at.port) for at in each.listeners] for each in response.nodes}
    places = tuple((host, port) for listed in nodes.values() for _, host, port in listed[:1])
    if part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return QuorumAnswer(address, part.leader_id, part.leader_epoch, False, -1, (), (), places)
    if part.error_code:
        return ErrorCode(part.error_code).name
    states = (*part.current_voters, *part.observers)
    end = max((each.log_end_offset for each in states if each.replica_id == part.leader_id), default=-1)

    def replicas(listed: Iterable[Any]) -> tuple[Replica, ...]:
        return tuple(
            Replica(
                each.replica_id,
                topic_id_text(each.replica_directory_id) if any(each.replica_directory_id) else None,
                tuple(nodes.get(each.replica_id, ())),
                each.log_end_offset,
                max(0, end - max(0, each.log_end_offset)),
                each.last_fetch_timestamp if each.last_fetch_timestamp >= 0 else None,
                each.last_caught_up_timestamp if each.last_caught_up_timestamp >= 0 else None,
            )
            for each in sorted(listed, key=lambda each: int(each.replica_id))
        )

    return QuorumAnswer(
        address,
        part.leader_id,
        part.leader_epoch,
        True,
        part.high_watermark,
        replicas(part.current_voters),
        replicas(part.observers),
        places,
    )
