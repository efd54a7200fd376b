"""`duramen consume`: read records from an offset, a time or as a member of a group."""

from __future__ import annotations

import math
import operator
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import click
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, Message, TopicPartition

from duramen.cli.shared.connection import (
    EARLIEST,
    LATEST,
    NAME,
    SILENT,
    ClusterAccess,
    call,
    cluster_options,
    ends_of,
    failure,
    failure_of_topics,
    offsets_at,
    partitions_of,
    refuse_offline,
    refuse_silent,
)
from duramen.cli.shared.message_source import Ends, JoinNotice, MessageSource, TopicNameReader
from duramen.cli.shared.outlet import Line, Outlet, Place
from duramen.cli.shared.output import note
from duramen.cli.shared.position import StartPosition, nearest, position_option
from duramen.cli.shared.read_range import Newest, Until
from duramen.cli.shared.read_span import ReadSpan, offsets_of, starts_of, tell_held_back
from duramen.cli.shared.records import Headers, Incoming, to_full, to_json, to_key_value, to_value, unescape
from duramen.cli.shared.retry import Patience
from duramen.cli.shared.signals import ended_in_order
from duramen.cli.shared.topic_patterns import named_topics
from duramen.cli.shared.uncommitted import Uncommitted
from duramen.client import Cluster as Client
from duramen.errors import DuramenError
from duramen.errors import KafkaError as RefusedError
from duramen.librdkafka import LibraryConsumer
from duramen.swaps import GroupReader, Handover, PendingCommitsError, SwapLog
from duramen.swaps.group_commits import pending_of
from duramen.swaps.losses import is_loss

EPILOG = """\b
Examples:
  duramen consume flights                       everything, then stop
  duramen consume flights --follow              and wait for more
  duramen consume flights --from latest -f      only what comes
  duramen consume flights --from 2026-05-01T12:00:00Z --count 10
  duramen consume flights --from 10m            the last ten minutes
  duramen consume flights --last 10             the newest ten, and stop
  duramen consume flights --from 2h --until 1h  the hour before the last
  duramen consume flights gates 'weather.*'     several topics
  duramen consume flights --group audit         go on where the group is, also
                                                behind a swap of the topic
  duramen consume flights --format json | jq .value

\b
Formats: value, key-value, full (partition:offset, time, headers, key, value),
json (one object a line, without loss; `produce --format json` reads it back).
"""

_BATCH = 2000
"""Records between two questions for the topic's id; at most, for nobody waits for them to be so many."""


_LAST_MAX = 100_000
"""Of --last, for so many of each partition are kept in memory."""

QUICK_SECONDS = 0.2
"""What is not written after so many waits for who reads it: the group is served meanwhile."""

COMMIT_SECONDS = 1.0
"""Between two commits of what is written, while output waits."""

LAST_COMMIT_SECONDS = 3.0
"""For the commit of who is ended: a node that is gone keeps nobody from ending."""

_PLACES_SHOWN = 4


class SilentError(click.ClickException):
    """Nothing came for so long that nobody waits for it any more."""


Printing = Callable[[MessageSource, Ends], bool]
"""Prints what the source has, as the command line asked for it; whether that was read to its end."""


