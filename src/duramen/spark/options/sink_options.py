"""What a user may set on `df.write` and `df.writeStream`, parsed once on the driver.

Names are those of Spark's Kafka sink, so that a job is ported by changing the format; what cannot be honoured is
refused by its name with the reason. Spark hands option names over in lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from duramen.errors import ConfigError
from duramen.spark.options.kafka_settings import INERT as INERT_EVERYWHERE
from duramen.spark.options.kafka_settings import INERT_PREFIXES as METRICS
from duramen.spark.options.kafka_settings import REFUSED_PREFIXES as SECURITY
from duramen.spark.options.option_types import INT_MAX, MOST
from duramen.spark.options.table_entries import NONE_CAME
from duramen.wire.compression import NAMES as CODECS

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"

BATCH_BYTES: Final = 1_000_000
"""Records of one batch before compression; Kafka's default of `max.message.bytes` is 1,048,588."""


class SinkOption(NamedTuple):
    """One option that the sink honours. default and meaning as the documents show them."""

    name: str
    default: str
    meaning: str


OPTIONS: Final = (
    SinkOption("kafka.bootstrap.servers", "", "the nodes to ask first, as host:port,host:port"),
    SinkOption("bootstrap.servers", "", "the same as `kafka.bootstrap.servers`"),
    SinkOption("topic", "", "where all rows go; without it each row's column `topic` says"),
    SinkOption("delivery", "`exactly-once`", "or `at-least-once`"),
    SinkOption("sinkId", "of the query", "names the sink over restarts and reruns, in 1 to 249 bytes"),
    SinkOption("batchId", "", "`df.write`, with `sinkId`: which batch of the sink this is; numbers must grow"),
    SinkOption("compression", "`none`", "or `gzip`, `snappy`, `lz4`, `zstd`; before `kafka.compression.type`"),
    SinkOption("includeHeaders", "`true`", "taken; headers are written where the table has the column `headers`"),
    SinkOption("checkpointLocation", "", "Spark's own; the sink reads the query's id there"),
    SinkOption("queryName", "", "Spark's own"),
    SinkOption("kafka.client.id", "`duramen-spark`", "how nodes name this client in their log and quotas"),
    SinkOption("kafka.compression.type", "`none`", "the same as `compression`"),
    SinkOption("kafka.batch.size", "`1000000`", "bytes of a batch's records before compression, at most"),
    SinkOption("kafka.request.timeout.ms", "`15000`", "when a node that does not answer is asked again"),
    SinkOption("kafka.delivery.timeout.ms", "`120000`", "when a task gives up, or a commit that is not known to hold"),
    SinkOption("kafka.linger.ms", "`0`", "any value holds: a task never waits for more rows"),
    SinkOption("kafka.acks", "`all`", "nothing else: rows are written when they are durable"),
    SinkOption("kafka.enable.idempotence", "`true`", "nothing else"),
    SinkOption("kafka.partitioner.ignore.keys", "`false`", "nothing else: rows of one key meet in one partition"),
    SinkOption("kafka.security.protocol", "`PLAINTEXT`", "nothing else yet"),
)

NAMES: Final = {option.name.lower(): option.name for option in OPTIONS}
"""Every option the sink honours, by its name in lower case."""

REFUSED: Final = {
    "kafka.key.serializer": "keys are written as the bytes they are",
    "kafka.value.serializer": "values are written as the bytes they are",
    "kafka.partitioner.class": "Kafka's default partitioner is used; set the column `partition` for another choice",
    "kafka.transactional.id": "a batch is committed by the staged commit, see the option delivery",
    "kafka.retries": "the sink tries again until kafka.delivery.timeout.ms",
    "kafka.max.in.flight.requests.per.connection": "a task waits for each answer",
    "kafka.max.request.size": "the topic's max.message.bytes bounds a record",
    "kafka.interceptor.classes": "there is no Java code to load",
    "kafka.transaction.timeout.ms": "what is staged waits for its commit for duramen.sink.staging.retention.ms",
    "kafka.transaction.two.phase.commit.enable": "a batch is committed by the staged commit, see the option delivery",
}
_LEVEL: Final = "each codec has the level that is Kafka's default"
_STICKY: Final = "rows without a key go to all partitions in turn"
INERT: Final = {
    "kafka.buffer.memory": "a task holds 16 MiB of rows and 32 MiB of batches",
    "kafka.max.block.ms": "a task waits until kafka.delivery.timeout.ms",
    "kafka.compression.gzip.level": _LEVEL,
    "kafka.compression.lz4.level": _LEVEL,
    "kafka.compression.zstd.level": _LEVEL,
    "kafka.partitioner.adaptive.partitioning.enable": _STICKY,
    "kafka.partitioner.availability.timeout.ms": _STICKY,
    **{f"kafka.{name}": reason for name, reason in INERT_EVERYWHERE.items()},
}
"""Settings of Kafka's producer that change nothing here, by name in lower case; why. A stream plans each micro-batch
anew, so only `df.write` warns of them."""
INERT_PREFIXES: Final = {f"kafka.{prefix}": reason for prefix, reason in METRICS.items()}
REFUSED_PREFIXES: Final = {f"kafka.{prefix}": reason for prefix, reason in SECURITY.items()}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one query or job. Plain values: they travel to the executors."""

    bootstrap: str
    topic: str | None = None
    """Where all rows go; None: each row's column `topic` says it."""
    delivery: str = EXACTLY_ONCE
    sink_id: str | None = None
    batch_id: int | None = None
    codec: int = 0
    batch_bytes: int = BATCH_BYTES
    client_id: str = "duramen-spark"
    request_timeout_s: float = 15.0
    delivery_timeout_s: float = 120.0
    checkpoint: str | None = None
    """Where a streaming query keeps its checkpoint, as the user wrote it."""


