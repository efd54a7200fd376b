"""DescribeLogDirs: what lies in each log directory (KIP-113), the size of its volume and what is left of it (KIP-827).

Versions 1-5.
"""

from __future__ import annotations

import posixpath
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from duramen.errors import ErrorCode
from duramen.model import METADATA_TOPIC
from duramen.server.api.authorizer import CLUSTER_NAME
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.describe_log_dirs import DescribeLogDirsResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request
    from duramen.storage import LogDirectory


def handle(request: Request) -> None:
    """Sizes in bytes per partition; KAFKA_STORAGE_ERROR and no partitions for a directory that failed."""
    if CLUSTER_NAME in request.denied:
        request.reply(DescribeLogDirsResponse.new(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), results=[]))
        return
    request.reply_in_steps(_response(request))


def _response(request: Request) -> Steps:
    asked = None
    if request.body.topics is not None:
        asked = {(topic.topic, index) for topic in request.body.topics for index in topic.partitions}
    results = []
    for directory in request.services.store.data_directories:
        results.append((yield from _describe(request, directory, asked)))
    return DescribeLogDirsResponse.new(results=results)


def absolute_path(request: Request, path: str) -> str:
    """A log directory as clients know it, whatever the node was started in."""
    return posixpath.normpath(posixpath.join(request.services.segments.working_directory, path))


def _describe(request: Request, directory: LogDirectory, asked: set[tuple[str, int]] | None) -> Steps:
    path = absolute_path(request, directory.path)
    result = DescribeLogDirsResponse.DescribeLogDirsResult(log_dir=path, topics=[])
    space = None
    if directory.journal.failed is None:
        with suppress(OSError):
            space = request.services.world.disk.volume_space(directory.path)
    if space is None:  # as Kafka: of a directory that is offline nothing else is said
        result.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)
        return result
    topics: dict[str, Any] = {}
    for number, log in enumerate(sorted(directory.logs.values(), key=lambda log: log.tp), 1):
        if number % STEP == 0:
            yield
        tp = log.tp
        if tp.topic == METADATA_TOPIC or (asked is not None and tuple(tp) not in asked):
            continue
        entry = topics.setdefault(tp.topic, DescribeLogDirsResponse.DescribeLogDirsTopic(name=tp.topic, partitions=[]))
        entry.partitions.append(
            DescribeLogDirsResponse.DescribeLogDirsPartition(partition_index=tp.partition, partition_size=log.size)
        )
    result.topics = list(topics.values())
    result.total_bytes, result.usable_bytes = space
    return result
