"""Owns the list of what is measured: each scenario's load, durability, and the figures drawn from a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks import clients
from benchmarks.broker_process import BrokerProcess

Durability = Literal["page-cache", "fsync"]
Sample = dict[str, Any]
Load = Callable[[BrokerProcess, str], Sample]

# What makes a topic of either broker behave as named. Kafka acknowledges from the page cache unless a topic says
# flush.messages=1; Duramen acknowledges after the sync unless a topic says page-cache.
TOPIC_SETTINGS: Mapping[Durability, Mapping[str, Mapping[str, str]]] = {
    "page-cache": {"Duramen": {"duramen.ack.durability": "page-cache"}, "Kafka": {}},
    "fsync": {"Duramen": {}, "Kafka": {"flush.messages": "1"}},
}
DURABILITY_TITLES: Mapping[Durability, str] = {
    "page-cache": "Acknowledged from the page cache, both brokers",
    "fsync": "Synced to disk before the acknowledgement, both brokers",
}


HEATED_PER_SECOND = 100_000
"""More one-record requests than either broker answers in a second: what they write goes to memory that was in use."""


READINGS = 3
"""How often a consumer reads its topic for one sample: once takes half a second, which differs by a fifth each time."""
ADDED_UP = ("seconds", "records", "bytes", "total_bytes", "failed", "error_code", "client_cpu_s")
"""Of the readings of a sample."""


@dataclass(frozen=True)
class Figure:
    """One number drawn from a round. `aim` bounds Duramen / Kafka, `limit` bounds Duramen's own value."""

    name: str
    unit: str
    draw: Callable[[Sample], float]
    more_is_better: bool = True
    aim: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Scenario:
    """One load on one topic. `reads` names the scenario whose topic is read instead of a fresh one."""

    key: str
    title: str
    durability: Durability
    partitions: int
    load: Load
    figures: tuple[Figure, ...]
    settings: Mapping[str, object]
    heat_mib: int = 0
    reads: str = ""
    full_only: bool = False

    def rates(self, samples: Sequence[Sample]) -> list[float]:
        """The rate of each sample, none where the load sets the rate itself: what shows whether a broker is warm."""
        figure = self.figures[0]
        return [figure.draw(sample) for sample in samples] if figure.more_is_better else []


def _records_per_second(aim: float | None = None) -> Figure:
    return Figure("records/s", "/s", lambda s: s["records"] / s["seconds"], aim=aim)


def _megabytes_per_second(aim: float | None = None) -> Figure:
    return Figure("MB/s", "MB/s", lambda s: s["bytes"] / s["seconds"] / 1e6, aim=aim)


def _cpu_per_gigabyte(limit: float | None = None) -> Figure:
    return Figure(
        "broker CPU-s per GB",
        "s/GB",
        lambda s: s["broker_cpu_s"] / s.get("total_bytes", s["bytes"]) * 1e9,
        False,
        limit=limit,
    )


def _cpu_per_request(limit: float | None = None) -> Figure:
    return Figure(
        "broker CPU µs per request", "µs", lambda s: s["broker_cpu_s"] / s["requests"] * 1e6, False, limit=limit
    )


def _quantile(label: str, key: str) -> Figure:
    return Figure(label, "ms", lambda s: s[key] / 1e3, False)


def _batched(
    durability: Durability, size: int, mb: int, properties: Mapping[str, str] | None = None, full_only: bool = False
) -> Scenario:
    """librdkafka with its own batching; the CPU budget is for warm bulk traffic of 1 KB records."""
    records = mb * 1_000_000 // size
    properties = properties or {}
    named = "".join(f", {key}={value}" for key, value in properties.items())

    def load(broker: BrokerProcess, topic: str) -> Sample:
        return clients.rdkafka(
            "produce", broker.bootstrap, 180, {"acks": "all", **properties}, topic=topic, messages=records, size=size
        )

    suffix = "-idempotent" if properties else ""
    return Scenario(
        f"{durability}/produce-{size}-batched{suffix}",
        f"produce {size:,} B records, default batching{named}",
        durability,
        4,
        load,
        (
            _megabytes_per_second(aim=1.0),
            _records_per_second(aim=1.0),
            _cpu_per_gigabyte(limit=0.6 if size == 1000 and durability == "page-cache" else None),
        ),
        {"client": "librdkafka", "records": records, "partitions": 4, "acks": "all", **properties},
        heat_mib=mb * 5 // 4,
        full_only=full_only,
    )


