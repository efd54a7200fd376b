"""One partition that this node follows, as a fetcher has it."""

from __future__ import annotations

from duramen.machines.replication.follower import Following
from duramen.model import TopicId, topic_id_from_text
from duramen.partition.replica.follower import FollowerLog, follow_start
from duramen.partition.replica.partition import Partition
from duramen.storage import LogDirectory

TargetKey = tuple[TopicId, int]


class ReplicaTarget:
    """See the module. Loop thread only."""

    __slots__ = (
        "directory",
        "directory_id",
        "following",
        "is_stable",
        "key",
        "leader_high",
        "leader_start",
        "log",
        "may_lose",
        "partition",
        "partition_epoch",
    )

    def __init__(self, partition: Partition, directory: LogDirectory, backoff: float) -> None:
        self.key: TargetKey = partition.topic_id, partition.tp.partition
        self.partition = partition
        self.directory = directory
        self.directory_id = topic_id_from_text(directory.directory_id)
        self.following = Following(backoff)
        self.log = FollowerLog(partition)
        self.is_stable = partition.is_stable
        """Whether the fetcher that it is with names durable ends."""
        self.may_lose = False
        """Whether its leader was elected from outside of the in-sync replicas."""
        self.partition_epoch = -1
        self.leader_high = -1
        self.leader_start = -1

    @property
    def is_followed(self) -> bool:
        """Whether its log is still to be changed from here."""
        return not self.partition.closed and not self.partition.replication.is_leader

    def hear_leader(self, high_watermark: int, log_start: int) -> None:
        """What the leader says of its own log, which this one is the beginning of."""
        self.leader_high = max(high_watermark, -1)
        self.leader_start = max(log_start, -1)

    def follow_leader(self) -> bool:
        """Watermark and log start follow the leader's as far as this log goes; whether the start moved.

        KafkaError, retriable, OSError: the start did not.
        """
        partition = self.partition
        if self.leader_high > partition.high_watermark:
            partition.follow_watermark(self.leader_high)
        return self.leader_start > partition.log_start_offset and follow_start(partition, self.leader_start)