@click.command(
    epilog=EPILOG,
    help="""Read records of topics and print them; stops at the end unless told to --follow.

    In quotes, * and ? stand for any letters: 'orders.*' is each topic there is now of such a name, but for internal
    ones. The order between partitions, and between topics, is that in which their records arrive.
    """,
)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, type=NAME)
@click.option(
    "--from",
    "position",
    callback=position_option,
    metavar="POSITION",
    help="earliest, latest, an offset, -N for the last N, or a time (ISO 8601, or 10m for ten minutes ago). "
    "With --group it counts only where the group has no offset. [default: earliest]",
)
@click.option(
    "--until",
    callback=position_option,
    metavar="POSITION",
    help="Stop before this offset, or at the first record of this time or later; written as for --from. "
    "With --follow it is waited for.",
)
@click.option(
    "--last",
    type=click.IntRange(1, _LAST_MAX),
    metavar="N",
    help="The newest N records of all partitions together, by their times.",
)
@click.option("-f", "--follow", is_flag=True, help="Wait for more at the end.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after so many records.")
@click.option("-p", "--partition", "partitions", type=int, multiple=True, help="Only this partition; repeatable.")
@click.option("-g", "--group", type=NAME, help="Read as a member of this group and commit what was printed.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["value", "key-value", "full", "json"]),
    default="value",
    show_default=True,
)
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@click.option("-K", "--key-separator", default="\\t", show_default=True, help="Between key and value.")
@click.option("--null", default="null", show_default=True, help="What stands for a null key or value.")
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="read_committed leaves out what transactions rolled back, and ends before the first that is open; "
    "read_uncommitted shows all.",
)
@cluster_options
def command(
    cluster: ClusterAccess,
    topics: tuple[str, ...],
    position: StartPosition | None,
    until: StartPosition | None,
    last: int | None,
    follow: bool,
    count: int | None,
    partitions: tuple[int, ...],
    group: str | None,
    kind: str,
    as_json: bool,
    key_separator: str,
    null: str,
    isolation: str,
) -> None:
    if group is not None and partitions:
        raise click.UsageError("--partition and --group exclude each other: a group shares partitions out itself.")
    if group is not None and position is not None and position.kind not in ("earliest", "latest"):
        raise click.UsageError(
            "with --group, --from is earliest or latest; `duramen group reset-offsets` moves a group."
        )
    if group is not None and (until is not None or last is not None):
        raise click.UsageError("--until and --last do not go with --group, which reads on from where the group is.")
    if last is not None and (position is not None or until is not None or count is not None):
        raise click.UsageError("--last goes with neither --from nor --until nor --count: it says all three.")
    names = named_topics(cluster, topics)
    show = _formatter("json" if as_json else kind, key_separator, null.encode(), several=len(names) > 1)
    start = position or StartPosition("earliest")
    committed = isolation == "read_committed"
    begin = start if last is None else StartPosition("from-end", last)
    span = ReadSpan(begin, until, last, follow, committed)
    settings: dict[str, object] = {
        "isolation.level": isolation,
        # How long the node may hold back its answer when there is nothing new: no time when we stop at the end.
        "fetch.wait.max.ms": 500 if follow else 10,
    }
    # Who waits for --until is not done before it, however long nothing comes; and is done there.
    seconds = math.inf if follow else cluster.timeout
    patience = Patience(seconds)
    outlet = Outlet()
    printing = partial(
        _print_all,
        outlet=outlet,
        show=show,
        follow=follow and until is None,
        count=count,
        silence=seconds,
        patience=patience,
    )
    try:
        with ended_in_order():
            if group is None:
                _alone(cluster, names, partitions, span, settings, printing, patience)
            elif cluster.is_plaintext and len(names) == 1:
                _member(cluster, names[0], group, start, settings, printing, patience, outlet)
            else:
                _plain_member(cluster, names, group, start, settings, printing, outlet)
    except KafkaException as error:
        raise failure_of_topics(error, names) from None
    except RefusedError as error:
        if not error.message.endswith(error.code.name):
            raise
        # Our own client knew no more than the code.
        raise failure_of_topics(KafkaException(KafkaError(int(error.code))), names) from None


_COMMITS_SECONDS = 3.0
"""For the group's commits, before it is said what is waited for, and they are asked for again."""
_OWN_OFFSETS = {"enable.auto.commit": False, "enable.auto.offset.store": False, "enable.partition.eof": True}


def _alone(
    cluster: ClusterAccess,
    topics: Sequence[str],
    partitions: tuple[int, ...],
    span: ReadSpan,
    settings: dict[str, object],
    printing: Printing,
    patience: Patience,
) -> None:
    """Print without a group: what is read, and from where, is chosen here."""
    own = {"group.id": f"duramen-cli-{uuid.uuid4()}", "auto.offset.reset": "error"}
    consumer = cluster.consumer(**settings, **_OWN_OFFSETS, **own)
    ends = Ends()
    named = partial(TopicNameReader, cluster, consumer, topics, partitions, ends, patience)
    with named() if cluster.is_plaintext else nullcontext() as reader:
        chosen = starts_of(cluster, topics, partitions, span)
        # Knowing the leaders beforehand saves librdkafka's timer of a second until it asks for them. To close would
        # wait for this call, also behind Ctrl-C, and nothing is assigned yet.
        for topic in topics:
            known = call(cluster, topic, partial(consumer.list_topics, topic, timeout=cluster.timeout))
            if not span.follow:
                refuse_offline(known, topic, [place.partition for place in chosen if place.topic == topic])
        source = MessageSource(
            consumer.consume if reader is None else reader.read,
            lambda: ends.all_reached,
            None,
            lambda message: _go_on(cluster, consumer, message),
        )
        if span.until is not None:
            chosen, source = _up_to(cluster, consumer, chosen, source, ends, span, span.until)
        elif span.newest is not None:
            source = _newest(cluster, consumer, chosen, source, span.newest, committed=span.committed)
        ends.assign(chosen)
        consumer.assign(chosen)
        try:
            to_the_end = printing(source, ends)
        finally:
            consumer.close()
        if to_the_end and span.committed and span.until is None:
            tell_held_back(cluster, ends.assigned)


