"""`duramen dead-letters`: what pipelines have put aside, and back into its topic."""

from __future__ import annotations

import operator
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import click
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from duramen.cli.shared.confirmation import confirm
from duramen.cli.shared.connection import NAME, ClusterAccess, cluster_options, failure, json_option, partitions_of
from duramen.cli.shared.letters import (
    Letter,
    OffsetSpan,
    chosen,
    is_note,
    kinds,
    letter_of,
    note_of,
    noted,
    once_each,
    span,
)
from duramen.cli.shared.output import note, plural, print_field, print_json, print_table, printable
from duramen.cli.shared.position import iso
from duramen.cli.shared.records import Incoming, to_json
from duramen.librdkafka import LibraryProducer

PREFIX: Final = "dlq."
"""What the names of dead-letter topics begin with, unless a pipeline has another."""
AT_ONCE: Final = 500
"""Records of one transaction."""
TRANSACTION_MS_MAX: Final = 900_000
"""transaction.max.timeout.ms, where nobody has changed it."""
TOPICS_SHOWN: Final = 5

EPILOG = """\b
Examples:
  duramen dead-letters list
  duramen dead-letters show dlq.tour --reason corrupt
  duramen dead-letters replay dlq.tour --step tour.paid
"""


@click.group(epilog=EPILOG, help="List, show and replay the records that pipelines have put aside.")
def command() -> None:
    pass


def _selection(command: Any) -> Any:
    """Adds the options that say which dead letters are meant."""
    for option in reversed(
        (
            click.option("--reason", "reasons", multiple=True, metavar="REASON", help="Only these; repeatable."),
            click.option(
                "--step",
                "steps",
                multiple=True,
                metavar="[PIPELINE.]STEP",
                help="Only those of this step; repeatable.",
            ),
            click.option(
                "--offsets",
                "spans",
                multiple=True,
                callback=_spans,
                metavar="P:FIRST[-LAST]",
                help="Only these of the dead-letter topic, by partition and offset; repeatable.",
            ),
        )
    ):
        command = option(command)
    return command


