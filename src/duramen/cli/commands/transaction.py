"""`duramen transaction`: list, describe and abort transactions; find those that nobody will end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from duramen.cli.shared.confirmation import confirm
from duramen.cli.shared.connection import NAME, ClusterAccess, cluster_options, json_option, sentence
from duramen.cli.shared.output import note, plural, print_field, print_json, print_table, printable
from duramen.cli.shared.position import duration_option, iso, now_ms
from duramen.cli.shared.transaction_look import OPEN_STATES, Described, OpenTransaction, TransactionLook
from duramen.client import Cluster
from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicPartition

EPILOG = """\b
Examples:
  duramen transaction list
  duramen transaction describe orders-1
  duramen transaction abort orders-1
  duramen transaction find-hanging
  duramen transaction describe-producers --topic orders --partition 0
"""

STATES: Final = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
DEFAULT_AGE: Final = "15m"
"""transaction.max.timeout.ms, where nobody has changed it: no coordinator lets one be open for longer."""
PARTITIONS_SHOWN: Final = 5


@click.group(epilog=EPILOG, help="List, describe and abort transactions; find those that nobody will end.")
def command() -> None:
    pass


@contextmanager
def _look(cluster: ClusterAccess) -> Iterator[TransactionLook]:
    if not cluster.is_plaintext:
        raise click.UsageError("transactions are asked for over plain connections only.")
    with Cluster(cluster.answering(), client_id="duramen-cli", timeout_s=cluster.timeout) as client:
        try:
            yield TransactionLook(client)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or error.code.name not in error.message:
                raise
            name = error.message.removeprefix("topic ").partition(":")[0]
            text = f"{name}: there is no such topic or partition; `duramen topic list` shows those there are."
            raise click.ClickException(text) from None


@command.command(
    "list",
    epilog="""\b
Examples:
  duramen transaction list
  duramen transaction list --state Ongoing --longer-than 5m
  duramen transaction list --pattern 'orders-.*' --json
""",
    short_help="List transactional ids.",
    help="List transactional ids with their state, producer and coordinator.",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES),
    metavar="STATE",
    help=f"Only these; repeatable: {', '.join(STATES)}.",
)
@click.option(
    "--longer-than", "age_ms", callback=duration_option, metavar="TIME", help="Only those open for longer: 5m, 2h."
)
@click.option("--pattern", metavar="REGEX", help="Only ids that the whole of this RE2 expression matches.")
@json_option
@cluster_options
def list_(
    cluster: ClusterAccess, states: tuple[str, ...], age_ms: int | None, pattern: str | None, as_json: bool
) -> None:
    longer_than_ms = -1 if age_ms is None else age_ms
    wanted = states or (("Ongoing", "PrepareCommit", "PrepareAbort") if age_ms is not None else ())
    with _look(cluster) as look:
        try:
            rows = look.listed(wanted, longer_than_ms=longer_than_ms, pattern=pattern)
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_REGULAR_EXPRESSION:
                raise
            raise click.UsageError(f"--pattern {pattern}: it is not an expression of RE2.") from None
        started = look.started(rows)
    if as_json:
        print_json([{**each._asdict(), "started_ms": started.get(each.transactional_id)} for each in rows])
    elif rows:
        headings = ("transactional id", "state", "producer", "coordinator", "open for")
        table = [
            (
                printable(row.transactional_id),
                row.state,
                str(row.producer_id),
                row.coordinator,
                _age(started[row.transactional_id]) if row.transactional_id in started else None,
            )
            for row in rows
        ]
        print_table(headings, table, right=headings[2:4])
    else:
        note("no transactional id is known, or none that was asked for")


@command.command(
    epilog="\b\nExamples:\n  duramen transaction describe orders-1\n  duramen transaction describe orders-1 --json\n",
    short_help="Show ids' state and partitions.",
    help="Show the state of transactional ids, and the partitions of what is open.",
)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=NAME)
@json_option
@cluster_options
def describe(cluster: ClusterAccess, ids: tuple[str, ...], as_json: bool) -> None:
    told: list[Described] = []
    troubles = []
    with _look(cluster) as look:
        for each in dict.fromkeys(ids):
            try:
                told.append(look.described(each))
            except KafkaError as error:
                troubles.append(str(error))
    if as_json and (told or not troubles):
        print_json([_as_json(each) for each in told])
    for known in () if as_json else told:
        _print_described(known)
    if troubles:
        raise click.ClickException(sentence("; ".join(troubles)))


def _as_json(told: Described) -> dict[str, Any]:
    return {**told._asdict(), "partitions": [tp._asdict() for tp in told.partitions]}


def _print_described(told: Described) -> None:
    click.echo(f"{printable(told.transactional_id)}: {told.state}")
    print_field("producer", f"{told.producer_id}, epoch {told.producer_epoch}")
    print_field("coordinator", f"node {told.coordinator}")
    print_field("time-out", f"{told.timeout_ms / 1000:g} s")
    if told.started_ms is not None:
        print_field("open since", f"{iso(told.started_ms)} ({_age(told.started_ms)})")
    if told.partitions:
        print_field("partitions", ", ".join(str(tp) for tp in told.partitions))


def _age(since_ms: int) -> str:
    seconds = max(0, now_ms() - since_ms) // 1000
    if seconds < 120:
        return plural(seconds, "second")
    return plural(seconds // 60, "minute") if seconds < 7200 else plural(seconds // 3600, "hour")


@command.command(
    epilog="""\b
