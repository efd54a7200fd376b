"""`duramen topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import click
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigSource, NewPartitions, NewTopic

from duramen.cli.shared.confirmation import confirm
from duramen.cli.shared.connection import (
    NAME,
    ClusterAccess,
    call,
    cluster_options,
    ends_of,
    error_name,
    internal_topics,
    json_option,
    only,
    partitions_of,
    sentence,
    wait,
    wait_for_each,
)
from duramen.cli.shared.node_look import nodes_of, served
from duramen.cli.shared.output import human_bytes, note, pairs, plural, print_json, print_table
from duramen.cli.shared.settings import alter_settings, described, fewest_in_sync, topic_resource
from duramen.cli.shared.sizes import sizes_of
from duramen.cli.shared.topic_patterns import matching

EPILOG = """\b
Examples:
  duramen topic create flights --partitions 6 --config retention.ms=-1
  duramen topic list --sort bytes
  duramen topic describe flights
  duramen topic alter flights --partitions 12 --set retention.ms=86400000
  duramen topic delete flights
"""

PARTITIONS = click.IntRange(1, 100_000)
"""How many a topic may have; as the number of copies, by the client library's bound."""


@click.group(
    epilog=EPILOG,
    help="Create, list, describe, alter and delete topics.",
)
def command() -> None:
    pass


