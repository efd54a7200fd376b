"""What a log reads of its topic's configuration, and by which names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class LogConfig(Protocol):
    """The part of a topic's configuration that shapes its files; `config.TopicConfig` has all of it.

    segment_bytes, segment_index_bytes, index_interval_bytes: bytes; segment_ms, segment_jitter_ms: milliseconds;
    durability: "stable" (acknowledged when synced) or "page-cache".
    """

    durability: str
    index_interval_bytes: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int


@dataclass(slots=True)
class PlainLogConfig:
    """Kafka's defaults, for logs that belong to no configured topic."""

    durability: str = "stable"
    index_interval_bytes: int = 4096
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * 24 * 3600 * 1000
