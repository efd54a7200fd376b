"""`duramen produce`: write records from stdin or files."""

from __future__ import annotations

import codecs
import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

import click
from confluent_kafka import KafkaError, KafkaException, Message, TopicCollection
from confluent_kafka.admin import ClusterMetadata

from duramen.cli.shared.connection import (
    NAME,
    ClusterAccess,
    call,
    cluster_options,
    failed,
    failure_of_topics,
    only,
    partitions_of,
    refuse_offline,
    sentence,
)
from duramen.cli.shared.output import ProgressLine, human_bytes, note, pairs, plural, print_json
from duramen.cli.shared.records import MAX_RECORD_BYTES, Headers, Outgoing, from_json, from_line, from_object, unescape
from duramen.cli.shared.settings import topic_resource
from duramen.cli.shared.signals import Terminated, ending_signals, quiet_end
from duramen.librdkafka import LibraryProducer

EPILOG = """\b
Examples:
  echo hello | duramen produce greetings
  duramen produce greetings lines.txt --key-separator :
  duramen produce events events.jsonl --key-field user
  duramen produce copy --format json < dump.jsonl
  duramen produce images --format file --key cat cat.png
  duramen produce greetings lines.txt --no-create

\b
Formats: `lines` makes each line a value; `json` reads objects with key,
value, headers and timestamp, as `consume --format json` writes them; `file`
makes each whole file one record.
"""


WAITING_BYTES_MAX = 16 * 1024 * 1024
"""Of values that were handed over and not acknowledged. A record's time-out runs from then on: the client library would
take a gigabyte, which a slow node or a slow network does not get done in it, however steadily it acknowledges."""
BATCH_BYTES_MAX = 1_000_000
"""Of a batch of several records, as librdkafka has it; less where the topic takes less."""

_REFUSALS = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.POLICY_VIOLATION,
        KafkaError.PRODUCER_FENCED,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }
)
"""What is said of records that are surely not stored. Behind a time-out, or a lost connection, nobody knows."""

_WORDS = {
    KafkaError.POLICY_VIOLATION: "the stream is closed; nothing is appended behind it",
    KafkaError.PRODUCER_FENCED: "it takes records of one writer at a time, who opens it: "
    "`duramen stream append --exclusive` does",
}
"""Of codes that mean something else, or less, where they do not refuse an append without a transaction."""

_NO_TOPIC = frozenset({KafkaError.TOPIC_EXCEPTION, KafkaError.INVALID_REQUEST})
"""What is said of a name that none can have, and of the metadata log's, for which the library would wait in vain."""


class Interrupt:
    """Ctrl-C, or what else ends us, waits while the client library runs: an exception out of a report is lost in it."""

    def __init__(self) -> None:
        self._sheltered = False
        self._wanted: KeyboardInterrupt | None = None

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """The signals come here inside of this; raises KeyboardInterrupt where it is no longer sheltered."""
        numbers = (signal.SIGINT, *ending_signals())
        before = [(number, signal.signal(number, self._arrived)) for number in numbers]
        try:
            yield
        finally:
            for number, handler in before:
                signal.signal(number, handler)

    def _arrived(self, number: int, _: object) -> None:
        wanted = KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
        if not self._sheltered:
            raise wanted
        self._wanted = wanted

    def __enter__(self) -> None:
        self._sheltered = True

    def __exit__(self, *_: object) -> None:
        self._sheltered = False
        if self._wanted is not None:
            wanted, self._wanted = self._wanted, None
            raise wanted


PATIENT_SECONDS: Final = 2.0
"""After a signal, before it is said that records are still being delivered."""

_OTHER_MARKS: Final = (
    codecs.BOM_UTF16_LE,
    codecs.BOM_UTF16_BE,
    codecs.BOM_UTF32_BE,
)  # UTF-32's other begins as the first