def _spans(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> tuple[OffsetSpan, ...]:
    try:
        return tuple(span(text) for text in value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


@command.command(
    "list",
    epilog="""\b
Examples:
  duramen dead-letters list
  duramen dead-letters list dlq.tour --json
""",
    short_help="Count dead letters by topic, step and reason.",
    help=f"Count dead letters by topic, step and reason. Without TOPIC those of all whose names begin with {PREFIX}",
)
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, type=NAME)
@json_option
@cluster_options
def list_(cluster: ClusterAccess, topics: tuple[str, ...], as_json: bool) -> None:
    names = list(dict.fromkeys(topics))
    if not names:
        names = [name for name in partitions_of(cluster, cluster.admin(), None) if name.startswith(PREFIX)]
    rows: dict[tuple[str, str, str | None, str], dict[str, Any]] = {}
    for name in names:
        records = _records(cluster, name)
        replayed, letters = noted(records), _letters(records)
        if others := len(records) - len(letters) - sum(map(is_note, records)):
            note(f"{plural(others, 'record')} of {name} passed over: no header names the record it is of")
        for letter in letters:
            key = name, letter.step, letter.version, letter.reason
            row = rows.setdefault(key, {"count": 0, "replayed": 0, "oldest": letter.record.timestamp_ms})
            row["count"] += 1
            row["replayed"] += letter.source in replayed
            row["oldest"] = min(row["oldest"], letter.record.timestamp_ms)
    headings = ("topic", "step", "version", "reason", "count", "replayed", "oldest")
    found = [
        dict(zip(headings, (*key, row["count"], row["replayed"], iso(row["oldest"])), strict=True))
        for key, row in sorted(rows.items(), key=lambda each: tuple(map(str, each[0])))
    ]
    if as_json:
        print_json(found)
    elif found:
        shown = [[printable(each) if isinstance(each, str) else each for each in row.values()] for row in found]
        print_table(headings, shown, right=("count", "replayed"))
    else:
        note("there are no dead letters" + ("" if names else f": no topic's name begins with {PREFIX}"))


@command.command(
    epilog="""\b
Examples:
  duramen dead-letters show dlq.tour
  duramen dead-letters show dlq.tour --reason corrupt --json
  duramen dead-letters show dlq.tour --offsets 0:17-20
""",
    short_help="Show dead letters with their reasons.",
    help="Show dead letters: the record's place, why it was put aside, its headers, key and value.",
)
@click.argument("topic", type=NAME)
@_selection
@json_option
@cluster_options
def show(
    cluster: ClusterAccess,
    topic: str,
    reasons: tuple[str, ...],
    steps: tuple[str, ...],
    spans: tuple[OffsetSpan, ...],
    as_json: bool,
) -> None:
    records = _records(cluster, topic)
    replayed = noted(records)
    there = list(_letters(records))
    letters = chosen(there, reasons, steps, spans)
    if as_json:
        print_json([_as_json(letter, replayed) for letter in letters])
        return
    for letter in letters:
        at = letter.record
        done = ", replayed" if letter.source in replayed else ""
        click.echo(
            f"{printable(letter.source)}: {printable(letter.reason)} ({at.topic} {at.partition}:{at.offset}{done})"
        )
        print_field("step", printable(f"{letter.step} {letter.version or ''}".strip()))
        print_field("why", printable(letter.message))
        if letter.timestamp_ms is not None:
            print_field("time", iso(letter.timestamp_ms))
        for name, value in letter.headers:
            print_field("header", printable(f"{name}={_text(value)}"))
        print_field("key", printable(_text(at.key)))
        print_field("value", printable(_text(at.value)))
    if not letters:
        note(f"{topic} has no dead letters" + (f" of these; {printable(kinds(there))}" if there else ""))


def _text(content: bytes | None) -> str:
    return "null" if content is None else content.decode("utf-8", "backslashreplace")


def _as_json(letter: Letter, replayed: set[str]) -> dict[str, Any]:
    import json

    at = letter.record
    told = json.loads(to_json(at._replace(headers=letter.headers)))
    return {
        "dead_letter": {"topic": at.topic, "partition": at.partition, "offset": at.offset},
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp_ms,
        "step": letter.step,
        "version": letter.version,
        "reason": letter.reason,
        "message": letter.message,
        "replayed": letter.source in replayed,
        **{name: value for name, value in told.items() if name.startswith(("key", "value", "headers"))},
    }


@command.command(
    epilog="""\b
Examples:
  duramen dead-letters replay dlq.tour
  duramen dead-letters replay dlq.tour --reason corrupt --step paid --yes
  duramen dead-letters replay dlq.tour --offsets 0:17 --to flights-mended

\b
Each record is put back once, whichever steps have a dead letter of it. What
was put back is noted in the dead-letter topic, in the same transaction; with
--to elsewhere, too. A second replay passes over it.
""",
    short_help="Put records back into their topics, after asking.",
    help="""Put records back into their topics, after asking: key, value, headers and time as they were.

    They become new records at the end of the partition that they were in.
    """,
)
@click.argument("topic", type=NAME)
@_selection
@click.option("--to", metavar="TOPIC", type=NAME, help="Into this topic, rather than those that they came from.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@cluster_options
def replay(
    cluster: ClusterAccess,
    topic: str,
    reasons: tuple[str, ...],
    steps: tuple[str, ...],
    spans: tuple[OffsetSpan, ...],
    to: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    records = _records(cluster, topic)
    there = list(_letters(records))
    meant = chosen(there, reasons, steps, spans)
    waiting = once_each(meant, noted(records))
    done = len({letter.source for letter in meant}) - len(waiting)
    if done and not as_json:
        note(f"{plural(done, 'record')} put back before: passed over")
    counts: dict[str, int] = {}
    if waiting:
        targets = sorted({to or letter.topic for letter in waiting})
        partitions = partitions_of(cluster, cluster.admin(), targets)  # refuses one that is not there
        told = ", ".join(printable(name) for name in targets[:TOPICS_SHOWN])
        confirm(f"Write {plural(len(waiting), 'record')} to {told}?", yes)
        counts = _Replay(cluster, topic, to, partitions).run(waiting)
    elif not as_json:
        note(
            f"{topic} has nothing to put back"
            + (f" of these; {printable(kinds(there))}" if there and not meant else "")
        )
    if as_json:
        print_json([{"topic": name, "records": count} for name, count in sorted(counts.items())])
        return
    for name, count in sorted(counts.items()):
        click.echo(f"{printable(name)}: {plural(count, 'record')} put back")


class _Replay:
    """Records and the note of them in one transaction, so that both are there or neither."""

    def __init__(self, cluster: ClusterAccess, letters: str, to: str | None, partitions: dict[str, list[int]]) -> None:
        self._cluster = cluster
        self._letters = letters
        self._to = to
        self._partitions = partitions
        self._failed: KafkaError | None = None

    def run(self, waiting: Sequence[Letter]) -> dict[str, int]:
        """How many were put back into each topic."""
        seconds, limit_ms = self._cluster.timeout, min(int(self._cluster.timeout * 1000), TRANSACTION_MS_MAX)
        producer = self._cluster.producer(
            **{
                "transactional.id": f"duramen-dead-letters-{self._letters}",
                "message.timeout.ms": limit_ms,
                "transaction.timeout.ms": max(limit_ms, 1000),
                # As Kafka's own producers place keys.
                "partitioner": "murmur2_random",
            }
        )
        counts: dict[str, int] = {}
        try:
            # It ends another replay of this topic, so what that has noted is read only now.
            producer.init_transactions(seconds)
            left = once_each(waiting, noted(_records(self._cluster, self._letters)))
            for first in range(0, len(left), AT_ONCE):
                part = left[first : first + AT_ONCE]
                self._put_back(producer, part)
                for letter in part:
                    name = self._to or letter.topic
                    counts[name] = counts.get(name, 0) + 1
        except KafkaException as error:
            told = f"{plural(sum(counts.values()), 'record')} put back; another replay goes on with the others"
            raise click.ClickException(f"{failure(error, self._letters).message.rstrip('.')}; {told}.") from None
        return counts

    def _put_back(self, producer: LibraryProducer, part: Sequence[Letter]) -> None:
        producer.begin_transaction()
        try:
            for letter in part:
                self._produce(producer, letter)
            value, headers = note_of([letter.source for letter in part])
            told: Any = headers
            producer.produce(self._letters, value=value, headers=told, on_delivery=self._heard)
            producer.flush(self._cluster.timeout)
            if self._failed is not None:
                raise KafkaException(self._failed)
            producer.commit_transaction(self._cluster.timeout)
        except BaseException:
            with suppress(KafkaException):  # of a node that is gone the transaction ends by its time-out
                producer.abort_transaction(self._cluster.timeout)
            raise

    def _produce(self, producer: LibraryProducer, letter: Letter) -> None:
        name = self._to or letter.topic
        place: dict[str, Any] = {}
        if self._to is None and letter.partition in self._partitions[name]:
            place["partition"] = letter.partition
        if letter.timestamp_ms:
            place["timestamp"] = letter.timestamp_ms
        at = letter.record
        headers: Any = letter.headers  # the hints of the library know no null in a list's pair
        while True:
            try:
                producer.produce(name, value=at.value, key=at.key, headers=headers, on_delivery=self._heard, **place)
                return
            except BufferError:
                producer.poll(0.1)

    def _heard(self, error: KafkaError | None, _message: Message) -> None:
        self._failed = self._failed or error


def _letters(records: Sequence[Incoming]) -> list[Letter]:
    """The dead letters of a topic, without what does not say which record it is of."""
    found = [letter_of(record) for record in records if not is_note(record)]
    return [letter for letter in found if letter is not None]


def _records(cluster: ClusterAccess, topic: str) -> list[Incoming]:
    """All committed records of a topic, by partition and offset."""
    places = [
        TopicPartition(topic, number, OFFSET_BEGINNING)
        for number in partitions_of(cluster, cluster.admin(), [topic])[topic]
    ]
    consumer = cluster.consumer(
        **{
            "group.id": "duramen-dead-letters",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    found: list[Incoming] = []
    reading = {place.partition for place in places}
    heard = time.monotonic()
    try:
        consumer.assign(places)
        while reading:
            for message in consumer.consume(1000, timeout=0.2):
                heard = time.monotonic()
                error = message.error()
                if error is None:
                    found.append(_incoming(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    reading.discard(message.partition() or 0)
                else:
                    raise KafkaException(error)
            if reading and time.monotonic() - heard > cluster.timeout:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    except KafkaException as error:
        raise failure(error, topic) from None
    finally:
        consumer.close()
    return sorted(found, key=lambda record: (record.partition, record.offset))


_given_headers = operator.methodcaller("headers")
"""As in `duramen consume`: of the library's errors where a name is no UTF-8 Python dies unless it is called so."""


def _incoming(message: Message) -> Incoming:
    topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
    try:
        headers: Any = _given_headers(message) or []
    except (SystemError, UnicodeDecodeError):
        raise click.ClickException(
            f"{topic}-{partition}, offset {offset}: the name of a header is not UTF-8."
        ) from None
    key, value = (
        content.encode() if isinstance(content, str) else content for content in (message.key(), message.value())
    )
    return Incoming(topic, partition, offset, message.timestamp()[1], key, value, list(headers))