def parse(given: Mapping[str, str]) -> SinkOptions:
    """The options as values; ConfigError for one that is unknown, missing, ill-typed or cannot be honoured."""
    options = {name.lower(): value for name, value in given.items()}
    for name in options:
        reasons = [REFUSED.get(name), *(why for prefix, why in REFUSED_PREFIXES.items() if name.startswith(prefix))]
        for reason in filter(None, reasons):
            raise ConfigError(f"option {name} is not supported by the sink: {reason}")
        if name not in NAMES and not why_inert(name):
            raise ConfigError(f"unknown option {name} for writing; there are {', '.join(sorted(NAMES.values()))}")
    _check_fixed(options)
    bootstrap = options.get("kafka.bootstrap.servers") or options.get("bootstrap.servers")
    if not bootstrap:
        why = "" if given else NONE_CAME
        raise ConfigError(
            f"option kafka.bootstrap.servers is missing: the addresses of the cluster, host:port,...{why}"
        )
    sink_id = options.get("sinkid")
    batch_id = _number(options, "batchid", None, low=0)
    _check_sink_id(sink_id)
    return SinkOptions(
        bootstrap=bootstrap,
        topic=options.get("topic"),
        delivery=_choice(options, "delivery", EXACTLY_ONCE, (EXACTLY_ONCE, AT_LEAST_ONCE)),
        sink_id=sink_id,
        batch_id=batch_id,
        codec=_codec(options),
        batch_bytes=_number(options, "kafka.batch.size", BATCH_BYTES, low=1) or BATCH_BYTES,
        client_id=options.get("kafka.client.id", "duramen-spark"),
        request_timeout_s=(_number(options, "kafka.request.timeout.ms", 15_000, low=1) or 0) / 1000,
        delivery_timeout_s=(_number(options, "kafka.delivery.timeout.ms", 120_000, low=1) or 0) / 1000,
        checkpoint=options.get("checkpointlocation"),
    )


def why_inert(name: str) -> str:
    """Why an option, by its name in lower case, has no effect; nothing where it has one, or is none."""
    by_prefix = (why for prefix, why in INERT_PREFIXES.items() if name.startswith(prefix))
    return INERT.get(name) or next(by_prefix, "")


def _check_fixed(options: Mapping[str, str]) -> None:
    """Options that have one possible value here."""
    _choice(options, "kafka.acks", "all", ("all", "-1"), why="rows are written when they are durable, not before")
    _choice(options, "kafka.enable.idempotence", "true", ("true",), why="a batch that is sent again is not doubled")
    _choice(options, "kafka.partitioner.ignore.keys", "false", ("false",), why="a key decides where its rows go")
    _choice(options, "kafka.security.protocol", "PLAINTEXT", ("PLAINTEXT",), why="the client speaks no other yet")
    _choice(options, "includeheaders", "true", ("true", "false"))
    _number(options, "kafka.linger.ms", 0, low=0)  # a task never waits for more rows, which is within any limit


def _check_sink_id(sink_id: str | None) -> None:
    if sink_id is not None and not 1 <= len(sink_id.encode()) <= 249:
        raise ConfigError("option sinkId must be 1 to 249 bytes of UTF-8")


def _codec(options: Mapping[str, str]) -> int:
    name = "compression" if "compression" in options else "kafka.compression.type"
    return CODECS.index(_choice(options, name, "none", CODECS))


def _choice(options: Mapping[str, str], name: str, default: str, allowed: tuple[str, ...], why: str = "") -> str:
    value = options.get(name, default)
    for choice in allowed:
        if value.lower() == choice.lower():
            return choice
    reason = f": {why}" if why else ""
    raise ConfigError(f"option {NAMES[name]}={value} is not possible, only {' or '.join(allowed)}{reason}")


def _number(options: Mapping[str, str], name: str, default: int | None, *, low: int) -> int | None:
    text = options.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"option {NAMES[name]}={text} is not a number") from None
    if value < low:
        raise ConfigError(f"option {NAMES[name]}={text} must be at least {low}")
    if value > (most := INT_MAX if name.startswith("kafka.") else MOST):
        raise ConfigError(f"option {NAMES[name]}={text} must be at most {most}")
    return value
