"""The settings the sink machine obeys, taken out of a broker's configuration."""

from __future__ import annotations

from typing import NamedTuple

from duramen.config import BrokerConfig

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


class SinkSettings(NamedTuple):
    """Times in milliseconds."""

    staging_retention_ms: int = DAY_MS
    ephemeral_retention_ms: int = 7 * DAY_MS
    sweep_interval_ms: int = MINUTE_MS

    @classmethod
    def from_config(cls, config: BrokerConfig) -> SinkSettings:
        staging = config.integer("duramen.sink.staging.retention.ms")
        return cls(
            staging_retention_ms=staging,
            ephemeral_retention_ms=config.integer("duramen.sink.ephemeral.retention.ms"),
            sweep_interval_ms=max(min(staging // 4, MINUTE_MS), 1000),
        )
