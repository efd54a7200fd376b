"""From Kafka's configuration keys to the engine's own settings."""

from __future__ import annotations

from duramen.config import BrokerConfig
from duramen.storage.directory import DirectorySettings


def directory_settings(config: BrokerConfig, cluster_id: str | None) -> DirectorySettings:
    """What a log directory is opened with; cluster_id None creates one for an empty directory."""
    part = config.integer("duramen.journal.part.bytes")
    return DirectorySettings(
        journal_max_bytes=config.integer("duramen.journal.max.bytes"),
        journal_max_entries=config.integer("duramen.journal.max.entries"),
        journal_part_bytes=part,
        bypass_bytes=min(config.integer("duramen.journal.bypass.bytes"), part // 2),
        dirty_max_bytes=config.integer("duramen.dirty.max.bytes"),
        hot_window_bytes=config.integer("duramen.hot.window.bytes"),
        retention_check_interval_ms=config.integer("log.retention.check.interval.ms"),
        producer_id_expiration_ms=config.integer("producer.id.expiration.ms"),
        scrub_bytes_per_second=config.integer("duramen.scrub.bytes.per.second"),
        scrub_interval_ms=config.integer("duramen.scrub.interval.ms"),
        node_id=config.integer("node.id"),
        cluster_id=cluster_id,
    )
