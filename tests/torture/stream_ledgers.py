"""What clients of streams wrote down, held against the logs as a consumer of Kafka's protocol reads them."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.torture.stream_clients import read_lines

READ_SECONDS = 120.0


class StoredRecord(NamedTuple):
    """A record of a log: its writer and its number."""

    offset: int
    writer: str
    number: int


def read_log(bootstrap: str, topic: str, partition: int) -> list[StoredRecord]:
    """Everything in it, by librdkafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "audit", "enable.auto.commit": False, "log_level": 0,
            "check.crcs": True, "enable.partition.eof": True, "auto.offset.reset": "error",
        }
    )  # fmt: skip
    found = []
    try:
        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), READ_SECONDS)
        consumer.assign([TopicPartition(topic, partition, low)])
        until = time.monotonic() + READ_SECONDS
        while time.monotonic() < until:
            for message in consumer.consume(2000, 1.0):
                if message.error() is None:
                    value = json.loads(message.value())
                    found.append(StoredRecord(message.offset(), value["w"], value["n"]))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return found
                else:
                    raise AssertionError(f"{topic}-{partition}: {message.error()}")
    finally:
        consumer.close()
    raise AssertionError(f"{topic}-{partition} was not read to its end")


class StreamAudit:
    """Of one run. acknowledged, delivered: records; open: appends that nobody was told of; opened: so often were
    exclusive streams.
    """

    def __init__(self, folder: Path, specs: list[dict[str, Any]]) -> None:
        self.broken: list[str] = []
        self.acknowledged: Counter[str] = Counter()
        self.delivered = 0
        self.open = 0
        self.opened = 0
        self.acks: dict[str, list[float]] = {}
        """Of each writer: when it heard of what is stored."""
        self._ledgers = {spec["name"]: read_lines(folder / f"{spec['name']}.jsonl") for spec in specs}
        self._specs = specs
        for name, lines in self._ledgers.items():
            self.broken += [f"{name}: {line}" for line in lines if line["t"] == "bad"]

    def check(self, logs: dict[tuple[str, int], list[StoredRecord]]) -> list[str]:
        """By topic and partition; what is not as promised, one line each."""
        for (topic, partition), log in logs.items():
            doubled = [each for each, count in Counter((r.writer, r.number) for r in log).items() if count > 1]
            if doubled:
                self.broken.append(f"{topic}-{partition}: {len(doubled)} records twice, as {doubled[0]}")
        for spec in self._specs:
            parts = {part: log for (topic, part), log in logs.items() if topic == spec["topic"]}
            lines = self._ledgers[spec["name"]]
            check = {
                "named": self._named,
                "expecting": self._expecting,
                "exclusive": self._exclusive,
                "records": self._records,
            }
            check.get(spec["kind"], self._reader)(spec["name"], lines, parts)
        for topic in {spec["topic"] for spec in self._specs if spec["kind"] == "exclusive"}:
            self._check_fences(topic, logs[topic, 0])
        return self.broken

    def _acknowledged(self, name: str, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = [line for line in lines if line["t"] == "ack"]
        self.acks[name] = [line["at"] for line in found]
        return found

    def _named(self, name: str, lines: list[dict[str, Any]], parts: dict[int, list[StoredRecord]]) -> None:
        mine = [record for record in parts[0] if record.writer == name]
        if [record.number for record in mine] != sorted({record.number for record in mine}):
            self.broken.append(f"{name}: out of order")
        sent = {
            (line["e"], line["s"]): [value["n"] for value in json.loads(line["v"])]
            for line in lines
            if line["t"] == "send"
        }
        at = {record.number: record.offset for record in mine}
        acknowledged = {(line["e"], line["s"]): line["offset"] for line in self._acknowledged(name, lines)}
        for place, offset in acknowledged.items():
            numbers = sent[place]
            self.acknowledged["by named writers"] += len(numbers)
            if any(number not in at for number in numbers):
                self.broken.append(f"{name}: {place}, {numbers} was acknowledged and is lost")
            elif offset >= 0 and [at[number] for number in numbers] != list(range(offset, offset + len(numbers))):
                self.broken.append(f"{name}: {place}, {numbers} was acknowledged at {offset}, is at {at[numbers[0]]}")
        self._check_open(name, [numbers for place, numbers in sent.items() if place not in acknowledged], at)

    def _check_open(self, name: str, left: list[list[int]], at: dict[int, int]) -> None:
        self.open += len(left)
        for numbers in left:
            if len({number in at for number in numbers}) > 1:
                self.broken.append(f"{name}: {numbers} is there in part")

    def _exclusive(self, name: str, lines: list[dict[str, Any]], parts: dict[int, list[StoredRecord]]) -> None:
        self._check_numbers("by exclusive writers", name, lines, parts)

    def _check_fences(self, topic: str, log: list[StoredRecord]) -> None:
        """No record lies where the stream was open for another writer than its own."""
        opened: dict[str, int] = {}
        writers: dict[tuple[str, int], str] = {}
        for spec in self._specs:
            if spec["topic"] == topic and spec["kind"] == "exclusive":
                lines = self._ledgers[spec["name"]]
                opened |= {line["s"]: line["offset"] for line in lines if line["t"] == "opened"}
                writers |= {(spec["name"], line["n"]): line["s"] for line in lines if line["t"] == "send"}
        self.opened = len(opened)
        for record in log:
            writer = writers[record.writer, record.number]
            later = [each for each, offset in opened.items() if opened[writer] < offset <= record.offset]
            if later or record.offset < opened[writer]:
                self.broken.append(f"{topic}: {record} of writer {writer} lies where {later} had opened it")

    def _expecting(self, name: str, lines: list[dict[str, Any]], parts: dict[int, list[StoredRecord]]) -> None:
        self._check_numbers("at an expected end", name, lines, parts)

    def _check_numbers(
        self, what: str, name: str, lines: list[dict[str, Any]], parts: dict[int, list[StoredRecord]]
    ) -> None:
        at = {record.number: record.offset for record in parts[0] if record.writer == name}
        for line in self._acknowledged(name, lines):
            self.acknowledged[what] += 1
            found = at.get(line["n"])
            if found is None or line["offset"] not in (-1, found):
                self.broken.append(f"{name}: {line['n']} was acknowledged at {line['offset']}, is at {found}")
        never = [line["n"] for line in lines if line["t"] == "never" and line["n"] in at]
        if never:
            self.broken.append(f"{name}: {never} was refused, and is there")
        self.open += sum(line["t"] == "open" for line in lines)

    def _records(self, name: str, lines: list[dict[str, Any]], parts: dict[int, list[StoredRecord]]) -> None:
        at = {
            record.number: (part, record.offset)
            for part, log in parts.items()
            for record in log
            if record.writer == name
        }
        for line in self._acknowledged(name, lines):
            self.acknowledged["to a topic by key"] += 1
            told = line["partition"], line["offset"]
            if at.get(line["n"]) != told:
                self.broken.append(f"{name}: {line['n']} was acknowledged at {told}, is at {at.get(line['n'])}")

    def _reader(self, name: str, lines: list[dict[str, Any]], parts: dict[int, list[StoredRecord]]) -> None:
        got = [tuple(each) for line in lines if line["t"] == "got" for each in line["r"]]
        self.delivered += len(got)
        wanted = [(record.writer, record.number) for record in parts[0]]
        if got == wanted:
            return
        lacks, more = Counter(wanted) - Counter(got), Counter(got) - Counter(wanted)
        first = next(
            (n for n, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted))
        )
        self.broken.append(
            f"{name}: has {len(got)} of {len(wanted)} records, lacks {list(lacks)[:3]}, has {list(more)[:3]} more; "
            f"the first difference is at {first}"
        )