def _single(
    durability: Durability,
    size: int,
    seconds: float,
    connections: int = 16,
    partitions: int = 4,
    inflight: int = 1,
    aim: float = 1.0,
    full_only: bool = False,
) -> Scenario:
    """Prepared frames of one record each: what a request costs."""

    def load(broker: BrokerProcess, topic: str) -> Sample:
        return clients.raw(
            "produce",
            broker.port,
            seconds + 60,
            topic=topic,
            size=size,
            records=1,
            seconds=seconds,
            connections=connections,
            partitions=partitions,
            inflight=inflight,
        )

    flight = f" × {inflight} in flight" if inflight > 1 else ""
    return Scenario(
        f"{durability}/produce-{size}-single-{connections}x{partitions}x{inflight}",
        f"one {size:,} B record per request, {connections} producers{flight}, {partitions} partitions",
        durability,
        partitions,
        load,
        (
            _records_per_second(aim=aim),
            _megabytes_per_second(aim=aim),
            _cpu_per_request(limit=25.0 if size == 100 and durability == "page-cache" else None),
            _quantile("acknowledged, p50", "p50_us"),
            _quantile("acknowledged, p99", "p99_us"),
        ),
        {
            "client": "prepared frames, Produce v10",
            "connections": connections,
            "in_flight": inflight,
            "partitions": partitions,
            "acks": "all",
            "seconds": seconds,
        },
        heat_mib=int(size * HEATED_PER_SECOND * seconds) >> 20,
        full_only=full_only,
    )


def _consume(durability: Durability, size: int, mb: int, full_only: bool = False) -> Scenario:
    """librdkafka reading what the batched producer of the same size left behind, READINGS times over."""
    records = mb * 1_000_000 // size

    def load(broker: BrokerProcess, topic: str) -> Sample:
        properties = {"group.id": "bench", "enable.auto.commit": "false"}
        words = {"topic": topic, "partitions": 4, "messages": records}
        samples = [clients.rdkafka("consume", broker.bootstrap, 180, properties, **words) for _ in range(READINGS)]
        return {key: sum(sample[key] for sample in samples) for key in ADDED_UP}

    return Scenario(
        f"{durability}/consume-{size}",
        f"consume {size:,} B records",
        durability,
        4,
        load,
        (_megabytes_per_second(aim=1.0), _records_per_second(aim=1.0), _cpu_per_gigabyte()),
        {"client": "librdkafka", "records": records, "partitions": 4, "readings": READINGS},
        reads=f"{durability}/produce-{size}-batched",
        full_only=full_only,
    )


def _fetch(durability: Durability, size: int, seconds: float) -> Scenario:
    """Prepared Fetch frames: the read path without the cost of a client that unpacks records."""

    def load(broker: BrokerProcess, topic: str) -> Sample:
        return clients.raw(
            "fetch", broker.port, seconds + 60, topic=topic, partitions=4, connections=4, seconds=seconds
        )

    return Scenario(
        f"{durability}/fetch-{size}",
        f"fetch {size:,} B records, prepared frames",
        durability,
        4,
        load,
        (_megabytes_per_second(aim=1.0), _cpu_per_gigabyte()),
        {"client": "prepared frames, Fetch v12", "connections": 4, "partitions": 4, "seconds": seconds},
        reads=f"{durability}/produce-{size}-batched",
        full_only=True,
    )


