"""Settings of Kafka's Java consumer as they come to the source through `kafka.*`: honoured, without effect, or refused.

Spark hands such an option to the Java client, which warns of names it does not know. Here each one that people set is
declared, because a setting that is silently dropped is a promise broken.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from duramen.spark.options import option_types as kind


class KafkaSetting(NamedTuple):
    """One setting, named without `kafka.`; `inert` and `refused` are reasons."""

    name: str
    parse: kind.Parse = kind.text
    default: Any = None
    meaning: str = ""
    inert: str = ""
    refused: str = ""

    @property
    def without(self) -> str:
        """Why it does nothing, if it does nothing."""
        return self.inert or self.refused


_NO_GROUP = "the source takes part in no consumer group"
_NO_POLL = "batches are fetched whole; there is no poll loop"
_COLUMNS = "keys and values are binary columns; decode them with DataFrame operations"
_NO_METRICS = "no Java client runs, so it has no metrics to report"
_RESTS = "the client chooses its rests"
_BUFFERS = "the system sizes socket buffers"

INERT: Final = {
    "retry.backoff.ms": _RESTS,
    "retry.backoff.max.ms": _RESTS,
    "reconnect.backoff.ms": _RESTS,
    "reconnect.backoff.max.ms": _RESTS,
    "connections.max.idle.ms": "connections end with the task that opened them",
    "socket.connection.setup.timeout.ms": "a node has five seconds to take a connection, and is left for another one",
    "socket.connection.setup.timeout.max.ms": "a node has five seconds to take a connection",
    "metadata.max.age.ms": "metadata is asked for at each planning",
    "metadata.max.idle.ms": "metadata is asked for at each planning",
    "metadata.recovery.strategy": "the nodes to ask first are asked again where no other answers",
    "metadata.recovery.rebootstrap.trigger.ms": "the nodes to ask first are asked again where no other answers",
    "client.dns.lookup": "all addresses of a name are tried",
    "receive.buffer.bytes": _BUFFERS,
    "send.buffer.bytes": _BUFFERS,
    "enable.metrics.push": _NO_METRICS,
    "security.providers": "no Java client runs, so it has no providers",
}
"""Settings of Kafka's consumer and producer alike that have nothing to act on, by name; why."""

KAFKA_SETTINGS: Final[tuple[KafkaSetting, ...]] = (
    KafkaSetting("bootstrap.servers", meaning="the nodes to ask first, as host:port,host:port"),
    KafkaSetting("client.id", meaning="how nodes name this client in their log and quotas"),
    KafkaSetting("security.protocol", kind.plaintext_only, "PLAINTEXT", "PLAINTEXT only"),
    KafkaSetting(
        "request.timeout.ms", kind.at_least(1, kind.INT_MAX), 15_000, "when a node that does not answer is asked again"
    ),
    KafkaSetting(
        "default.api.timeout.ms",
        kind.at_least(1, kind.INT_MAX),
        60_000,
        "the limit of one call of the driver, retries included",
    ),
    KafkaSetting("group.id", meaning="used as client id; there is no consumer group"),
    KafkaSetting(
        "isolation.level",
        kind.one_of("read_committed", "read_uncommitted"),
        None,
        "the same as `isolation`, and before it",
    ),
    KafkaSetting("fetch.max.bytes", kind.size, 32 << 20, "most bytes of one fetch"),
    KafkaSetting("max.partition.fetch.bytes", kind.size, None, "the same; the smaller one counts"),
    KafkaSetting("fetch.min.bytes", kind.at_least(1, kind.INT_MAX), 1, "for how many bytes a node waits"),
    KafkaSetting("fetch.max.wait.ms", kind.at_least(0, kind.INT_MAX), 500, "and how long"),
    KafkaSetting("check.crcs", kind.one_of("true"), "true", "always: it cannot be turned off"),
    # Refused by Spark's own source and sink too.
    KafkaSetting("auto.offset.reset", refused="where to start is said by startingOffsets; Spark keeps the offsets"),
    KafkaSetting("key.deserializer", refused=_COLUMNS),
    KafkaSetting("value.deserializer", refused=_COLUMNS),
    KafkaSetting("enable.auto.commit", refused="offsets live in the query's checkpoint"),
    KafkaSetting("interceptor.classes", refused="interceptors are Java classes, and no Java client runs"),
    # Nothing to act on.
    *(KafkaSetting(name, inert=_NO_GROUP) for name in ("group.instance.id", "group.protocol", "group.remote.assignor")),
    *(KafkaSetting(name, inert=_NO_GROUP) for name in ("session.timeout.ms", "heartbeat.interval.ms")),
    *(KafkaSetting(name, inert=_NO_GROUP) for name in ("partition.assignment.strategy", "auto.commit.interval.ms")),
    *(KafkaSetting(name, inert=_NO_POLL) for name in ("max.poll.records", "max.poll.interval.ms")),
    *(KafkaSetting(name, inert=reason) for name, reason in INERT.items()),
    KafkaSetting("exclude.internal.topics", inert="subscribePattern never matches internal topics"),
    KafkaSetting("allow.auto.create.topics", inert="reading never creates a topic"),
    KafkaSetting("client.rack", inert="reads go to the leader"),
)

REFUSED_PREFIXES: Final = {
    "ssl.": "only PLAINTEXT is spoken; TLS is not there yet",
    "sasl.": "only PLAINTEXT is spoken; SASL is not there yet",
}
INERT_PREFIXES: Final = {"metric": _NO_METRICS, "auto.include.jmx": _NO_METRICS}