class DeliveryCount:
    """What became of the records that were handed to the client library."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.refused = 0
        self.unknown = 0
        """Records that may or may not be stored."""
        self.waiting_bytes = 0
        self.stopped = False
        """Whether the input was left before its end."""
        self.error: KafkaError | None = None
        self.too_large = 0
        """Bytes of the largest record that was refused for its size."""
        self.offsets: dict[int, list[int]] = {}

    def report(self, error: KafkaError | None, message: Message) -> None:
        """Called by the client library for each record."""
        self.waiting_bytes -= len(message)
        if error is not None:
            self.error = self.error or error
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self.too_large = max(self.too_large, len(message.value() or b"") + len(message.key() or b""))
            # Those that were not sent any more behind a refusal are surely not stored either.
            said = self.error if error.code() == KafkaError._PURGE_QUEUE else error
            if said.code() in _REFUSALS:
                self.refused += 1
            else:
                self.unknown += 1
            return
        self.records += 1
        self.bytes += len(message)
        partition, offset = message.partition(), message.offset()
        if partition is None or offset is None or offset < 0:
            return
        ends = self.offsets.setdefault(partition, [offset, offset])
        ends[0], ends[1] = min(ends[0], offset), max(ends[1], offset)

    @property
    def told(self) -> str:
        """How many records were written, how many not, and of how many that is not known."""
        parts = [f"{plural(self.records, 'record')} written"]
        parts += [f"{self.refused:,} not"] if self.refused else []
        parts += [f"{self.unknown:,} may or may not be"] if self.unknown else []
        return ", ".join(parts) + ("; what follows in the input was not sent" if self.stopped else "")


class RecordShape:
    """How input becomes records: the format and what the options say about keys, headers and nulls."""

    def __init__(
        self,
        kind: str,
        keep_partitions: bool,
        separator: str | None,
        key: str | None,
        key_field: str | None,
        null: str | None,
        headers: Headers,
    ) -> None:
        self.kind = kind
        self.keep_partitions = keep_partitions
        self.separator = separator.encode() if separator is not None else None
        self.key = key.encode() if key is not None else None
        self.key_field = key_field
        self.null = null.encode() if null is not None else None
        self.headers = headers

    def records(self, file: BinaryIO, name: str) -> Iterator[Outgoing]:
        """The records in a file; a line that is none ends the command with its place."""
        if self.kind == "file":
            yield Outgoing(self.key, _bounded(file.read(MAX_RECORD_BYTES + 1), name), self.headers)
            return
        number = 0
        while raw := file.readline(MAX_RECORD_BYTES + 1):
            number += 1
            if number == 1:
                if raw.startswith(_OTHER_MARKS):
                    raise click.ClickException(
                        f"{name}: it is in UTF-16 or UTF-32, whose lines cannot be told by their bytes. "
                        "`iconv -f UTF-16 -t UTF-8` changes it; PowerShell writes UTF-8 with `Out-File -Encoding utf8`."
                    )
                raw = raw.removeprefix(codecs.BOM_UTF8)
                if not raw:
                    return
            _bounded(raw, f"{name}, line {number}")
            line = raw.removesuffix(b"\n").removesuffix(b"\r")
            if (self.kind == "json" or self.key_field is not None) and not line.strip():
                continue
            try:
                yield self._record(line)
            except ValueError as error:
                raise click.ClickException(f"{name}, line {number}: {error}.") from None

    def _record(self, line: bytes) -> Outgoing:
        if self.kind == "json":
            record = from_json(line)
            if record.timestamp_ms == 0:
                raise ValueError("timestamp 0 cannot be written: the client library takes it for the time now")
            if not self.keep_partitions:
                record = record._replace(partition=None)
        elif self.key_field is not None:
            record = from_object(line, self.key_field)
        else:
            record = from_line(line, self.separator, self.key, self.null)
        return record._replace(headers=record.headers + self.headers) if self.headers else record


def _bounded(content: bytes, place: str) -> bytes:
    if len(content) > MAX_RECORD_BYTES:
        raise click.ClickException(f"{place}: it is longer than {human_bytes(MAX_RECORD_BYTES)}; no record can be.")
    return content


class InputFile(click.File):
    """A file to read; where there is none of a name that is no path, it may have been meant as the record."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            if isinstance(value, str) and os.sep not in value and not os.path.exists(value):
                text = f"{error.message}; text comes from stdin: echo TEXT | duramen produce TOPIC"
                raise click.BadParameter(text, ctx, param) from None
            raise