def _delay(durability: Durability, rate: int, seconds: float, full_only: bool = False) -> Scenario:
    """Each record carries the moment it was due; the consumer follows the end of the partition."""

    def load(broker: BrokerProcess, topic: str) -> Sample:
        return clients.raw("tail", broker.port, seconds + 60, topic=topic, rate=rate, size=100, seconds=seconds)

    return Scenario(
        f"{durability}/delay-{rate}",
        f"produce to consume at {rate:,} records/s of 100 B",
        durability,
        1,
        load,
        (
            _quantile("delay, p50", "p50_us"),
            _quantile("delay, p99", "p99_us"),
            _quantile("delay, p99.9", "p999_us"),
            Figure("broker CPU", "% core", lambda s: s["broker_cpu_s"] / s["seconds"] * 100, False),
        ),
        {"client": "prepared frames", "rate": rate, "seconds": seconds, "partitions": 1, "acks": "all"},
        full_only=full_only,
    )


def _java(durability: Durability) -> list[Scenario]:
    """The same questions asked by Kafka's own tools: a second client, heavier, with the Java client's defaults."""
    records = 200_000

    def produce(broker: BrokerProcess, topic: str) -> Sample:
        return clients.perf_produce(broker.bootstrap, topic, records, 1000, 180)

    def consume(broker: BrokerProcess, topic: str) -> Sample:
        return clients.perf_consume(broker.bootstrap, topic, records, 1000, 180)

    def delay(broker: BrokerProcess, topic: str) -> Sample:
        return clients.perf_delay(broker.bootstrap, topic, 2000, 100, 180)

    common: Mapping[str, object] = {"client": "Kafka's perf tools (Java)", "partitions": 4}
    bulk = (_megabytes_per_second(), _records_per_second())
    key = f"{durability}/java-produce-1000"
    return [
        Scenario(
            key,
            "produce 1,000 B records, ProducerPerformance",
            durability,
            4,
            produce,
            bulk,
            {**common, "records": records, "acks": "all"},
            heat_mib=250,
            full_only=True,
        ),
        Scenario(
            f"{durability}/java-consume-1000",
            "consume 1,000 B records, ConsumerPerformance",
            durability,
            4,
            consume,
            bulk,
            {**common, "records": records},
            reads=key,
            full_only=True,
        ),
        Scenario(
            f"{durability}/java-delay",
            "produce to consume, one record at a time, EndToEndLatency",
            durability,
            1,
            delay,
            (
                Figure("delay, mean", "ms", lambda s: s["mean_us"] / 1e3, False),
                _quantile("delay, p99 (whole ms)", "p99_us"),
            ),
            {**common, "records": 2000, "acks": "all", "partitions": 1},
            full_only=True,
        ),
    ]


def all_scenarios(full: bool) -> list[Scenario]:
    """All there is to measure, most telling first as time may run out; `full`: longer rounds and the wider list."""
    seconds = 4.0 if full else 1.5
    delay = 10.0 if full else 3.0
    listed = [
        _single("page-cache", 100, seconds),
        _single("fsync", 100, seconds, connections=64, partitions=50, aim=3.0),
        _batched("page-cache", 1000, 300),
        _consume("page-cache", 1000, 600),
        _batched("fsync", 1000, 200),
        _single("fsync", 100, seconds),
        _delay("page-cache", 1000, delay),
        _delay("fsync", 200, delay + 1),
        _batched("page-cache", 100, 150),
        _consume("page-cache", 100, 300),
        _batched("fsync", 100, 100),
        _single("page-cache", 1000, seconds),
        _single("fsync", 1000, seconds),
        _consume("fsync", 100, 200, full_only=True),
        _consume("fsync", 1000, 400, full_only=True),
        _single("fsync", 100, seconds, connections=8, partitions=50, inflight=5, full_only=True),
        _batched("fsync", 1000, 200, properties={"enable.idempotence": "true"}, full_only=True),
        _single("page-cache", 100, seconds, connections=64, partitions=50, full_only=True),
        _single("page-cache", 100, seconds, connections=8, partitions=4, inflight=5, full_only=True),
        _fetch("page-cache", 1000, seconds),
        _batched("page-cache", 1000, 300, properties={"enable.idempotence": "true"}, full_only=True),
        *_java("page-cache"),
        *_java("fsync"),
    ]
    return [scenario for scenario in listed if full or not scenario.full_only]
