"""Batches that cannot stay opaque: `compression.type` other than the producer's, compacted topics, old-time bounds, and
those whose header does not say how young their records are, or says that they are too young.

Runs off the loop (it decompresses), and is pure: bytes in, bytes out. Everything else is stored as it came.
"""

from __future__ import annotations

from duramen.config import TopicConfig
from duramen.errors import ErrorCode, KafkaError
from duramen.model import NO_TIMESTAMP
from duramen.wire.batch import (
    HEADER_SIZE,
    BatchHeader,
    most_inflated,
    parse_header,
    payload_records,
    replace_payload,
    stamp_max_timestamp,
)
from duramen.wire.compression import GZIP, LZ4, ZSTD, compress, decompress

CODECS = {"uncompressed": 0, "none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

NO_BOUND = 2**63 - 1


class RecordsRefusedError(KafkaError):
    """A batch refused for some of its records: `(index in the batch, why)` for each of them (KIP-467)."""

    def __init__(self, code: ErrorCode, errors: list[tuple[int, str]]) -> None:
        super().__init__(
            code, f"{len(errors)} records of the batch were refused; record {errors[0][0]}: {errors[0][1]}"
        )
        self.errors = errors


class TxidRefusedError(RecordsRefusedError):
    """A batch refused for transaction ids that step back. last_txid: what they may not be below."""

    def __init__(self, errors: list[tuple[int, str]], last_txid: int) -> None:
        super().__init__(ErrorCode.INVALID_TIMESTAMP, errors)
        self.last_txid = last_txid


MAX_RECORD_ERRORS = 100
"""Records named in one refusal; the batch is refused as a whole anyway."""


def may_need_rewriting(config: TopicConfig) -> bool:
    """Whether this configuration can ask for decoding at all; most topics' cannot, and are spared the question."""
    return (
        config.compression_type != "producer"
        or "compact" in config.cleanup_policy
        or config.message_timestamp_before_max_ms < NO_BOUND
        or config.txid == "application"
    )


def lacks_max_timestamp(header: BatchHeader) -> bool:
    """Whether the header's greatest timestamp cannot be true: Sarama before 1.44 leaves it at -1."""
    return header.max_timestamp < header.base_timestamp


def claims_too_late(config: TopicConfig, header: BatchHeader, now_ms: int) -> bool:
    """Whether a record is further ahead than the topic allows, if the header is right: its records know, and which."""
    latest = now_ms + config.message_timestamp_after_max_ms
    return header.max_timestamp > latest and _are_times(config)


def _are_times(config: TopicConfig) -> bool:
    """Whether timestamps are times, and the producer's."""
    return config.message_timestamp_type == "CreateTime" and config.txid == "none"


def needs_rewriting(config: TopicConfig, header: BatchHeader) -> bool:
    """Whether this batch has to be decoded before it may be appended to a topic with this configuration."""
    if lacks_max_timestamp(header):
        return True
    if config.compression_type != "producer" and CODECS[config.compression_type] != header.compression:
        return True
    if config.txid == "application" and (header.count > 1 or header.base_timestamp != header.max_timestamp):
        return True
    return "compact" in config.cleanup_policy or (
        config.message_timestamp_before_max_ms < NO_BOUND and _are_times(config)
    )


def check_txid(txid: int, last: int) -> str | None:
    """Why a record with this transaction id may not follow the last one; None: it may."""
    if txid >= last and txid > 0:
        return None
    return f"has transaction id {txid}, " + (f"below the last, {last}" if txid < last else "which must be above 0")


def rewrite(batch: bytearray, config: TopicConfig, now_ms: int, last_txid: int = 0) -> bytearray:
    """Check each record against the topic's rules, say how young the youngest is, recompress for `compression.type`.

    Raises KafkaError INVALID_RECORD for a keyless record on a compacted topic, INVALID_TIMESTAMP for one outside
    `message.timestamp.before.max.ms` and `…after.max.ms`, or with `duramen.txid=application` for one below the record
    before it or the log's last one (TxidRefusedError), MESSAGE_TOO_LARGE when the recompressed batch outgrows
    `max.message.bytes` or when it inflates beyond reason.
    """
    header = parse_header(memoryview(batch))
    limit = most_inflated(config.max_message_bytes)
    payload = decompress(header.compression, memoryview(batch)[HEADER_SIZE:], limit)
    if config.txid == "application":
        _check_txids(payload, header, last_txid)
    youngest = _check_records(payload, header, config, now_ms)
    if youngest != header.max_timestamp:
        stamp_max_timestamp(batch, youngest)
    codec = header.compression if config.compression_type == "producer" else CODECS[config.compression_type]
    if codec == header.compression:
        return batch
    rebuilt = replace_payload(batch, codec, compress(codec, payload, _level(config, codec)))
    if len(rebuilt) > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch is {len(rebuilt)} bytes after recompression, max.message.bytes={config.max_message_bytes}",
        )
    return rebuilt


def _level(config: TopicConfig, codec: int) -> int | None:
    """The level to compress with, where the codec has one."""
    levels = {
        GZIP: config.compression_gzip_level,
        LZ4: config.compression_lz4_level,
        ZSTD: config.compression_zstd_level,
    }
    return levels.get(codec)


def _check_txids(payload: bytes, header: BatchHeader, last_txid: int) -> None:
    refused: list[tuple[int, str]] = []
    last = last_txid
    for index, record in enumerate(payload_records(payload, header)):
        why = check_txid(record.timestamp, last)
        if why is None:
            last = record.timestamp
        elif len(refused) < MAX_RECORD_ERRORS:
            refused.append((index, why))
    if refused:
        raise TxidRefusedError(refused, last_txid)


def _check_records(payload: bytes, header: BatchHeader, config: TopicConfig, now_ms: int) -> int:
    """Each record against the topic's rules, one at a time: a small batch may hold millions. The greatest timestamp."""
    compacted = "compact" in config.cleanup_policy
    bounded = _are_times(config)
    oldest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    youngest = NO_TIMESTAMP
    keyless: list[tuple[int, str]] = []
    untimely: list[tuple[int, str]] = []
    for index, record in enumerate(payload_records(payload, header)):
        if record.offset - header.base_offset != index:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"record {index} has another offset than its place says")
        if compacted and record.key is None and len(keyless) < MAX_RECORD_ERRORS:
            keyless.append((index, "has no key, and the topic is compacted"))
        time = record.timestamp
        if bounded and time != NO_TIMESTAMP and not oldest <= time <= latest and len(untimely) < MAX_RECORD_ERRORS:
            untimely.append((index, f"is {_side(time, oldest)}"))
        youngest = max(youngest, time)
    if keyless:
        raise RecordsRefusedError(ErrorCode.INVALID_RECORD, keyless)
    if untimely:
        raise RecordsRefusedError(ErrorCode.INVALID_TIMESTAMP, untimely)
    return youngest


def _side(time: int, oldest: int) -> str:
    return "older than message.timestamp.before.max.ms" if time < oldest else "ahead of message.timestamp.after.max.ms"
