"""What storage reads of a topic's configuration, and by which names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class LogConfig(Protocol):
    """Every setting of a topic that storage reads; `config.TopicConfig` has all of them, and more.

    Sizes are bytes, times milliseconds. durability: "stable" (acknowledged when synced) or "page-cache".
    retention_bytes, retention_ms: -1 for no limit. txid: "none", or timestamps of records are no times.
    """

    @property
    def cleanup_policy(self) -> frozenset[str]: ...
    @property
    def delete_retention_ms(self) -> int: ...
    @property
    def durability(self) -> str: ...
    @property
    def file_delete_delay_ms(self) -> int: ...
    @property
    def index_interval_bytes(self) -> int: ...
    @property
    def max_compaction_lag_ms(self) -> int: ...
    @property
    def min_cleanable_dirty_ratio(self) -> float: ...
    @property
    def min_compaction_lag_ms(self) -> int: ...
    @property
    def retention_bytes(self) -> int: ...
    @property
    def retention_ms(self) -> int: ...
    @property
    def segment_bytes(self) -> int: ...
    @property
    def segment_index_bytes(self) -> int: ...
    @property
    def segment_jitter_ms(self) -> int: ...
    @property
    def segment_ms(self) -> int: ...
    @property
    def txid(self) -> str: ...
    @property
    def writer_expiration_ms(self) -> int: ...


def dated_from(config: LogConfig) -> int:
    """The least timestamp that says how old a batch is; else it is as old as it has been in the log."""
    return 0 if config.txid == "none" else 1 << 63


@dataclass(slots=True)
class PlainLogConfig:
    """Kafka's defaults, for logs that belong to no configured topic: but nothing of them is deleted or compacted."""

    durability: str = "stable"
    index_interval_bytes: int = 4096
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * 24 * 3600 * 1000
    cleanup_policy: frozenset[str] = frozenset()
    delete_retention_ms: int = 24 * 3600 * 1000
    file_delete_delay_ms: int = 60_000
    max_compaction_lag_ms: int = 2**63 - 1
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    retention_bytes: int = -1
    retention_ms: int = 7 * 24 * 3600 * 1000
    txid: str = "none"
    writer_expiration_ms: int = 7 * 24 * 3600 * 1000
