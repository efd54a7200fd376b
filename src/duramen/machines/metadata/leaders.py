"""Decides who leads a partition: one of its in-sync replicas whose broker is active, by preference the first.

What nobody else can lead keeps its fenced leader in the log, and gets no record (decision 0018): readers of the image
see that it has none now (`MetadataImage.leader`), and its broker leads it again when it is back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

from duramen.errors import ErrorCode
from duramen.machines.contract import LogRecord
from duramen.machines.metadata import codec
from duramen.machines.metadata.commands import OK, Result
from duramen.machines.metadata.image import (
    LOST_DIRECTORY,
    NO_LEADER,
    MetadataImage,
    PartitionImage,
)
from duramen.model import TopicPartition

CHANGES_AT_ONCE: Final = 500
"""Partitions that one decision changes at most: 10,000 at once would stall the loop for half a second."""
LOOKS_AT_ONCE: Final = 10_000
"""Partitions that one decision looks at, at most."""

PREFERRED: Final = 0
UNCLEAN: Final = 1
NO_UNCLEAN: Final = (
    "No in-sync replica is there, and this release elects no other one: acknowledged records could be lost. Start a "
    "broker that is in sync."
)

Place = tuple[str, int]
"""A partition, by topic and index: where a walk through all of them, in the order of names, goes on."""
START: Final[Place] = ("", 0)

Active = frozenset[int]
"""The brokers that can lead, and be in sync."""


# ---------------------------------------------------------------------- brokers come and go


def settle(image: MetadataImage, active: Active, start: Place = START) -> tuple[list[LogRecord], Place | None]:
    """Changes of partitions from `start` on that suit these active brokers, and where to go on (None: nowhere).

    Wherever an in-sync replica is active, only such ones stay in sync, and one of them leads. What is settled already
    changes nothing, so a walk may begin anew at any time.
    """

    def settled(topic_id: bytes, index: int, partition: PartitionImage) -> LogRecord | None:
        if partition.leader in active and active.issuperset(partition.isr):
            return None
        return _settled(topic_id, index, partition, active)

    return _walk(image, start, settled) if active else ([], None)


def balance(image: MetadataImage, active: Active, start: Place = START) -> tuple[list[LogRecord], Place | None]:
    """Changes by which each partition is led by its first replica again, wherever that may lead; as `settle`."""

    def balanced(topic_id: bytes, index: int, partition: PartitionImage) -> LogRecord | None:
        if partition.leader == partition.preferred_leader:
            return None
        change, _ = _elect_preferred(topic_id, index, partition, active)
        return change

    return _walk(image, start, balanced)


def _walk(
    image: MetadataImage, start: Place, change: Callable[[bytes, int, PartitionImage], LogRecord | None]
) -> tuple[list[LogRecord], Place | None]:
    """What this says of the partitions from `start` on, as far as one decision goes, and where to go on."""
    records: list[LogRecord] = []
    names = image.names()
    looked = 0
    for position in range(bisect_left(names, start[0]), len(names)):
        topic = image.topics[names[position]]
        first = start[1] if topic.name == start[0] else 0
        for index in range(first, len(topic.partitions)):
            if len(records) >= CHANGES_AT_ONCE or looked >= LOOKS_AT_ONCE:
                return records, (topic.name, index)
            looked += 1
            record = change(topic.id, index, topic.partitions[index])
            if record is not None:
                records.append(record)
    return records, None


def _settled(topic_id: bytes, index: int, partition: PartitionImage, active: Active) -> LogRecord | None:
    able = _able(partition, active)
    if not able:
        return None
    if not partition.isr:
        return codec.leader_alone(topic_id, index, able[0])
    isr = [node_id for node_id in partition.isr if node_id in active]
    return codec.partition_change(
        topic_id,
        index,
        leader=codec.NO_LEADER_CHANGE if partition.leader in able else able[0],
        isr=None if len(isr) == len(partition.isr) else isr,
    )


def _able(partition: PartitionImage, active: Active) -> list[int]:
    """Replicas that may lead, by preference: they are known to hold everything that was committed.

    Where none is in sync, the eligible ones are (KIP-966). One whose directory was lost holds nothing.
    """
    safe = partition.isr or partition.elr
    return [
        node_id
        for node_id in partition.replicas
        if node_id in safe and node_id in active and partition.directory_of(node_id) != LOST_DIRECTORY
    ]


def can_hand_over(image: MetadataImage, node_id: int, others: Active) -> bool:
    """Whether this broker leads anything that one of the others could lead."""
    return bool(others) and any(
        partition.leader == node_id and _able(partition, others)
        for topic in image.topics.values()
        for partition in topic.partitions
    )


def lose(image: MetadataImage, node_id: int, is_lost: Callable[[bytes], bool], active: Active) -> list[LogRecord]:
    """The next changes by which a broker's copies in lost directories count as nothing; none when all do.

    is_lost: says it of a directory's id. The copies leave the in-sync replicas; the last one is marked, and nobody
    leads: an empty log is never elected.
    """
    records: list[LogRecord] = []
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if node_id not in partition.isr or node_id not in partition.replicas:
                continue
            home = partition.directory_of(node_id)
            if home != LOST_DIRECTORY and is_lost(home):
                records.append(_without(topic.id, index, partition, node_id, active))
                if len(records) == CHANGES_AT_ONCE:
                    return records
    return records


def leave_behind(
    image: MetadataImage, node_id: int, may_lack: Callable[[str], bool], active: Active
) -> list[LogRecord]:
    """The next changes by which a broker leaves the in-sync replicas of topics whose last records it may lack.

    may_lack: says it of a topic's name. Where it is the last one it stays: nobody has more.
    """
    records: list[LogRecord] = []
    for topic in image.topics.values():
        if not may_lack(topic.name):
            continue
        for index, partition in enumerate(topic.partitions):
            if node_id in partition.isr and len(partition.isr) > 1:
                records.append(_without(topic.id, index, partition, node_id, active))
                if len(records) == CHANGES_AT_ONCE:
                    return records
    return records


def _without(topic_id: bytes, index: int, partition: PartitionImage, node_id: int, active: Active) -> LogRecord:
    isr = [other for other in partition.isr if other != node_id]
    able = _able(partition, active - {node_id})
    leader = codec.NO_LEADER_CHANGE
    if partition.leader == node_id:
        leader = able[0] if able else NO_LEADER
    if isr:
        return codec.partition_change(topic_id, index, leader=leader, isr=isr)
    directories = _directories(partition, node_id, LOST_DIRECTORY)
    return codec.partition_change(topic_id, index, leader=leader, directories=directories)


def _directories(partition: PartitionImage, node_id: int, directory: bytes) -> list[bytes]:
    """The partition's directories, with another one for this replica."""
    return [directory if other == node_id else partition.directory_of(other) for other in partition.replicas]