@click.command(
    epilog=EPILOG,
    help="Write records to a topic, from files or from stdin.",
)
@click.argument("topic", type=NAME)
@click.argument("files", nargs=-1, type=InputFile("rb"), metavar="[FILE]...")
@click.option("--format", "kind", type=click.Choice(["lines", "json", "file"]), default="lines", show_default=True)
@click.option("-K", "--key-separator", metavar="TEXT", help="Split each line into key and value; \\t is a tab.")
@click.option("-k", "--key", help="The same key for every record.")
@click.option("--key-field", metavar="NAME", help="Lines are JSON objects; this field is the key, the line the value.")
@click.option("-H", "--header", "headers", multiple=True, metavar="KEY=VALUE", help="A header for every record.")
@click.option("--null", metavar="TEXT", help="A key or value that equals this is null; a null value is a tombstone.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Write to this partition only.")
@click.option("--keep-partitions", is_flag=True, help="With --format json: write to the partition each object names.")
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
)
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="Who has to have a record. With 1 or 0, what has to be sent again may come twice, or out of order.",
)
@click.option("--no-create", is_flag=True, help="Fail where there is no such topic, rather than have it made.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@cluster_options
def command(
    cluster: ClusterAccess,
    topic: str,
    files: tuple[BinaryIO, ...],
    kind: str,
    key_separator: str | None,
    key: str | None,
    key_field: str | None,
    headers: tuple[str, ...],
    null: str | None,
    partition: int | None,
    keep_partitions: bool,
    compression: str,
    acks: str,
    no_create: bool,
    as_json: bool,
) -> None:
    _check_shape(kind, keep_partitions, key_separator, key, key_field, null)
    shape = RecordShape(
        kind,
        keep_partitions,
        _separator(key_separator),
        key,
        key_field,
        null,
        [(name, value.encode()) for header in headers for name, value in pairs("-H", [header]).items()],
    )
    if partition is not None:
        _check_partition(cluster, topic, partition)
    # An idempotent producer keeps order and avoids duplicates when it has to send again.
    settings: dict[str, Any] = {"acks": acks, "compression.type": compression, "linger.ms": 5}
    if acks == "all":
        settings["enable.idempotence"] = True
    settings["message.timeout.ms"] = int(cluster.timeout * 1000)
    settings["message.max.bytes"] = 1_000_000_000
    limit = _size_limit(cluster, topic)
    settings["batch.size"] = BATCH_BYTES_MAX if limit is None else max(1, min(BATCH_BYTES_MAX, limit))
    producer = cluster.producer(**settings)
    new = _is_new(cluster, topic)
    if new and no_create:
        raise click.ClickException(f"{topic}: there is no such topic; `duramen topic create {topic}` makes it.")

    def meet() -> None:
        found = _topic_found(cluster, producer, topic)
        refuse_offline(found, topic, None if partition is None else [partition])
        if new and found.topics[topic].error is None:
            note(f"topic {topic} was made with {plural(len(found.topics[topic].partitions), 'partition')}")

    if not new:
        meet()
    delivery = DeliveryCount()
    started = time.monotonic()
    interrupt = Interrupt()
    try:
        with interrupt.taken():
            ended = False
            try:
                _send(producer, delivery, interrupt, topic, partition, shape, files, meet if new else None)
            except KeyboardInterrupt:
                ended = True
                raise
            finally:
                # What was read before an interruption or a bad line is still delivered; a second Ctrl-C gives it up.
                _flush(producer, delivery, interrupt, cluster.timeout if ended else None)
    except KeyboardInterrupt as interruption:
        told = interrupted_line(delivery, len(producer))
        if isinstance(interruption, Terminated):
            note(told)
            raise quiet_end(interruption) from None
        note(f"\n{told}")
        raise
    except click.ClickException as mistake:
        raise click.ClickException(f"{mistake.message} {sentence(delivery.told)}") from None
    if delivery.too_large:
        limit = _size_limit(cluster, topic)  # which the topic may have had only since it was made
    _summarise(delivery, topic, limit, time.monotonic() - started, as_json)
    if new and not as_json and not delivery.records:
        note(f"there is no topic {topic}, and without a record none is made")


def _check_shape(
    kind: str, keep_partitions: bool, separator: str | None, key: str | None, key_field: str | None, null: str | None
) -> None:
    """Refuse an option that would have no effect."""
    if kind != "lines" and (separator is not None or key_field is not None):
        raise click.UsageError("--key-separator and --key-field belong to --format lines.")
    if sum(option is not None for option in (separator, key_field, key)) > 1:
        raise click.UsageError("give one of --key, --key-separator and --key-field.")
    if separator == "":
        raise click.UsageError("--key-separator is empty.")
    if kind == "json" and key is not None:
        raise click.UsageError("with --format json each object has its own key; --key does not go with it.")
    if null is not None and (kind != "lines" or key_field is not None):
        raise click.UsageError("--null belongs to --format lines, without --key-field.")
    if keep_partitions and kind != "json":
        raise click.UsageError("--keep-partitions belongs to --format json.")


def _separator(text: str | None) -> str | None:
    try:
        return None if text is None else unescape(text)
    except ValueError as error:
        raise click.UsageError(f"--key-separator {error}.") from None


def _check_partition(cluster: ClusterAccess, topic: str, partition: int) -> None:
    """Refuse a partition that does not exist at once, not when the first record times out."""
    known = partitions_of(cluster, cluster.admin(), [topic])[topic]
    if partition not in known:
        raise click.ClickException(f"{topic} has no partition {partition}; it has {plural(len(known), 'partition')}.")


def _topic_found(cluster: ClusterAccess, producer: LibraryProducer, topic: str) -> ClusterMetadata:
    """What the cluster says of the topic, which may be made by that."""
    # The library asks for a producer id behind each answer about topics, and else twice a second. The first answer
    # comes from the bootstrap address, which it then leaves; the second from a node that it can ask.
    for _ in range(2):
        found: ClusterMetadata = call(cluster, topic, lambda: producer.list_topics(topic, timeout=cluster.timeout))
    error = found.topics[topic].error
    if error is not None and error.code() in _NO_TOPIC:
        raise failure_of_topics(KafkaException(KafkaError(KafkaError.TOPIC_EXCEPTION)), [topic])
    return found


def _is_new(cluster: ClusterAccess, topic: str) -> bool:
    """Whether there is no such topic yet; asked in a way that makes none."""
    admin = cluster.admin()
    asked = call(cluster, topic, lambda: admin.describe_topics(TopicCollection([topic])))
    error = failed(cluster, topic, only(asked))
    if error is not None and error.args[0].code() in _NO_TOPIC:
        raise failure_of_topics(KafkaException(KafkaError(KafkaError.TOPIC_EXCEPTION)), [topic])
    return error is not None and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def _size_limit(cluster: ClusterAccess, topic: str) -> int | None:
    """The largest batch that the topic takes, None where that is not told: the client library does not divide one that
    is refused."""
    admin = cluster.admin()
    timeout = cluster.timeout
    asked = call(cluster, topic, lambda: admin.describe_configs([topic_resource(topic)], request_timeout=timeout))
    if failed(cluster, topic, only(asked)) is not None:  # it may be made by its first record, or be none of ours to ask
        return None
    found = only(asked).result().get("max.message.bytes")
    return None if found is None else int(found.value)


def _send(
    producer: LibraryProducer,
    delivery: DeliveryCount,
    interrupt: Interrupt,
    topic: str,
    partition: int | None,
    shape: RecordShape,
    files: tuple[BinaryIO, ...],
    begin: Callable[[], None] | None,
) -> None:
    """Hand over what is in the files. begin: called before the first record."""
    typed = not files and sys.stdin.isatty()
    if typed:
        note("each line is a record; Ctrl-D ends")
    with ProgressLine("writing") as progress:
        for file in files or (sys.stdin.buffer,):
            for record in shape.records(file, getattr(file, "name", "stdin")):
                if begin is not None:
                    begin()
                    begin = None
                with interrupt:
                    _produce(producer, delivery, topic, partition, record)
                if not typed:
                    progress.show(f"{plural(delivery.records, 'record')}, {human_bytes(delivery.bytes)}")
                if delivery.error is not None:
                    delivery.stopped = True
                    return


def _produce(
    producer: LibraryProducer, delivery: DeliveryCount, topic: str, partition: int | None, record: Outgoing
) -> None:
    chosen: dict[str, Any] = {}
    if partition is not None or record.partition is not None:
        chosen["partition"] = partition if partition is not None else record.partition
    if record.timestamp_ms is not None:
        chosen["timestamp"] = record.timestamp_ms
    if record.headers:
        chosen["headers"] = record.headers
    while delivery.error is None:
        if delivery.waiting_bytes > WAITING_BYTES_MAX:
            producer.poll(0.1)
            continue
        try:
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                on_delivery=delivery.report,
                **chosen,
            )
            delivery.waiting_bytes += len(record.value or b"")
            producer.poll(0)
            return
        except BufferError:
            # The library's queue is full: let it deliver some.
            producer.poll(0.1)
        except KafkaException as error:
            raise failure_of_topics(error, [topic]) from None


