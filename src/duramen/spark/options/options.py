"""Every option of the source, declared once: its name, what it may be, and what becomes of it.

The names are those of Spark's own Kafka source, so that a job is ported by changing the format; ours stand
beside them. An option is honoured, or refused by name with the reason; settings of Kafka's Java client that have
nothing to act on here are accepted and said to be without effect; whatever else comes is unknown and an error.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from duramen.errors import ConfigError
from duramen.spark.options import option_types as kind
from duramen.spark.options.kafka_settings import INERT_PREFIXES, KAFKA_SETTINGS, REFUSED_PREFIXES
from duramen.spark.options.sink_options import NAMES as SINK_NAMES
from duramen.spark.options.table_entries import NONE_CAME

BATCH: Final = "batch"
STREAM: Final = "streaming"

_KAFKA: Final = "kafka."
_ALL: Final = (BATCH, STREAM)
_log = logging.getLogger("duramen.spark")


class Option(NamedTuple):
    """One option. `meaning` says what it does."""

    name: str
    parse: kind.Parse
    default: Any
    meaning: str
    queries: tuple[str, ...] = _ALL


OPTIONS: Final[tuple[Option, ...]] = (
    # Of Spark's Kafka source.
    Option("assign", kind.partitions, None, "the partitions to read, as JSON"),
    Option("subscribe", kind.names, None, "the topics to read, with commas between"),
    Option(
        "subscribePattern",
        kind.pattern,
        None,
        "the topics to read: a match anywhere in the name is enough (Python's `re`)",
    ),
    Option(
        "startingOffsets", kind.offsets, None, "where a new query starts; default earliest (batch), latest (stream)"
    ),
    Option("startingOffsetsByTimestamp", kind.timestamps, None, "the same by time; before `startingOffsets`"),
    Option("startingTimestamp", kind.at_least(0), None, "the same, one time for all; before the two above"),
    Option(
        "startingOffsetsByTimestampStrategy",
        kind.one_of("error", "latest"),
        "error",
        "what to do where no record is that young: fail, or start at the end",
    ),
    Option(
        "endingOffsets",
        kind.offsets,
        kind.LATEST,
        "where a batch query ends; the default, -1, is latest",
        queries=(BATCH,),
    ),
    Option("endingOffsetsByTimestamp", kind.timestamps, None, "the same by time", queries=(BATCH,)),
    Option("endingTimestamp", kind.at_least(0), None, "the same, one time for all", queries=(BATCH,)),
    Option(
        "failOnDataLoss",
        kind.boolean,
        True,
        "fail, naming the range, when offsets that should be read are gone; false goes on after them with a warning",
    ),
    Option("kafkaConsumer.pollTimeoutMs", kind.at_least(1), 120_000, "how long an executor waits for data"),
    Option("fetchOffset.numRetries", kind.at_least(0), 3, "how often the driver asks again for offsets"),
    Option("fetchOffset.retryIntervalMs", kind.at_least(0), 10, "the rest between these"),
    Option("maxOffsetsPerTrigger", kind.at_least(1), None, "most offsets of one micro-batch", queries=(STREAM,)),
    Option("minOffsetsPerTrigger", kind.at_least(1), None, "fewest offsets of one micro-batch", queries=(STREAM,)),
    Option(
        "maxTriggerDelay",
        kind.duration_ms,
        900_000,
        "the longest wait for `minOffsetsPerTrigger`",
        queries=(STREAM,),
    ),
    Option(
        "minPartitions",
        kind.at_least(1),
        None,
        "fewest Spark partitions: large ranges are split, fewer small ones packed",
    ),
    Option("maxRecordsPerPartition", kind.at_least(1), None, "most offsets of one Spark partition"),
    Option("groupIdPrefix", kind.text, "spark-kafka-source", "first part of the client id; there is no consumer group"),
    Option("includeHeaders", kind.boolean, False, "whether rows have the column `headers`"),
    # Ours.
    Option("bootstrap.servers", kind.text, None, "the same as `kafka.bootstrap.servers`"),
    Option("maxBytesPerTrigger", kind.size, None, "most stored bytes of one micro-batch, about", queries=(STREAM,)),
    Option(
        "targetPartitionBytes",
        kind.size,
        64 << 20,
        "about how many stored bytes one Spark partition reads, of several small ranges if there are many",
    ),
    Option(
        "untilOffsets",
        kind.ends,
        None,
        "where reading stops, as JSON: nothing from these offsets on is read, and nothing of partitions not named",
        queries=(STREAM,),
    ),
    Option(
        "readFrom",
        kind.one_of("auto", "broker", "storage"),
        "auto",
        "sealed segments from their files where they can be reached (auto), never (broker), or always (storage)",
    ),
    Option(
        "isolation",
        kind.one_of("read_committed", "read_uncommitted"),
        "read_committed",
        "whether records of open and aborted transactions are left out",
    ),
    Option("columns", kind.names, None, "the columns to make; what is not asked for costs nothing"),
    Option("keyEquals", kind.text, None, "only records with this key (UTF-8)"),
    Option(
        "keyPartitioner",
        kind.one_of("none", "murmur2"),
        "none",
        "murmur2: every producer placed its keys as Kafka's Java client does, and over as many partitions as the topic "
        "has now, so `keyEquals` reads one of them",
    ),
    Option("timestampRange", kind.time_range, None, "only records from the first moment on and before the second"),
    Option(
        "timestampLateness",
        kind.duration_ms,
        None,
        "by how much a record may be older than one before it in its partition; `timestampRange` then reads no further "
        "than that, otherwise to the end",
        queries=(BATCH,),
    ),
    Option("valueFormat", kind.one_of("binary", "string", "json"), "binary", "what the column `value` is made of"),
    Option("valueSchema", kind.text, None, "of `valueFormat=json`: the fields, as DDL (`id bigint, name string`)"),
    Option("maxBatchBytes", kind.size, 256 << 20, "what one record batch may inflate to"),
)

_BY_NAME: Final = {option.name.lower(): option for option in OPTIONS}
_KAFKA_BY_NAME: Final = {setting.name.lower(): setting for setting in KAFKA_SETTINGS}


def any_query(given: Mapping[str, str]) -> dict[str, Any]:
    """As `parse`, where it is not known yet what kind of query this will be."""
    return parse(given, "")


def parse(given: Mapping[str, str], query: str) -> dict[str, Any]:
    """All options by their names, as plain values, defaults included; settings as `kafka.<name>`.

    given: names in any case. query: BATCH or STREAM.
    Raises ConfigError naming the option for one that is unknown (with the nearest name), out of place, refused, or that
    is not what it must be.
    """
    values = {option.name: option.default for option in OPTIONS}
    values.update({_KAFKA + each.name: each.default for each in KAFKA_SETTINGS if not each.without})
    for name, text in given.items():
        if name.lower().startswith(_KAFKA):
            _take_setting(values, name[len(_KAFKA) :], text)
        else:
            option = _known(name)
            _check_place(option, query)
            values[option.name] = _parsed(option.name, option.parse, text)
    servers = values.pop("bootstrap.servers", None)
    values[_KAFKA + "bootstrap.servers"] = values[_KAFKA + "bootstrap.servers"] or servers
    if not values[_KAFKA + "bootstrap.servers"]:
        why = "" if given else NONE_CAME
        raise ConfigError(f"kafka.bootstrap.servers is missing: the nodes to ask first, as host:port,host:port{why}")
    return values


def _known(name: str) -> Option:
    option = _BY_NAME.get(name.lower())
    if name.lower() in SINK_NAMES and option is None:
        raise ConfigError(f"option {name} is one of the sink, not of the source")
    if option is None:
        raise ConfigError(f"unknown option {name}{_nearest(name)}")
    return option


def _nearest(name: str) -> str:
    spelled = {each.lower(): each for each in [*(o.name for o in OPTIONS), *(_KAFKA + s.name for s in KAFKA_SETTINGS)]}
    close = difflib.get_close_matches(name.lower(), spelled, n=1, cutoff=0.5)
    return f"; the nearest is {spelled[close[0]]}" if close else ""


def _check_place(option: Option, query: str) -> None:
    if query and query not in option.queries:
        raise ConfigError(f"option {option.name} has no meaning in a {query} query")


def _parsed(name: str, parse: kind.Parse, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"option {name} must be {error}; it is {text!r}") from None


def _take_setting(values: dict[str, Any], name: str, text: str) -> None:
    setting = _KAFKA_BY_NAME.get(name.lower())
    if setting is None:
        for prefix, reason in REFUSED_PREFIXES.items():
            if name.lower().startswith(prefix):
                raise ConfigError(f"option kafka.{name} is refused: {reason}")
        for prefix, reason in INERT_PREFIXES.items():
            if name.lower().startswith(prefix):
                _log.warning("option kafka.%s has no effect: %s", name, reason)
                return
        raise ConfigError(f"unknown option kafka.{name}{_nearest(_KAFKA + name)}")
    if setting.refused:
        raise ConfigError(f"option kafka.{name} is refused: {setting.refused}")
    if setting.inert:
        _log.warning("option kafka.%s has no effect: %s", name, setting.inert)
        return
    values[_KAFKA + setting.name] = _parsed(_KAFKA + setting.name, setting.parse, text)