# ---------------------------------------------------------------------- elections that somebody asks for


def every_partition(image: MetadataImage) -> Iterator[Place]:
    """All of them, in the order of names."""
    for name in image.names():
        for index in range(len(image.topics[name].partitions)):
            yield name, index


def elect(image: MetadataImage, place: Place, election_type: int, active: Active) -> tuple[LogRecord | None, Result]:
    """The change that elects this partition's leader (KIP-460), if there is one, and the answer."""
    name, index = place
    topic = image.topics.get(name)
    if topic is None:
        return None, Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    partition = image.partition(TopicPartition(name, index))
    if partition is None:
        return None, Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    if election_type == PREFERRED:
        return _elect_preferred(topic.id, index, partition, active)
    if image.leader(partition) != NO_LEADER:
        return None, Result(ErrorCode.ELECTION_NOT_NEEDED, "The partition has a leader.")
    change = _settled(topic.id, index, partition, active)
    return change, Result(ErrorCode.UNSUPPORTED_VERSION, NO_UNCLEAN) if change is None else OK


def _elect_preferred(
    topic_id: bytes, index: int, partition: PartitionImage, active: Active
) -> tuple[LogRecord | None, Result]:
    preferred = partition.preferred_leader
    if partition.leader == preferred and preferred in active:
        return None, Result(ErrorCode.ELECTION_NOT_NEEDED, "The preferred leader leads already.")
    if preferred not in partition.isr or preferred not in _able(partition, active):
        return None, Result(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader is not available.")
    return codec.partition_change(topic_id, index, leader=preferred), OK