def _up_to(
    cluster: ClusterAccess,
    consumer: LibraryConsumer,
    chosen: list[TopicPartition],
    source: MessageSource,
    ends: Ends,
    span: ReadSpan,
    until: StartPosition,
) -> tuple[list[TopicPartition], MessageSource]:
    """The partitions that have something in front of `until`, and what reads them to there."""
    admin = cluster.admin()
    starts = {(place.topic, place.partition): place.offset for place in chosen}
    first = offsets_at(cluster, admin, starts, EARLIEST)
    stops = offsets_of(cluster, admin, list(starts), until, first, committed=span.committed)
    if until.kind == "time":  # where there is no record of that time yet, one may come
        stops = {place: stop for place, stop in stops.items() if stop >= 0}
    elif not span.follow:
        stops = nearest(stops, first, offsets_at(cluster, admin, starts, LATEST))
    last = offsets_at(cluster, admin, starts, LATEST, committed=span.committed)
    named = {OFFSET_BEGINNING: first, OFFSET_END: last}
    wanted = [
        place
        for place in chosen
        if (where := (place.topic, place.partition)) not in stops
        or named.get(place.offset, starts)[where] < stops[where]
    ]
    reader = Until(
        source.read,
        stops,
        until.value if until.kind == "time" else None,
        lambda done: consumer.pause([TopicPartition(*place) for place in done]),
    )
    return wanted, source._replace(
        read=reader.read,
        at_end=lambda: ends.known and reader.at_end(ends.assigned, ends.reached, follow=span.follow),
    )


def _newest(
    cluster: ClusterAccess,
    consumer: LibraryConsumer,
    chosen: list[TopicPartition],
    source: MessageSource,
    count: int,
    *,
    committed: bool,
) -> MessageSource:
    """What reads the newest records of the partitions, which begin so many offsets before their ends."""
    starts = {(place.topic, place.partition): place.offset for place in chosen}

    def rewind(place: tuple[str, int], offset: int) -> None:
        consumer.incremental_unassign([TopicPartition(*place)])
        consumer.incremental_assign([TopicPartition(*place, offset)])

    log_ends = ends_of(cluster, cluster.admin(), starts, committed=committed)
    refuse_silent(starts.keys() - log_ends.keys())
    reader = Newest(source.read, count, log_ends, starts, rewind)
    return source._replace(read=reader.read)


def _plain_member(
    cluster: ClusterAccess,
    topics: Sequence[str],
    group: str,
    start: StartPosition,
    settings: dict[str, object],
    printing: Printing,
    outlet: Outlet,
) -> None:
    """Print as a member of the group of several topics, or where our own client cannot connect: swaps, and ids of
    topics, are not seen."""
    consumer = cluster.consumer(**settings, **_OWN_OFFSETS, **{"group.id": group, "auto.offset.reset": start.kind})
    ends = Ends()
    joining = JoinNotice(group)
    held = False
    leaving = False
    committed: dict[Place, int] = {}

    def read(count: int, timeout: float) -> list[Message]:
        joining.look(ends.known)
        return consumer.consume(count, timeout)

    def commit(done: Mapping[Place, int], seconds: float = math.inf) -> None:
        wanted = {place: offset for place, offset in done.items() if committed.get(place) != offset}
        if wanted:
            consumer.commit_within([TopicPartition(*place, offset) for place, offset in wanted.items()], seconds)
            committed.update(wanted)

    def hold(holds: bool) -> None:
        nonlocal held
        held = holds
        (consumer.pause if holds else consumer.resume)(consumer.assignment())

    def assigned(_: object, given: list[TopicPartition]) -> None:
        ends.assign(given)
        committed.clear()  # others may have committed meanwhile, or set the group back
        if held:
            consumer.assign(given)
            consumer.pause(given)

    def revoked(_: object, taken: list[TopicPartition]) -> None:
        outlet.take_back()  # it comes again, to whoever gets the partition
        if not leaving:  # then all that can be committed is, and a node that is gone would keep us
            with suppress(KafkaException):
                commit(outlet.done)
        ends.revoke(taken)

    try:
        partitions_of(cluster, cluster.admin(), topics)
        if cluster.is_plaintext:
            with Client(cluster.answering(), timeout_s=cluster.timeout) as client:
                swapped = SwapLog(client).chains().keys() & set(topics)
            for topic in sorted(swapped):
                note(f"{topic} was swapped, and is not followed where several topics are read; name it alone")
        consumer.subscribe(list(topics), on_assign=assigned, on_revoke=revoked)
        source = MessageSource(
            read,
            lambda: ends.all_reached,
            commit,
            lambda message: _go_on(cluster, consumer, message),
            hold,
        )
        finished = list(ends.assigned) if printing(source, ends) else []
    except SilentError:
        if cluster.is_plaintext:
            with Client(cluster.answering(), timeout_s=cluster.timeout) as client:
                if pending_of(client, group, ends.assigned):
                    raise PendingCommitsError(group) from None
        raise
    finally:
        leaving = True
        consumer.close()
    if settings["isolation.level"] == "read_committed":
        tell_held_back(cluster, finished)