@command.command(
    epilog="""\b
Examples:
  duramen topic create flights
  duramen topic create flights --partitions 6 --config retention.ms=86400000
  duramen topic create events --config segment.bytes=67108864 --if-not-exists
""",
    help="Create topics.",
)
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, type=NAME)
@click.option("--partitions", type=PARTITIONS, help="Partitions; the node's num.partitions if unset.")
@click.option("--replication-factor", type=click.IntRange(1, 10_000), help="Copies; the node's default if unset.")
@click.option("--config", "settings", multiple=True, metavar="KEY=VALUE", help="A topic setting; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="No error when the topic exists.")
@cluster_options
def create(
    cluster: ClusterAccess,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    settings: tuple[str, ...],
    if_not_exists: bool,
) -> None:
    config = pairs("--config", settings)
    admin = cluster.admin()
    new = [NewTopic(name, partitions or -1, replication_factor or -1, config=config) for name in dict.fromkeys(names)]
    futures = call(cluster, "cannot create", lambda: admin.create_topics(new, operation_timeout=cluster.timeout))

    def there_already(name: str, error: BaseException) -> bool:
        excused = if_not_exists and error_name(error) == "TOPIC_ALREADY_EXISTS"
        if excused:
            note(f"{name} exists")
        return excused

    wait_for_each(cluster, futures, lambda name, _: note(f"created {name}"), there_already)


class TopicRow(NamedTuple):
    """One topic of the list.

    records: None where the nodes show them to no client. bytes: of all copies, None where the nodes do not say.
    """

    topic: str
    partitions: int
    replicas: int
    records: int | None
    bytes: int | None
    offline: int


@command.command(
    "list",
    epilog="""\b
Examples:
  duramen topic list
  duramen topic list 'orders.*'                 those of such a name
  duramen topic list --sort bytes               what fills the disk, first
  duramen topic list --internal --json
""",
    help="""List topics with their partitions, records and bytes on disk.

    Each one, or those that are named or match a pattern in quotes, in which * and ? stand for any letters.
    """,
)
@click.argument("patterns", metavar="[TOPIC]...", nargs=-1, type=NAME)
@click.option("--internal", is_flag=True, help="Include internal topics, such as __consumer_offsets.")
@click.option(
    "--sort",
    "order",
    type=click.Choice(["name", "bytes", "records", "partitions"]),
    default="name",
    show_default=True,
    help="By name, or the most first.",
)
@json_option
@cluster_options
def list_(cluster: ClusterAccess, patterns: tuple[str, ...], internal: bool, order: str, as_json: bool) -> None:
    admin = cluster.admin()
    metadata = call(cluster, "cannot list topics", lambda: admin.list_topics(timeout=cluster.timeout))
    found = metadata.topics
    sizes = sizes_of(cluster, nodes_of(metadata))
    if order == "bytes" and sizes.trouble is not None:
        raise click.ClickException(f"--sort bytes: {sentence(sizes.trouble)}")
    shown = sorted(found if internal else found.keys() - internal_topics(cluster, admin, found))
    names = matching(shown, found, patterns) if patterns else shown
    every = [(name, partition) for name in names for partition in sorted(found[name].partitions)]
    unknown: set[tuple[str, int]] = set()
    online = ends_of(cluster, admin, served(cluster, metadata, every), unknown)
    rows = []
    for name in names:
        partitions = found[name].partitions
        copies = max((len(partition.replicas) for partition in partitions.values()), default=0)
        known = [online[(name, p)] for p in partitions if (name, p) in online]
        hidden = sum((name, p) in unknown for p in partitions)
        records = None if hidden else sum(last - first for first, last in known)
        size = sizes.of_topic(name, partitions)
        rows.append(TopicRow(name, len(partitions), copies, records, size, len(partitions) - len(known) - hidden))
    if order != "name":
        rows.sort(key=lambda row: -(getattr(row, order) or 0))
    if as_json:
        print_json([row._asdict() for row in rows])
    elif rows:
        headings = TopicRow._fields[:-1]
        print_table(headings, [(*row[:4], _size(row.bytes)) for row in rows], right=headings[1:])
        offline = sum(row.offline for row in rows)
        if offline:
            note(f"{plural(offline, 'partition')} offline, not counted; the node's log says why")
        if sizes.trouble is not None:
            note(sizes.trouble)
    elif not patterns:
        note("there are no topics; `duramen topic create NAME` makes one")


def _size(count: int | None) -> str | None:
    return None if count is None else human_bytes(count)


@command.command(
    short_help="Show topics' partitions, offsets, bytes and settings.",
    epilog="\b\nExamples:\n  duramen topic describe flights\n  duramen topic describe flights --json\n",
    help="""Show topics' partitions, where their logs start and end, their bytes on disk, and settings that are not
    defaults.""",
)
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, type=NAME)
@json_option
@cluster_options
def describe(cluster: ClusterAccess, names: tuple[str, ...], as_json: bool) -> None:
    admin = cluster.admin()
    names = tuple(dict.fromkeys(names))
    numbers = partitions_of(cluster, admin, names)
    every = [(name, partition) for name in names for partition in numbers[name]]
    hidden: set[tuple[str, int]] = set()
    metadata = call(cluster, "cannot describe", lambda: admin.list_topics(timeout=cluster.timeout))
    led = served(cluster, metadata, [(name, number) for name, number in every if name in metadata.topics])
    online: dict[tuple[str, int], tuple[int | None, int | None]] = {**ends_of(cluster, admin, led, hidden)}
    stable = _stable(cluster, admin, online)
    sizes = sizes_of(cluster, nodes_of(metadata))
    futures = call(cluster, "cannot describe", lambda: admin.describe_topics(TopicCollection(list(names))))
    told = []
    for name in names:
        topic = wait(cluster, name, futures[name])
        entries = described(cluster, admin, topic_resource(name))
        partitions = [
            {
                "partition": part.id,
                "leader": None if part.leader is None else part.leader.id,
                "replicas": [node.id for node in part.replicas],
                "isr": [node.id for node in part.isr],
                "under_replicated": len(part.isr) < len(part.replicas),
                "under_min_isr": len(part.isr) < fewest_in_sync(entries, len(part.replicas)),
                "offline": (name, part.id) not in online and (name, part.id) not in hidden,
                "start_offset": online.get((name, part.id), (None, None))[0],
                "end_offset": online.get((name, part.id), (None, None))[1],
                "last_stable_offset": stable.get((name, part.id)),
                "bytes": sizes.of(name, part.id),
            }
            for part in sorted(topic.partitions, key=lambda part: part.id)
        ]
        told.append(
            {
                "topic": name,
                "topic_id": _topic_id(str(topic.topic_id)),
                "internal": topic.is_internal,
                "bytes": sizes.of_topic(name, numbers[name]),
                "partitions": partitions,
                "settings": _settings(entries),
            }
        )
    if as_json:
        print_json(told)
        return
    for topic in told:
        _print_description(topic)


def _stable(
    cluster: ClusterAccess, admin: AdminClient, online: Mapping[tuple[str, int], tuple[int | None, int | None]]
) -> dict[tuple[str, int], int]:
    """How far readers of committed records read, as of what the ends are known to be."""
    found = ends_of(cluster, admin, list(online), set(), committed=True)
    return {place: min(stable, online[place][1] or 0) for place, (_, stable) in found.items()}


def _topic_id(text: str) -> str:
    """The id as Kafka's own tools print it: the client library uses the other alphabet of base64."""
    return text.translate({ord("+"): "-", ord("/"): "_"})


def _settings(entries: Iterable[ConfigEntry]) -> dict[str, str | None]:
    """The topic's settings that somebody set, on the topic or on the node."""
    return {e.name: e.value for e in entries if ConfigSource(e.source) is not ConfigSource.DEFAULT_CONFIG}