Examples:
  duramen transaction abort orders-1
  duramen transaction abort --partition orders:0 --start-offset 815 --yes

\b
The first form is for a transaction that its coordinator knows: its producer
is fenced, and gets an error with whatever it does next. The second is for
one that hangs (`duramen transaction find-hanging`): a marker is written into
one partition.
""",
    short_help="Abort a transaction, after asking.",
    help="Abort an open transaction, after asking. Consumers of committed records see nothing of it and go on.",
)
@click.argument("transactional_id", metavar="[ID]", required=False, type=NAME)
@click.option("-p", "--partition", "place", metavar="TOPIC:N", help="The partition where one hangs.")
@click.option("--start-offset", type=click.IntRange(min=0), metavar="N", help="Of the one that hangs there.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@cluster_options
def abort(
    cluster: ClusterAccess, transactional_id: str | None, place: str | None, start_offset: int | None, yes: bool
) -> None:
    if (transactional_id is None) == (place is None) or (place is None) != (start_offset is None):
        raise click.UsageError("say which: a transactional ID, or --partition TOPIC:N with --start-offset.")
    with _look(cluster) as look:
        if transactional_id is not None:
            _abort_id(cluster, look, transactional_id, yes)
        else:
            assert place is not None
            assert start_offset is not None
            _abort_hanging(look, _place(place), start_offset, yes)


def _abort_id(cluster: ClusterAccess, look: TransactionLook, transactional_id: str, yes: bool) -> None:
    known = look.described(transactional_id)
    if known.state != "Ongoing":
        why = "is decided already; its markers are being written" if known.state in OPEN_STATES else "nothing is open"
        raise click.ClickException(f"{transactional_id} is {known.state}: {why}.")
    since = "" if known.started_ms is None else f", open for {_age(known.started_ms)}"
    note(f"{transactional_id}: {plural(len(known.partitions), 'partition')}{since}, producer {known.producer_id}")
    for tp in known.partitions[:PARTITIONS_SHOWN]:
        note(f"  {tp}")
    if len(known.partitions) > PARTITIONS_SHOWN:
        note(f"  and {len(known.partitions) - PARTITIONS_SHOWN} more")
    confirm("Abort it, and fence its producer?", yes)
    now = look.abort(known, cluster.timeout)
    if now.state in OPEN_STATES:
        missing = ", ".join(map(str, now.partitions[:PARTITIONS_SHOWN]))
        raise click.ClickException(
            f"{transactional_id} is aborted, but these partitions have no marker yet: {missing}; have they a leader "
            "and enough replicas in sync?"
        )
    note(f"aborted {transactional_id}")


def _abort_hanging(look: TransactionLook, tp: TopicPartition, start_offset: int, yes: bool) -> None:
    found = [each for each in look.open_in([tp]) if each.start_offset == start_offset]
    if not found:
        raise click.ClickException(f"no transaction that begins at offset {start_offset} is open in {tp}.")
    (hanging,) = found
    owner = next(iter(look.listed(producer_ids=[hanging.producer_id])), None)
    if owner is not None and owner.state in OPEN_STATES and tp in look.described(owner.transactional_id).partitions:
        raise click.ClickException(
            f"it does not hang: its coordinator knows it as {owner.transactional_id}, {owner.state}. "
            f"`duramen transaction abort {owner.transactional_id}` aborts it everywhere."
        )
    note(
        f"{tp}: producer {hanging.producer_id} epoch {hanging.producer_epoch}, from offset {start_offset}, last "
        f"written {iso(hanging.written_ms)} ({_age(hanging.written_ms)} ago)"
    )
    confirm("Write a marker there that aborts it?", yes)
    look.end_hanging(hanging)
    note(f"aborted what producer {hanging.producer_id} had open in {tp}")


def _place(text: str) -> TopicPartition:
    name, _, number = text.rpartition(":")
    if not name or not number.isascii() or not number.isdigit():
        raise click.UsageError(f"--partition {text}: expected TOPIC:N.")
    return TopicPartition(name, int(number))


@command.command(
    "find-hanging",
    epilog="""\b
