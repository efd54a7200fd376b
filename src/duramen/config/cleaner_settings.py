"""The broker settings of compaction; names and defaults are Kafka's (4.3.1)."""

from __future__ import annotations

from duramen.config.setting import LONG_MAX, Setting

_DYNAMIC = "cluster-wide"

CLEANER_SETTINGS = (
    Setting(
        "log.cleaner.enable",
        "boolean",
        "true",
        "Whether compacted topics are compacted.",
    ),
    Setting(
        "log.cleaner.threads",
        "int",
        "1",
        "Compaction passes at a time. They share one processor with everything else.",
        low=0,
        update=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        "long",
        "134217728",
        "Memory for the maps of last offsets, shared by all passes: 24 bytes a key. What does not fit waits for "
        "further passes.",
        unit="bytes",
        low=1,
        update=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.io.buffer.load.factor",
        "double",
        "0.9",
        "How full the map of last offsets may get; more keys fit, and each takes longer to find.",
        low=0.0,
        high=1.0,
        update=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.io.buffer.size",
        "int",
        "524288",
        "Memory for reading and writing, shared by all passes; half of a pass's part is read at a time.",
        unit="bytes",
        low=0,
        update=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        "double",
        "1.7976931348623157E308",
        "Bytes a second that all passes together read and write at most.",
        unit="bytes",
        update=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.backoff.ms",
        "long",
        "15000",
        "How long to wait before looking again when nothing is dirty enough to be compacted.",
        unit="ms",
        low=0,
        update=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.delete.retention.ms",
        "long",
        "86400000",
        "How long a tombstone or a transaction marker stays after a pass removed what it deletes or ends.",
        unit="ms",
        low=0,
        update=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.min.cleanable.ratio",
        "double",
        "0.5",
        "Share of a log's bytes that must be new since its last pass before the next one.",
        low=0.0,
        high=1.0,
        update=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.min.compaction.lag.ms",
        "long",
        "0",
        "Age that a segment's youngest record must have before the segment is compacted.",
        unit="ms",
        low=0,
        update=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.max.compaction.lag.ms",
        "long",
        str(LONG_MAX),
        "Age of a record that was not compacted at which a pass is due whatever the ratio; segments are rolled at "
        "this age, too.",
        unit="ms",
        low=1,
        update=_DYNAMIC,
    ),
)