def interrupted_line(delivery: DeliveryCount, left: int) -> str:
    """What became of the records; left: those of which nothing is known yet."""
    more = f"; {left:,} more may or may not be" if left else ""
    return f"interrupted: {delivery.told}{more}"


def _flush(
    producer: LibraryProducer, delivery: DeliveryCount, interrupt: Interrupt, ending_seconds: float | None = None
) -> None:
    """Wait until it is known of every record what became of it; behind an error no more are sent.

    ending_seconds: how long this may take, where somebody waits for the command to end, who is told when it does.
    """
    purged = False
    tell_at = math.inf if ending_seconds is None else time.monotonic() + PATIENT_SECONDS
    with ProgressLine("delivering") as progress:
        left = len(producer)
        while left:
            with interrupt:
                if delivery.error is not None and not purged:
                    producer.purge(in_flight=False)
                    purged = True
                with contextlib.suppress(KafkaException):  # past help: the reports say so of every record that is left
                    left = producer.flush(0.2)
            if left and time.monotonic() >= tell_at:
                tell_at = math.inf
                note(f"waiting up to {ending_seconds:g} s for {plural(left, 'record')}; a second signal gives them up")
            progress.show(f"{plural(left, 'record')} left")


def _summarise(delivery: DeliveryCount, topic: str, limit: int | None, seconds: float, as_json: bool) -> None:
    if as_json:
        partitions = {
            str(partition): {"first_offset": ends[0], "last_offset": ends[1]}
            for partition, ends in sorted(delivery.offsets.items())
        }
        print_json(
            {
                "topic": topic,
                "records": delivery.records,
                "bytes": delivery.bytes,
                "failed": delivery.refused,
                "unknown": delivery.unknown,
                "partitions": partitions,
            }
        )
    if delivery.error is not None:
        words = _WORDS.get(delivery.error.code())
        text = f"{topic}: {words}." if words else failure_of_topics(KafkaException(delivery.error), [topic]).message
        if delivery.too_large and limit is not None:
            around = "" if delivery.too_large > limit else ", with its headers and that of the batch around it,"
            text = (
                f"{topic}: a record of {delivery.too_large:,} bytes{around} is larger than the topic's "
                f"max.message.bytes, {limit}. `duramen topic alter {topic} --set max.message.bytes=N` raises it."
            )
        raise click.ClickException(f"{text} {sentence(delivery.told)}")
    if not as_json:
        rate = f", {human_bytes(delivery.bytes / seconds)}/s" if seconds >= 1 else ""
        note(f"wrote {plural(delivery.records, 'record')} ({human_bytes(delivery.bytes)}{rate}) to {topic}")