def _member(
    cluster: ClusterAccess,
    topic: str,
    group: str,
    start: StartPosition,
    settings: dict[str, object],
    printing: Printing,
    patience: Patience,
    outlet: Outlet,
) -> None:
    """Print as a member of the group, which goes from topic to topic where the topic was swapped."""
    numbers = partitions_of(cluster, cluster.admin(), [topic])[topic]
    joining = JoinNotice(group)

    def read(count: int, timeout: float) -> list[Message]:
        joining.look(reader.joined)
        return patience.ask(lambda: reader.consume(count, timeout))

    def handover() -> Handover:
        undone = outlet.take_back()
        return Handover(outlet.done, undone)

    with GroupReader(
        cluster.answering(),
        group,
        topic,
        start="latest" if start.kind == "latest" else "earliest",
        settings=cluster.settings(**settings),
        logger=SILENT,
        tell=note,
        handover=handover,
        answer_seconds=min(cluster.timeout / 2, _COMMITS_SECONDS),
    ) as reader:
        source = MessageSource(
            read,
            lambda: reader.at_end,
            lambda done, seconds: reader.commit(done, seconds=seconds),
            hold=lambda holds: reader.pause() if holds else reader.resume(),
        )
        to_the_end = printing(source, Ends())
    if to_the_end and settings["isolation.level"] == "read_committed":
        tell_held_back(cluster, ((topic, number) for number in numbers))


def _go_on(cluster: ClusterAccess, consumer: LibraryConsumer, message: Message) -> None:
    """Read on behind records that were gone before they were read, which is told."""
    place = TopicPartition(str(message.topic()), message.partition() or 0)
    what, at = f"{place.topic}-{place.partition}", message.offset() or 0
    first, end = call(cluster, what, lambda: consumer.get_watermark_offsets(place, timeout=cluster.timeout))
    if at > end:
        raise click.ClickException(
            f"{what} ends at offset {end}, in front of {at}, where it was read: it was cut off, or made anew."
        )
    if at < first:
        note(f"{what}: offsets {at} to {first - 1} were gone before they were read; going on at {first}")
    consumer.incremental_unassign([place])
    consumer.incremental_assign([TopicPartition(place.topic, place.partition, max(at, first))])


def _formatter(kind: str, separator: str, null: bytes, *, several: bool) -> Callable[[Incoming], bytes]:
    try:
        between = unescape(separator).encode()
    except ValueError as error:
        raise click.UsageError(f"--key-separator {error}.") from None
    if kind == "json":
        return to_json
    if kind == "value":
        return lambda record: to_value(record, null)
    if kind == "key-value":
        return lambda record: to_key_value(record, between, null)
    return lambda record: to_full(record, between, null, topic=several)


