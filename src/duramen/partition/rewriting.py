"""Batches that cannot stay opaque: `compression.type` other than the producer's, compacted topics, old-time bounds.

Runs off the loop (it decompresses), and is pure: bytes in, bytes out. Everything else is stored as it came.
"""

from __future__ import annotations

from duramen.config import TopicConfig
from duramen.errors import ErrorCode, KafkaError
from duramen.wire.batch import BatchHeader, build_batch, parse_header, records

CODECS = {"uncompressed": 0, "none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

NO_BOUND = 2**63 - 1


class RecordsRefusedError(KafkaError):
    """A batch refused for some of its records: `(index in the batch, why)` for each of them (KIP-467)."""

    def __init__(self, code: ErrorCode, errors: list[tuple[int, str]]) -> None:
        super().__init__(
            code, f"{len(errors)} records of the batch were refused; record {errors[0][0]}: {errors[0][1]}"
        )
        self.errors = errors


MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""A batch that inflates beyond this is refused: it would be a decompression bomb, not data."""


def needs_rewriting(config: TopicConfig, header: BatchHeader) -> bool:
    """Whether this batch has to be decoded before it may be appended to a topic with this configuration."""
    if config.compression_type != "producer" and CODECS[config.compression_type] != header.compression:
        return True
    return "compact" in config.cleanup_policy or (
        config.message_timestamp_before_max_ms < NO_BOUND and config.message_timestamp_type == "CreateTime"
    )


def rewrite(batch: bytearray, config: TopicConfig, now_ms: int) -> bytearray:
    """Check each record against the topic's rules and recompress if its `compression.type` says so.

    Raises KafkaError INVALID_RECORD for a keyless record on a compacted topic, INVALID_TIMESTAMP for one older than
    `message.timestamp.before.max.ms`, MESSAGE_TOO_LARGE when the recompressed batch outgrows `max.message.bytes`.
    """
    view = memoryview(batch)
    header = parse_header(view)
    rows = list(records(view, header, max_bytes=MAX_DECOMPRESSED_BYTES))
    compacted = "compact" in config.cleanup_policy
    oldest = now_ms - config.message_timestamp_before_max_ms
    bounded = config.message_timestamp_before_max_ms < NO_BOUND and config.message_timestamp_type == "CreateTime"
    if compacted:
        keyless = [
            (index, "has no key, and the topic is compacted") for index, row in enumerate(rows) if row.key is None
        ]
        if keyless:
            raise RecordsRefusedError(ErrorCode.INVALID_RECORD, keyless)
    if bounded:
        old = [
            (i, "is older than message.timestamp.before.max.ms") for i, row in enumerate(rows) if row.timestamp < oldest
        ]
        if old:
            raise RecordsRefusedError(ErrorCode.INVALID_TIMESTAMP, old)
    if config.compression_type == "producer" or CODECS[config.compression_type] == header.compression:
        return batch
    rebuilt = build_batch(
        [(row.key, row.value, row.headers, row.timestamp) for row in rows],
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        compression=CODECS[config.compression_type],
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    if len(rebuilt) > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch is {len(rebuilt)} bytes after recompression, max.message.bytes={config.max_message_bytes}",
        )
    return rebuilt
