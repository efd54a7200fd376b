"""From Kafka's configuration keys to the engine's own settings."""

from __future__ import annotations

from duramen.config import BrokerConfig
from duramen.storage import CleanerSettings, DirectorySettings, PlainLogConfig

LEAST_IO_BYTES = 4096
"""Compaction reads no less at a time, however small its buffer is: whole batches are read anyway."""


def directory_settings(config: BrokerConfig, cluster_id: str | None) -> DirectorySettings:
    """What a log directory is opened with; cluster_id None creates one for an empty directory."""
    part = config.integer("duramen.journal.part.bytes")
    return DirectorySettings(
        journal_max_bytes=config.integer("duramen.journal.max.bytes"),
        journal_max_entries=config.integer("duramen.journal.max.entries"),
        journal_part_bytes=part,
        bypass_bytes=min(config.integer("duramen.journal.bypass.bytes"), part // 2),
        dirty_max_bytes=config.integer("duramen.dirty.max.bytes"),
        checkpoint_interval_ms=config.integer("log.flush.offset.checkpoint.interval.ms"),
        hot_window_bytes=config.integer("duramen.hot.window.bytes"),
        open_files=config.integer("duramen.open.files.max"),
        retention_check_interval_ms=config.integer("log.retention.check.interval.ms"),
        producer_id_expiration_ms=config.integer("producer.id.expiration.ms"),
        reserve_bytes=config.integer("duramen.reserve.bytes"),
        scrub_bytes_per_second=config.integer("duramen.scrub.bytes.per.second"),
        scrub_interval_ms=config.integer("duramen.scrub.interval.ms"),
        node_id=config.integer("node.id"),
        cluster_id=cluster_id,
        # What is deleted at a start has no topic that could say how long its files stay.
        default_config=PlainLogConfig(file_delete_delay_ms=config.integer("log.segment.delete.delay.ms")),
    )


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    """How compaction works; what is for all passes together is shared out among those that may run at a time."""
    threads = config.integer("log.cleaner.threads") if config.boolean("log.cleaner.enable") else 0
    share = max(1, threads)
    return CleanerSettings(
        threads=threads,
        dedupe_bytes=config.integer("log.cleaner.dedupe.buffer.size") // share,
        load_factor=config.number("log.cleaner.io.buffer.load.factor"),
        io_bytes=max(LEAST_IO_BYTES, config.integer("log.cleaner.io.buffer.size") // share // 2),
        bytes_per_second=config.number("log.cleaner.io.max.bytes.per.second"),
        backoff_ms=config.integer("log.cleaner.backoff.ms"),
    )
