"""Settings of the staged commit of sinks (docs/protocol.md)."""

from __future__ import annotations

from duramen.config.setting import PARTITIONS_MAX, Setting

SINK_SETTINGS = (
    Setting(
        "duramen.sink.topic.num.partitions",
        "int",
        "4",
        "Partitions of __duramen_sink_state and of __duramen_staging; counts when they are made.",
        low=1,
        high=PARTITIONS_MAX,
    ),
    Setting(
        "duramen.sink.staging.retention.ms",
        "long",
        "86400000",
        "How long records that a sink staged and did not commit are kept, from the last ones of their batch on. "
        "Committed ones are kept until they are where they belong.",
        unit="ms",
        low=60_000,
    ),
    Setting(
        "duramen.sink.ephemeral.retention.ms",
        "long",
        "604800000",
        "How long a sink of a single job is remembered after its last claim or commit.",
        unit="ms",
        low=60_000,
    ),
    Setting(
        "duramen.sink.staged.max.bytes",
        "int",
        "16777216",
        "Most bytes that one request may stage for one partition.",
        unit="bytes",
        low=65_536,
    ),
)
