"""The settings the transaction machine obeys, taken out of a broker's configuration."""

from __future__ import annotations

from typing import NamedTuple

from duramen.config import BrokerConfig

MINUTE_MS = 60_000


class TransactionSettings(NamedTuple):
    """Times in milliseconds. The intervals: how often time-outs, and ids that expired, are looked for."""

    max_timeout_ms: int = 15 * MINUTE_MS
    id_expiration_ms: int = 7 * 24 * 60 * MINUTE_MS
    abort_interval_ms: int = 10_000
    remove_interval_ms: int = 60 * MINUTE_MS

    @classmethod
    def from_config(cls, config: BrokerConfig) -> TransactionSettings:
        return cls(
            max_timeout_ms=config.integer("transaction.max.timeout.ms"),
            id_expiration_ms=config.integer("transactional.id.expiration.ms"),
            abort_interval_ms=config.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
            remove_interval_ms=config.integer("transaction.remove.expired.transaction.cleanup.interval.ms"),
        )