Examples:
  duramen transaction find-hanging
  duramen transaction find-hanging --topic orders --longer-than 1h --json

\b
Such a transaction keeps consumers of committed records waiting for ever.
`duramen transaction abort --partition T:N --start-offset N` ends it.
""",
    short_help="Find those that nobody will end.",
    help="Find transactions that are open in a partition, and that no coordinator knows or has that partition of.",
)
@click.option("-t", "--topic", "topics", multiple=True, type=NAME, help="Only this topic; repeatable.")
@click.option(
    "--longer-than",
    "age_ms",
    default=DEFAULT_AGE,
    show_default=True,
    callback=duration_option,
    metavar="TIME",
    help="Only where nothing was written for so long; less than the longest time-out finds ones that are alive.",
)
@json_option
@cluster_options
def find_hanging(cluster: ClusterAccess, topics: tuple[str, ...], age_ms: int, as_json: bool) -> None:
    with _look(cluster) as look:
        found = look.hanging(look.partitions_of(topics or None), now_ms() - age_ms)
    if as_json:
        print_json([{**_open_json(each.open), "transactional_id": each.transactional_id} for each in found])
        return
    if not found:
        note("no transaction hangs")
        return
    rows = [
        (
            printable(each.open.partition.topic),
            each.open.partition.partition,
            str(each.open.start_offset),
            str(each.open.producer_id),
            each.open.producer_epoch,
            iso(each.open.written_ms),
            printable(each.transactional_id or ""),
        )
        for each in found
    ]
    headings = ("topic", "partition", "start offset", "producer", "epoch", "last written", "transactional id")
    print_table(headings, rows, right=headings[1:5])
    first = found[0].open
    place = f"{first.partition.topic}:{first.partition.partition}"
    note(f"`duramen transaction abort --partition {place} --start-offset {first.start_offset}` aborts the first")


@command.command(
    "describe-producers",
    epilog="\b\nExamples:\n  duramen transaction describe-producers --topic orders --partition 0\n",
    short_help="Show the producers of a partition.",
    help="Show the producers that a partition's leader knows, and where the transaction of each begins there.",
)
@click.option("-t", "--topic", required=True, type=NAME, help="The topic.")
@click.option("-p", "--partition", required=True, type=click.IntRange(min=0), metavar="N", help="Its partition.")
@json_option
@cluster_options
def describe_producers(cluster: ClusterAccess, topic: str, partition: int, as_json: bool) -> None:
    place = TopicPartition(topic, partition)
    with _look(cluster) as look:
        found = look.producers([place])[place]
    if as_json:
        print_json([each._asdict() for each in found])
        return
    if not found:
        note(f"{place} knows no producer")
        return
    rows = [
        (
            str(each.producer_id),
            each.producer_epoch,
            str(each.last_sequence),
            iso(each.written_ms),
            each.coordinator_epoch,
            None if each.start_offset is None else str(each.start_offset),
        )
        for each in sorted(found)
    ]
    headings = ("producer", "epoch", "last sequence", "last written", "coordinator epoch", "open from")
    print_table(headings, rows, right=(*headings[:3], *headings[4:]))


def _open_json(told: OpenTransaction) -> dict[str, Any]:
    return {**told.partition._asdict(), **{key: value for key, value in told._asdict().items() if key != "partition"}}
