"""Settings of what direct readers of sealed segments may hold back (DescribeSegments)."""

from __future__ import annotations

from duramen.config.setting import Setting

SEGMENT_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "duramen.segment.lease.ms.max",
        "int",
        "600000",
        "Longest time for which a reader of sealed segments may keep them from being deleted or compacted before it "
        "has to ask again. 0: no leases.",
        unit="ms",
        low=0,
    ),
    Setting(
        "duramen.reserve.bytes",
        "long",
        str(16 << 20),
        "Room that each log directory keeps on its disk for what makes room when there is none: deletions, a shorter "
        "retention, a stop, a start. 0: none. A batch of more than half of it is refused where there is not room for "
        "both.",
        unit="bytes",
        low=0,
    ),
    Setting(
        "duramen.segment.lease.bytes.max",
        "long",
        str(1 << 30),
        "Bytes of a partition that a lease keeps although retention would delete them; one that keeps more is broken.",
        unit="bytes",
        low=0,
    ),
)
