"""DescribeDamage, an API of ours: findings of scrubbers and reads, partitions left offline, rounds. Version 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import ErrorCode
from duramen.server.api.authorizer import CLUSTER_NAME
from duramen.server.handlers.describe_log_dirs import absolute_path
from duramen.storage import disk_advice, remedy_of
from duramen.wire.messages.describe_damage import DescribeDamageResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request
    from duramen.storage import LogDirectory

MOST_RANGES = 200
"""Ranges told of one directory; `damage_found` counts them all."""


def handle(request: Request) -> None:
    """Of every log directory of this broker, from memory: no file is looked at."""
    if CLUSTER_NAME in request.denied:
        code = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        request.reply(DescribeDamageResponse.new(error_code=code, directories=[]))
        return
    services = request.services
    directories = [
        _directory(request, directory, services.store.disk_full.lacking(directory))
        for directory in services.store.directories
    ]
    request.reply(DescribeDamageResponse.new(node_id=services.node.id, directories=directories))


def _message(failure: BaseException | None, full: OSError | None) -> str | None:
    """Without an error code it is about a disk that is full: writes are refused until there is room."""
    if failure is not None:
        return f"{failure}; {remedy_of(failure)}"
    return None if full is None else f"{full}; {disk_advice(full)}"


def _directory(request: Request, directory: LogDirectory, full: OSError | None) -> Any:
    failure = directory.journal.failed
    scrubber = directory.scrubber
    ranges = []
    for damage in directory.known_damage()[:MOST_RANGES]:
        tp = damage.partition
        ranges.append(
            DescribeDamageResponse.DamagedRange(
                topic="" if tp is None else tp.topic,
                partition_index=-1 if tp is None else tp.partition,
                path=absolute_path(request, damage.path),
                start=damage.start,
                end=damage.end,
                first_offset=damage.first_offset,
                last_offset=damage.last_offset,
                what=damage.what,
            )
        )
    return DescribeDamageResponse.DamageDirectory(
        log_dir=absolute_path(request, directory.path),
        error_code=int(ErrorCode.NONE if failure is None else ErrorCode.KAFKA_STORAGE_ERROR),
        error_message=_message(failure, full),
        scrub_bytes_per_second=scrubber.bytes_per_second,
        scrub_rounds=scrubber.rounds,
        scrub_under_way=scrubber.under_way,
        scrub_started_ms=-1 if scrubber.started_ms is None else scrubber.started_ms,
        scrub_round_bytes=scrubber.round_bytes,
        sealed_bytes=directory.sealed_bytes(),
        damage_found=directory.findings.count,
        damage=ranges,
        offline=[
            DescribeDamageResponse.OfflinePartition(
                topic=left.tp.topic, partition_index=left.tp.partition, what=str(left.error)
            )
            for left in sorted(directory.offline.values(), key=lambda left: left.tp)
        ],
    )
