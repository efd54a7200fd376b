"""The options of a reading query as its tasks carry them: plain values, taken once from the parsed options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from duramen.client import READ_COMMITTED, READ_UNCOMMITTED, Cluster
from duramen.errors import ConfigError
from duramen.spark.options.first_contact import first_contact_s
from duramen.spark.options.option_types import INT_MAX
from duramen.spark.source.admission import Limits
from duramen.spark.source.plan import Cutting


@dataclass(frozen=True)
class SourceSettings:
    """What reading needs, on the driver and in tasks. Times in seconds, sizes in bytes."""

    bootstrap: str
    client_id: str
    isolation: int
    fail_on_data_loss: bool
    call_timeout_s: float
    request_timeout_s: float
    poll_timeout_s: float
    fetch_max_bytes: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    max_batch_bytes: int
    key: bytes | None
    timestamps: tuple[int, int] | None
    value_format: str
    read_from: str

    def connect(self) -> Cluster:
        """A client with these settings; nothing is sent yet."""
        return self._client(None)

    def connect_first(self) -> Cluster:
        """The same for the driver's plan, which waits less long for a cluster that it has never reached."""
        return self._client(first_contact_s(self.bootstrap))

    def _client(self, first_s: float | None) -> Cluster:
        return Cluster(
            self.bootstrap,
            client_id=self.client_id,
            timeout_s=self.call_timeout_s,
            request_timeout_s=self.request_timeout_s,
            first_contact_s=first_s,
        )


def settings(options: Mapping[str, Any]) -> SourceSettings:
    """From all the options. Raises ConfigError where two of them do not go together."""
    if options["keyPartitioner"] != "none" and options["keyEquals"] is None:
        raise ConfigError("keyPartitioner says where keyEquals is found; it needs that option")
    if options.get("timestampLateness") is not None and options["timestampRange"] is None:
        raise ConfigError("timestampLateness says where timestampRange ends; it needs that option")
    isolation = options["kafka.isolation.level"] or options["isolation"]
    fetch_max = options["kafka.fetch.max.bytes"]
    return SourceSettings(
        bootstrap=options["kafka.bootstrap.servers"],
        client_id=options["kafka.client.id"] or options["kafka.group.id"] or options["groupIdPrefix"],
        isolation=READ_COMMITTED if isolation == "read_committed" else READ_UNCOMMITTED,
        fail_on_data_loss=options["failOnDataLoss"],
        call_timeout_s=options["kafka.default.api.timeout.ms"] / 1000,
        request_timeout_s=options["kafka.request.timeout.ms"] / 1000,
        poll_timeout_s=options["kafkaConsumer.pollTimeoutMs"] / 1000,
        fetch_max_bytes=min(fetch_max, options["kafka.max.partition.fetch.bytes"] or fetch_max, INT_MAX),
        fetch_min_bytes=options["kafka.fetch.min.bytes"],
        fetch_max_wait_ms=options["kafka.fetch.max.wait.ms"],
        max_batch_bytes=options["maxBatchBytes"],
        key=None if options["keyEquals"] is None else options["keyEquals"].encode(),
        timestamps=options["timestampRange"],
        value_format=options["valueFormat"],
        read_from=options["readFrom"],
    )


def cutting(options: Mapping[str, Any]) -> Cutting:
    """How ranges are cut into splits."""
    return Cutting(options["targetPartitionBytes"], options["minPartitions"], options["maxRecordsPerPartition"])


def limits(options: Mapping[str, Any]) -> Limits:
    """How far a micro-batch goes. Raises ConfigError for a least number above the greatest."""
    most, least = options["maxOffsetsPerTrigger"], options["minOffsetsPerTrigger"]
    if most is not None and least is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most})")
    return Limits(most, options["maxBytesPerTrigger"], least, options["maxTriggerDelay"])
