"""The settings of a topic, each with the broker setting its default comes from."""

from __future__ import annotations

from duramen.config.ignored import INERT_BROKER_SETTINGS
from duramen.config.setting import LONG_MAX, Setting
from duramen.config.supported import SERVED_BROKER_SETTINGS

_BROKER = {setting.name: setting for setting in SERVED_BROKER_SETTINGS + INERT_BROKER_SETTINGS}
_MINUTE, _HOUR = 60_000, 3_600_000


def _from_broker(name: str, broker_name: str, *others: tuple[str, int], **changes: float | str | None) -> Setting:
    """A topic setting that a broker setting gives its default, type, bounds and description."""
    source = _BROKER[broker_name]
    default = changes.get("default", source.default)
    low = changes.get("low", source.low)
    return Setting(
        name,
        source.kind,
        None if default is None else str(default),
        source.doc.split("; log.")[0].rstrip(".") + ".",
        unit=source.unit,
        low=low if isinstance(low, int | float) else None,
        high=source.high,
        also=source.also,
        allowed=source.allowed,
        update="cluster-wide",
        fallbacks=((broker_name, 1), *others),
        inert=source.inert,
    )


def _inert(name: str, kind: str, default: str, reason: str, low: int | None = None) -> Setting:
    doc = f"Accepted for Kafka's sake, without effect: {reason}."
    return Setting(name, kind, default, doc, low=low, inert=reason, update="cluster-wide")


_NOT_THROTTLED = "what replicas fetch is not throttled in this release"
_NO_TIER = "there is no remote tier"

TOPIC_SETTINGS: tuple[Setting, ...] = (
    _from_broker("cleanup.policy", "log.cleanup.policy"),
    _from_broker("compression.gzip.level", "compression.gzip.level"),
    _from_broker("compression.lz4.level", "compression.lz4.level"),
    _from_broker("compression.type", "compression.type"),
    _from_broker("compression.zstd.level", "compression.zstd.level"),
    _from_broker("delete.retention.ms", "log.cleaner.delete.retention.ms"),
    _from_broker("duramen.ack.durability", "duramen.ack.durability"),
    Setting(
        "duramen.stream.content.type",
        "string",
        "",
        "Media type of the topic as a stream over HTTP; empty: application/octet-stream. Set when a gateway makes it.",
        update="cluster-wide",
    ),
    Setting(
        "duramen.stream.expires.at.ms",
        "long",
        "-1",
        "When (since 1970) the stream ends for readers and writers over HTTP; -1: never. With duramen.stream.ttl.ms a "
        "gateway moves it on at reads and writes.",
        unit="ms",
        low=-1,
        update="cluster-wide",
    ),
    Setting(
        "duramen.stream.ttl.ms",
        "long",
        "-1",
        "How long the stream lives over HTTP after it was last read or written; -1: no such limit.",
        unit="ms",
        low=-1,
        update="cluster-wide",
    ),
    Setting(
        "duramen.txid",
        "string",
        "none",
        "Whether the timestamps of records are transaction ids that never step back: the application's, which are "
        "refused if they do, or assigned by the leader, which takes its clock.",
        allowed=("none", "application", "assigned"),
        update="cluster-wide",
    ),
    Setting(
        "duramen.writer.exclusive",
        "boolean",
        "false",
        "Whether a partition takes records of one writer alone, the one that was opened last (OpenWriter, "
        "docs/protocol.md); all others are fenced.",
        update="cluster-wide",
    ),
    Setting(
        "duramen.writer.expiration.ms",
        "long",
        "604800000",
        "How long a named writer that writes nothing is known, so that a batch it sends again is found; instead of "
        "producer.id.expiration.ms.",
        unit="ms",
        low=1,
        update="cluster-wide",
    ),
    _from_broker("file.delete.delay.ms", "log.segment.delete.delay.ms"),
    _from_broker("flush.messages", "log.flush.interval.messages"),
    _from_broker(
        "flush.ms", "log.flush.interval.ms", ("log.flush.scheduler.interval.ms", 1), default=str(LONG_MAX), low=0
    ),
    _inert("follower.replication.throttled.replicas", "list", "", _NOT_THROTTLED),
    _from_broker("index.interval.bytes", "log.index.interval.bytes"),
    Setting(
        "internal.segment.bytes",
        "int",
        None,
        "Segment size below segment.bytes' lower bound, for tests.",
        unit="bytes",
        low=1,
        internal=True,
        update="cluster-wide",
    ),
    _inert("leader.replication.throttled.replicas", "list", "", _NOT_THROTTLED),
    _from_broker("local.retention.bytes", "log.local.retention.bytes"),
    _from_broker("local.retention.ms", "log.local.retention.ms"),
    _from_broker("max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    _from_broker("max.message.bytes", "message.max.bytes"),
    _from_broker("message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms"),
    _from_broker("message.timestamp.before.max.ms", "log.message.timestamp.before.max.ms"),
    _from_broker("message.timestamp.type", "log.message.timestamp.type"),
    _from_broker("min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio"),
    _from_broker("min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms"),
    _from_broker("min.insync.replicas", "min.insync.replicas"),
    _from_broker("preallocate", "log.preallocate"),
    _inert("remote.log.copy.disable", "boolean", "false", _NO_TIER),
    _inert("remote.log.delete.on.disable", "boolean", "false", _NO_TIER),
    _inert("remote.storage.enable", "boolean", "false", _NO_TIER),
    _from_broker("retention.bytes", "log.retention.bytes"),
    _from_broker(
        "retention.ms",
        "log.retention.ms",
        ("log.retention.minutes", _MINUTE),
        ("log.retention.hours", _HOUR),
        default="604800000",
        low=-1,
    ),
    _from_broker("segment.bytes", "log.segment.bytes"),
    _from_broker("segment.index.bytes", "log.index.size.max.bytes"),
    _from_broker("segment.jitter.ms", "log.roll.jitter.ms", ("log.roll.jitter.hours", _HOUR), default="0", low=0),
    _from_broker("segment.ms", "log.roll.ms", ("log.roll.hours", _HOUR), default="604800000", low=1),
    _from_broker("unclean.leader.election.enable", "unclean.leader.election.enable"),
)