def _print_description(topic: dict[str, Any]) -> None:
    more = [f"id {topic['topic_id']}"] + (["internal"] if topic["internal"] else [])
    more += [] if topic["bytes"] is None else [human_bytes(topic["bytes"])]
    click.echo(f"{topic['topic']}  ({', '.join(more)})")
    for key, value in topic["settings"].items():
        click.echo(f"  {key}={value}")
    headings = ("partition", "leader", "replicas", "isr", "start", "end", "stable", "bytes")
    rows: list[tuple[object, ...]] = [
        (
            p["partition"],
            p["leader"],
            _ids(p["replicas"]),
            _ids(p["isr"]),
            p["start_offset"],
            "offline" if p["offline"] else p["end_offset"],
            p["last_stable_offset"],
            _size(p["bytes"]),
        )
        for p in topic["partitions"]
    ]
    # Where a transaction is open, readers of committed records wait at "stable".
    is_open = any(p["last_stable_offset"] != p["end_offset"] for p in topic["partitions"])
    shown = [number for number, heading in enumerate(headings) if is_open or heading != "stable"]
    print_table(
        [headings[number] for number in shown],
        [[row[number] for number in shown] for row in rows],
        right=("partition", "leader", "start", "end", "stable", "bytes"),
    )
    for line in _behind(topic):
        click.echo(line)


def _behind(topic: dict[str, Any]) -> list[str]:
    """Which replicas are not in sync, and what follows from that for producers."""
    count = plural(len(topic["partitions"]), "partition")
    lacking = [set(part["replicas"]) - set(part["isr"]) for part in topic["partitions"]]
    lines = []
    if any(lacking):
        nodes = ", ".join(f"node {node}" for node in sorted(set().union(*lacking)))
        lines.append(f"{sum(map(bool, lacking)):,} of {count} under-replicated: not in sync: {nodes}")
    refused = sum(part["under_min_isr"] for part in topic["partitions"])
    if refused:
        lines.append(f"{refused:,} of {count} with fewer in sync than min.insync.replicas: acks=all is refused")
    return lines


def _ids(numbers: Iterable[int]) -> str:
    return ",".join(str(number) for number in numbers)


@command.command(
    epilog="""\b
Examples:
  duramen topic alter flights --partitions 12
  duramen topic alter flights --set retention.ms=86400000
  duramen topic alter flights --unset retention.ms
""",
    help="Add partitions to a topic and change its settings.",
)
@click.argument("name", metavar="TOPIC", type=NAME)
@click.option("--partitions", type=PARTITIONS, help="Raise the number of partitions to this.")
@click.option("-s", "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a setting; repeatable.")
@click.option("--unset", multiple=True, metavar="KEY", help="Return a setting to its default; repeatable.")
@cluster_options
def alter(
    cluster: ClusterAccess, name: str, partitions: int | None, settings: tuple[str, ...], unset: tuple[str, ...]
) -> None:
    changes = pairs("--set", settings)
    if partitions is None and not changes and not unset:
        raise click.UsageError("nothing to change: give --partitions, --set or --unset.")
    admin = cluster.admin()
    if changes or unset:
        alter_settings(cluster, admin, topic_resource(name), changes, unset)
        note(f"changed {plural(len(changes) + len(unset), 'setting')} of {name}")
    if partitions is not None:
        new = [NewPartitions(name, partitions)]
        futures = call(cluster, name, lambda: admin.create_partitions(new, operation_timeout=cluster.timeout))
        wait(cluster, name, only(futures))
        note(f"{name} has {plural(partitions, 'partition')}")


@command.command(
    epilog="\b\nExamples:\n  duramen topic delete flights\n  duramen topic delete flights --yes\n",
    help="Delete topics and all their records.",
)
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, type=NAME)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--if-exists", is_flag=True, help="No error when there is no such topic.")
@cluster_options
def delete(cluster: ClusterAccess, names: tuple[str, ...], yes: bool, if_exists: bool) -> None:
    once = list(dict.fromkeys(names))
    confirm(f"Delete {', '.join(once)} and all records in it?", yes)
    admin = cluster.admin()
    futures = call(cluster, "cannot delete", lambda: admin.delete_topics(once, operation_timeout=cluster.timeout))

    def gone_already(name: str, error: BaseException) -> bool:
        excused = if_exists and error_name(error) == "UNKNOWN_TOPIC_OR_PART"
        if excused:
            note(f"there is no topic {name}")
        return excused

    wait_for_each(cluster, futures, lambda name, _: note(f"deleted {name}"), gone_already)
