"""DescribeLogDirs: what lies in each log directory, and how much room is left (KIP-113, KIP-827). Versions 1-5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import ErrorCode
from duramen.model import METADATA_TOPIC
from duramen.server.authorizer import CLUSTER_NAME
from duramen.wire.messages.describe_log_dirs import DescribeLogDirsResponse

if TYPE_CHECKING:
    from duramen.server.request import Request


def handle(request: Request) -> None:
    """Sizes in bytes per partition; KAFKA_STORAGE_ERROR for a directory that failed."""
    broker = request.broker
    if CLUSTER_NAME in request.denied:
        request.reply(DescribeLogDirsResponse.new(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), results=[]))
        return
    asked = None
    if request.body.topics is not None:
        asked = {(topic.topic, index) for topic in request.body.topics for index in topic.partitions}
    results = []
    for directory in broker.store.directories:
        topics: dict[str, Any] = {}
        for log in sorted(directory.logs.values(), key=lambda log: log.tp):
            tp = log.tp
            if tp.topic == METADATA_TOPIC or (asked is not None and tuple(tp) not in asked):
                continue
            entry = topics.setdefault(
                tp.topic, DescribeLogDirsResponse.DescribeLogDirsTopic(name=tp.topic, partitions=[])
            )
            entry.partitions.append(
                DescribeLogDirsResponse.DescribeLogDirsPartition(partition_index=tp.partition, partition_size=log.size)
            )
        failed = directory.journal.failed is not None
        try:
            free = broker.world.disk.free_bytes(directory.path)
        except OSError:
            failed, free = True, 0
        used = sum(log.size for log in directory.logs.values())
        results.append(
            DescribeLogDirsResponse.DescribeLogDirsResult(
                error_code=int(ErrorCode.KAFKA_STORAGE_ERROR if failed else ErrorCode.NONE),
                log_dir=directory.path,
                topics=list(topics.values()),
                total_bytes=free + used,
                usable_bytes=free,
            )
        )
    request.reply(DescribeLogDirsResponse.new(results=results))
