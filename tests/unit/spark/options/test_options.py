"""Every option that Spark documents for its Kafka source: honoured or refused by name; whatever else is unknown."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from duramen.errors import ConfigError
from duramen.spark.options import sink_options
from duramen.spark.options.kafka_settings import KAFKA_SETTINGS
from duramen.spark.options.option_table import lines
from duramen.spark.options.options import BATCH, OPTIONS, STREAM, parse
from duramen.spark.source.settings import settings

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
PAGE = Path(__file__).parents[4] / "docs" / "spark.md"

# The tables of Spark 4's "Structured Streaming + Kafka Integration Guide", source side: a valid text for each name.
DOCUMENTED: dict[str, tuple[str, Any]] = {
    "assign": ('{"a":[1,0]}', {"a": [0, 1]}),
    "subscribe": ("a, b,a", ["a", "b"]),
    "subscribePattern": (" a.* ", "a.*"),
    "startingTimestamp": ("1000", 1000),
    "startingOffsetsByTimestamp": ('{"a":{"0":1000}}', {"a": {0: 1000}}),
    "startingOffsets": ('{"a":{"0":23,"1":-2}}', {"a": {0: 23, 1: -2}}),
    "endingTimestamp": ("1000", 1000),
    "endingOffsetsByTimestamp": ('{"a":{"0":1000}}', {"a": {0: 1000}}),
    "endingOffsets": ("latest", -1),
    "failOnDataLoss": ("FALSE", False),
    "kafkaConsumer.pollTimeoutMs": ("500", 500),
    "fetchOffset.numRetries": ("0", 0),
    "fetchOffset.retryIntervalMs": ("7", 7),
    "maxOffsetsPerTrigger": ("100", 100),
    "minOffsetsPerTrigger": ("10", 10),
    "maxTriggerDelay": ("15m", 900_000),
    "minPartitions": ("6", 6),
    "maxRecordsPerPartition": ("1000", 1000),
    "groupIdPrefix": ("mine", "mine"),
    "includeHeaders": ("true", True),
    "startingOffsetsByTimestampStrategy": ("Latest", "latest"),
}
# The sink's side of the same guide: a text that is taken, and where it is found.
DOCUMENTED_FOR_SINK: dict[str, tuple[str, str, Any]] = {
    "kafka.bootstrap.servers": ("h:1", "bootstrap", "h:1"),
    "topic": ("orders", "topic", "orders"),
    "includeHeaders": ("true", "topic", None),
    "kafka.client.id": ("mine", "client_id", "mine"),
    "kafka.compression.type": ("zstd", "codec", 4),
    "kafka.batch.size": ("1000", "batch_bytes", 1000),
    "kafka.request.timeout.ms": ("1500", "request_timeout_s", 1.5),
    "kafka.delivery.timeout.ms": ("2500", "delivery_timeout_s", 2.5),
}
REFUSED_BY_SPARK = [
    "auto.offset.reset",
    "key.deserializer",
    "value.deserializer",
    "enable.auto.commit",
    "interceptor.classes",
]


def query_of(name: str) -> str:
    return STREAM if next(option for option in OPTIONS if option.name == name).queries == (STREAM,) else BATCH


@pytest.mark.parametrize("name", DOCUMENTED)
def test_an_option_of_sparks_kafka_source_is_taken_under_its_name(name: str) -> None:
    text, value = DOCUMENTED[name]
    for spelled in (name, name.lower()):  # Spark hands names over in lower case
        assert parse({**SERVERS, spelled: text}, query_of(name))[name] == value


@pytest.mark.parametrize("name", DOCUMENTED_FOR_SINK)
def test_an_option_of_sparks_kafka_sink_is_taken_under_its_name(name: str) -> None:
    text, field, value = DOCUMENTED_FOR_SINK[name]
    for spelled in (name, name.lower()):
        assert getattr(sink_options.parse({**SERVERS, spelled: text}), field) == value


@pytest.mark.parametrize("name", [*sink_options.REFUSED, "kafka.sasl.mechanism", "kafka.ssl.truststore.location"])
def test_what_the_sink_cannot_honour_is_refused_by_name_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{re.escape(name)} is not supported by the sink: .{{10,}}"):
        sink_options.parse({**SERVERS, name: "x"})


# Kafka 4's `ConsumerConfig` and `ProducerConfig`, without the few that are for brokers' and Streams' own use.
OF_CONSUMERS = """
allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter auto.offset.reset bootstrap.servers
check.crcs client.dns.lookup client.id client.rack connections.max.idle.ms default.api.timeout.ms enable.auto.commit
enable.metrics.push exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id
group.protocol group.remote.assignor heartbeat.interval.ms interceptor.classes isolation.level key.deserializer
max.partition.fetch.bytes max.poll.interval.ms max.poll.records metadata.max.age.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
metrics.recording.level metrics.sample.window.ms partition.assignment.strategy receive.buffer.bytes
reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retry.backoff.max.ms retry.backoff.ms sasl.mechanism
security.protocol security.providers send.buffer.bytes session.timeout.ms socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms ssl.protocol value.deserializer
"""
OF_PRODUCERS = """
acks auto.include.jmx.reporter batch.size bootstrap.servers buffer.memory client.dns.lookup client.id
compression.gzip.level compression.lz4.level compression.type compression.zstd.level connections.max.idle.ms
delivery.timeout.ms enable.idempotence enable.metrics.push interceptor.classes key.serializer linger.ms max.block.ms
max.in.flight.requests.per.connection max.request.size metadata.max.age.ms metadata.max.idle.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
metrics.recording.level metrics.sample.window.ms partitioner.adaptive.partitioning.enable
partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys receive.buffer.bytes
reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
sasl.mechanism security.protocol security.providers send.buffer.bytes socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms ssl.protocol transaction.timeout.ms transaction.two.phase.commit.enable
transactional.id value.serializer
"""


@pytest.mark.parametrize(
    ("take", "names"), [(lambda given: parse(given, BATCH), OF_CONSUMERS), (sink_options.parse, OF_PRODUCERS)]
)
def test_every_setting_of_kafkas_java_client_is_known(take: Any, names: str) -> None:
    """A job that set `kafka.buffer.memory` or `kafka.max.block.ms` could not be ported by changing the format."""
    for name in names.split():
        assert "unknown" not in said_of(take, f"kafka.{name}")


def said_of(take: Any, setting: str) -> str:
    """What an error says that names the setting; nothing where it is taken."""
    try:
        take({**SERVERS, setting: "7"})
    except ConfigError as refusal:
        return str(refusal) if setting in str(refusal) else f"of an unknown setting: {refusal}"
    return ""


def test_keys_decide_where_rows_go() -> None:
    assert sink_options.parse({**SERVERS, "kafka.partitioner.ignore.keys": "False"})
    with pytest.raises(ConfigError, match=r"ignore\.keys=true is not possible.*a key decides"):
        sink_options.parse({**SERVERS, "kafka.partitioner.ignore.keys": "true"})


@pytest.mark.parametrize("option", [option.name for option in sink_options.OPTIONS])
def test_every_option_of_the_sink_is_known(option: str) -> None:
    taken = {"delivery": "at-least-once", "compression": "gzip", "kafka.compression.type": "gzip", "kafka.acks": "-1"}
    taken |= {
        "includeHeaders": "false",
        "kafka.partitioner.ignore.keys": "false",
        "kafka.enable.idempotence": "true",
        "kafka.security.protocol": "plaintext",
    }
    sink_options.parse({**SERVERS, option: taken.get(option, "7")})
    with pytest.raises(ConfigError, match="unknown option"):
        sink_options.parse({**SERVERS, f"{option}x": "7"})


@pytest.mark.parametrize("name", [name for name in DOCUMENTED if name not in ("subscribe", "groupIdPrefix")])
def test_rubbish_is_refused_naming_the_option(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(name)):
        parse({**SERVERS, name: "(rub\\bish"}, query_of(name))


@pytest.mark.parametrize("name", REFUSED_BY_SPARK)
def test_settings_that_spark_refuses_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError, match=f"kafka.{name} is refused: .{{10,}}"):
        parse({**SERVERS, f"kafka.{name}": "x"}, BATCH)


@pytest.mark.parametrize("setting", [each.name for each in KAFKA_SETTINGS if each.inert])
def test_a_setting_without_effect_says_so(setting: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parse({**SERVERS, f"kafka.{setting}": "1"}, BATCH)
    assert f"kafka.{setting} has no effect" in caplog.text


@pytest.mark.parametrize("name", ["kafka.security.protocol", "kafka.sasl.mechanism", "kafka.ssl.truststore.location"])
def test_security_that_is_not_spoken_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(name)):
        parse({**SERVERS, name: "SASL_SSL"}, BATCH)


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("bootstrap.server", "bootstrap.servers"),
        ("startingOffset", "startingOffsets"),
        ("maxBytePerTrigger", "maxBytesPerTrigger"),
        ("kafka.fetch.maxbytes", "kafka.fetch.max.bytes"),
    ],
)
def test_an_unknown_option_is_an_error_that_names_the_nearest(given: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown option {re.escape(given)}; the nearest is {re.escape(nearest)}"):
        parse({**SERVERS, given: "1"}, BATCH)


def test_an_option_of_the_sink_is_named_as_such() -> None:
    with pytest.raises(ConfigError, match="sinkId is one of the sink"):
        parse({**SERVERS, "sinkId": "x"}, BATCH)


def test_options_of_one_kind_of_query_are_refused_in_the_other() -> None:
    with pytest.raises(ConfigError, match="endingOffsets has no meaning in a streaming query"):
        parse({**SERVERS, "endingOffsets": "latest"}, STREAM)
    with pytest.raises(ConfigError, match="maxOffsetsPerTrigger has no meaning in a batch query"):
        parse({**SERVERS, "maxOffsetsPerTrigger": "5"}, BATCH)
    with pytest.raises(ConfigError, match="untilOffsets has no meaning in a batch query"):
        parse({**SERVERS, "untilOffsets": '{"a":{"0":5}}'}, BATCH)
    for text in ("latest", '{"a":{"0":-1}}'):
        with pytest.raises(ConfigError, match="untilOffsets must be JSON as"):
            parse({**SERVERS, "untilOffsets": text}, STREAM)


def test_the_servers_have_an_alias_and_must_be_there() -> None:
    assert parse({"bootstrap.servers": "h:1"}, BATCH)["kafka.bootstrap.servers"] == "h:1"
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is missing"):
        parse({}, BATCH)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0,10", (0, 10)),
        ("2026-01-01T00:00:00Z,2026-01-02", (1767225600000, 1767312000000)),
        ("2026-01-01T01:00:00+01:00,", (1767225600000, 2**63 - 1)),
        (",5", (-(2**63), 5)),
    ],
)
def test_a_range_of_time(text: str, value: tuple[int, int]) -> None:
    assert parse({**SERVERS, "timestampRange": text}, BATCH)["timestampRange"] == value


@pytest.mark.parametrize("text", ["", ",", "5", "10,5", "monday,tuesday"])
def test_what_is_no_range_of_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="timestampRange"):
        parse({**SERVERS, "timestampRange": text}, BATCH)


@pytest.mark.parametrize(("text", "value"), [("64m", 64 << 20), ("1 GiB", 1 << 30), ("500", 500), ("2kb", 2048)])
def test_sizes(text: str, value: int) -> None:
    assert parse({**SERVERS, "targetPartitionBytes": text}, BATCH)["targetPartitionBytes"] == value


def test_the_tables_in_the_docs_are_what_is_declared() -> None:
    table = "\n".join(lines())
    for name in [option.name for option in OPTIONS] + [option.name for option in sink_options.OPTIONS]:
        assert f"| `{name}` |" in table
    for name in sink_options.REFUSED:
        assert f"| `{name}` | refused | " in table
    assert table in PAGE.read_text(encoding="utf-8"), "print them anew: python -m duramen.spark.options.option_table"


HUGE = str(10**30)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("startingTimestamp", HUGE, "a whole number from 0 to 9223372036854775807"),
        ("endingTimestamp", str(2**63), "a whole number from 0 to"),
        ("startingOffsetsByTimestamp", f'{{"a":{{"0":{HUGE}}}}}', "JSON as"),
        ("endingOffsets", f'{{"a":{{"0":{HUGE}}}}}', "earliest, latest, or JSON as"),
        ("maxOffsetsPerTrigger", HUGE, "a whole number from 1 to"),
        ("maxBytesPerTrigger", "99999999t", "a size above 0"),
        ("kafka.request.timeout.ms", str(2**31), "a whole number from 1 to 2147483647"),
        ("kafka.fetch.min.bytes", HUGE, "a whole number from 1 to 2147483647"),
        ("kafka.fetch.max.wait.ms", "-1", "a whole number from 0 to 2147483647"),
        ("timestampRange", "--5,", "moments in milliseconds"),
    ],
)
def test_numbers_that_nothing_has_room_for_are_refused_by_name(name: str, text: str, expected: str) -> None:
    """They were sent, and failed as a request that cannot be encoded."""
    with pytest.raises(ConfigError, match=f"option {re.escape(name)} must be {re.escape(expected)}"):
        parse({**SERVERS, name: text}, "")
    if name.startswith("kafka.request"):
        with pytest.raises(ConfigError, match=r"kafka\.request\.timeout\.ms=2147483648 must be at most 2147483647"):
            sink_options.parse({**SERVERS, name: text})


def test_a_range_of_time_may_be_wider_than_time() -> None:
    assert parse({**SERVERS, "timestampRange": f"-{HUGE},{HUGE}"}, BATCH)["timestampRange"] == (1 - 2**63, 2**63 - 1)
    given = parse({**SERVERS, "kafka.fetch.max.bytes": "3g"}, BATCH)
    assert settings(given).fetch_max_bytes == 2**31 - 1