def _print_all(
    source: MessageSource,
    ends: Ends,
    *,
    outlet: Outlet,
    show: Callable[[Incoming], bytes],
    follow: bool,
    count: int | None,
    silence: float,
    patience: Patience,
) -> bool:
    """Print until the end, the count or, where the node falls silent for so many seconds, an error; whether to the end.

    Only what has left this process counts as read; that does whatever ends this.
    """
    uncommitted = Uncommitted()
    deadline = time.monotonic() + silence
    try:
        while follow or not source.at_end():
            wanted = _BATCH if count is None else min(_BATCH, count - outlet.written)
            batch = source.read(wanted, 0.5 if follow else 0.05)
            if not batch and not follow and time.monotonic() > deadline:
                raise SilentError(f"nothing came for {silence:g} seconds{_missing(ends)}; is the node still running?")
            lines, error = _lines(batch, source, ends, show)
            if lines:
                uncommitted.put(lines)
                outlet.put(lines)
                _wait(source, ends, outlet, show, patience, uncommitted)
            if error is not None:
                raise error
            if count is not None and outlet.written >= count:
                return False
            if batch:
                deadline = time.monotonic() + silence
        return True
    except BaseException:
        if source.commit is not None:
            outlet.take_back()
            try:
                with suppress(KafkaException, DuramenError, OSError):
                    done = outlet.done
                    source.commit(done, LAST_COMMIT_SECONDS)
                    uncommitted.commit(done)
            finally:  # also where another signal ends the waiting
                told = uncommitted.told(outlet.done)
                if told is not None:
                    note(told)
        raise


def _missing(ends: Ends) -> str:
    """Of which partitions, where not all are at their end."""
    left = sorted(ends.assigned - ends.reached)
    more = ", …" if len(left) > _PLACES_SHOWN else ""
    return " of " + ", ".join(f"{topic}-{number}" for topic, number in left[:_PLACES_SHOWN]) + more if left else ""


def _wait(
    source: MessageSource,
    ends: Ends,
    outlet: Outlet,
    show: Callable[[Incoming], bytes],
    patience: Patience,
    uncommitted: Uncommitted,
) -> None:
    """Until all is written, and committed; serves the group where that takes long, and commits what is written."""
    save = source.commit
    if save is None or source.hold is None:
        outlet.wait()
        return

    def commit() -> None:
        done = outlet.done
        patience.commit(lambda: save(done, patience.seconds))
        uncommitted.commit(done)

    if not outlet.wait(QUICK_SECONDS):
        source.hold(True)
        next_commit = time.monotonic()
        while not outlet.wait(QUICK_SECONDS):
            lines, error = _lines(source.read(1, 0.0), source, ends, show)
            uncommitted.put(lines)
            outlet.put(lines)
            if error is not None:
                raise error
            if time.monotonic() >= next_commit:
                commit()
                next_commit = time.monotonic() + COMMIT_SECONDS
        source.hold(False)
    commit()


def _lines(
    batch: list[Message], source: MessageSource, ends: Ends, show: Callable[[Incoming], bytes]
) -> tuple[list[Line], Exception | None]:
    """What is printed of these messages, and what ends the reading behind it."""
    lines: list[Line] = []
    try:
        for message in batch:
            if source.go_on is not None and is_loss(message):
                source.go_on(message)
                continue
            record = _record(message, ends)
            if record is not None:
                lines.append(Line((record.topic, record.partition), record.offset, show(record) + b"\n"))
    except (click.ClickException, KafkaException) as error:
        return lines, error
    return lines, None


def _record(message: Message, ends: Ends) -> Incoming | None:
    """The record in a message; None when it only says that a partition's end was reached."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    error = message.error()
    if error is not None:
        if error.code() == KafkaError._PARTITION_EOF and topic is not None and partition is not None:
            ends.reached.add((topic, partition))
            return None
        if error.retriable():
            # The client library tries again by itself: a node may restart while somebody follows it.
            return None
        if topic is not None and partition is not None and partition >= 0:
            raise failure(KafkaException(error), f"{topic}-{partition}, offset {offset}")
        raise KafkaException(error)
    if topic is None or partition is None or offset is None:
        return None
    ends.reached.discard((topic, partition))
    key, value = message.key(), message.value()
    headers = _headers(message, f"{topic}-{partition}, offset {offset}")
    return Incoming(topic, partition, offset, message.timestamp()[1], _bytes(key), _bytes(value), headers)


_given_headers = operator.methodcaller("headers")
"""Where a name is not UTF-8 the client library returns half a list beside an exception. Since 3.12 Python does not look
for the exception where it calls a method often, and dies of the list; a call by `operator` always looks."""


def _headers(message: Message, place: str) -> Headers:
    try:
        # The client library gives a list of pairs; its type hints also allow a mapping, for writing.
        given: Any = _given_headers(message) or []
    except (SystemError, UnicodeDecodeError):
        note(f"{place}: the record's headers are left out, the name of one is not UTF-8")
        return []
    return [(name, _bytes(content)) for name, content in given]


def _bytes(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
