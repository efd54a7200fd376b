"""`duramen status`: nodes, topics and groups at a glance, refreshed while somebody looks."""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

import click
from confluent_kafka.admin import AdminClient

from duramen.cli.commands import damage
from duramen.cli.commands.group import group_rows
from duramen.cli.shared.connection import (
    ClusterAccess,
    Seconds,
    call,
    cluster_options,
    ends_of,
    internal_topics,
    json_option,
    wait,
)
from duramen.cli.shared.output import cell, plural, print_json, print_table, rich_table

EPILOG = """\b
Examples:
  duramen status                refreshes until Ctrl-C
  duramen status --once
  duramen status --json | jq .topics
"""


class TopicStatus(NamedTuple):
    """One topic; rate is records a second since the last look, None at the first."""

    topic: str
    partitions: int
    records: int
    end_offsets: int
    rate: float | None
    offline: int


class Status(NamedTuple):
    """What one look at the cluster found. groups_trouble: why there are no groups in it, although there may be some."""

    cluster_id: str
    controller: int
    nodes: list[str]
    topics: list[TopicStatus]
    groups: list[tuple[str, str, int, int | None]]
    groups_trouble: str | None
    damage: list[damage.NodeDamage]
    taken: float


def look(cluster: ClusterAccess, admin: AdminClient, before: Status | None) -> Status:
    """The cluster's state now; rates are relative to `before`."""
    metadata = call(cluster, "cannot read the metadata", lambda: admin.list_topics(timeout=cluster.timeout))
    told = wait(cluster, "cannot describe the cluster", admin.describe_cluster(request_timeout=cluster.timeout))
    names = sorted(metadata.topics.keys() - internal_topics(cluster, admin, metadata.topics))
    led = [
        (name, partition)
        for name in names
        for partition, state in sorted(metadata.topics[name].partitions.items())
        if state.leader >= 0
    ]
    online = ends_of(cluster, admin, led)
    taken = time.monotonic()
    earlier = {} if before is None else {topic.topic: topic.end_offsets for topic in before.topics}
    topics = []
    for name in names:
        partitions = [ends for tp, ends in online.items() if tp[0] == name]
        ends = sum(last for _, last in partitions)
        rate = None
        if before is not None and name in earlier:
            rate = max(0.0, (ends - earlier[name]) / max(taken - before.taken, 0.001))
        total = len(metadata.topics[name].partitions)
        records = ends - sum(first for first, _ in partitions)
        topics.append(TopicStatus(name, total, records, ends, rate, total - len(partitions)))
    nodes = sorted(told.nodes, key=lambda node: node.id)
    groups, trouble = _groups(cluster, admin)
    return Status(
        told.cluster_id or "",
        told.controller.id if told.controller else -1,
        [f"{node.id} ({node.host}:{node.port})" for node in nodes],
        topics,
        groups,
        trouble,
        damage.ask_nodes(cluster, [(node.id, node.host, node.port) for node in nodes]),
        taken,
    )


def _groups(cluster: ClusterAccess, admin: AdminClient) -> tuple[list[tuple[str, str, int, int | None]], str | None]:
    """The groups, or why they cannot be told: whoever looks for what is wrong has to see the rest all the same."""
    try:
        return group_rows(cluster, admin), None
    except click.ClickException as error:
        return [], error.message


@click.command(
    epilog=EPILOG,
    help="Show the nodes, topics and groups, live, with what the nodes know to be damaged.",
)
@click.option("--once", is_flag=True, help="Print once and stop; so it is without a terminal.")
@click.option("--interval", type=Seconds(0.2, 86_400), default=2.0, show_default=True, help="Seconds between looks.")
@json_option
@cluster_options
def command(cluster: ClusterAccess, once: bool, interval: float, as_json: bool) -> None:
    admin = cluster.admin()
    status = look(cluster, admin, None)
    if as_json:
        print_json(_as_json(status))
    elif once or not sys.stdout.isatty():
        _print(status)
    else:
        _watch(cluster, admin, status, interval)


def _headline(status: Status) -> str:
    nodes = ", ".join(status.nodes)
    records = plural(sum(topic.records for topic in status.topics), "record")
    groups = plural(len(status.groups), "group") if status.groups_trouble is None else status.groups_trouble
    return (
        f"cluster {status.cluster_id or '?'}, controller {status.controller}, nodes {nodes}\n"
        f"{plural(len(status.topics), 'topic')}, {records}, {groups}"
    )


_TOPIC_HEADINGS = ("topic", "partitions", "records", "records/s", "offline")
_GROUP_HEADINGS = ("group", "state", "members", "lag")


def _topic_rows(status: Status) -> list[tuple[object, ...]]:
    return [
        (t.topic, t.partitions, t.records, None if t.rate is None else round(t.rate), t.offline) for t in status.topics
    ]


def _print(status: Status) -> None:
    click.echo(_headline(status))
    for line in damage.lines(status.damage):
        click.echo(line)
    if status.topics:
        click.echo()
        print_table(_TOPIC_HEADINGS, _topic_rows(status), right=_TOPIC_HEADINGS[1:])
    if status.groups:
        click.echo()
        print_table(_GROUP_HEADINGS, status.groups, right=_GROUP_HEADINGS[2:])


def _as_json(status: Status) -> dict[str, Any]:
    return {
        "cluster_id": status.cluster_id,
        "controller": status.controller,
        "nodes": status.nodes,
        "topics": [
            {"topic": t.topic, "partitions": t.partitions, "records": t.records, "offline": t.offline}
            for t in status.topics
        ],
        "groups": [dict(zip(_GROUP_HEADINGS, group, strict=True)) for group in status.groups],
        "groups_trouble": status.groups_trouble,
        "damage": [damage.as_json(node) for node in status.damage],
    }


def _watch(cluster: ClusterAccess, admin: AdminClient, status: Status, interval: float) -> None:
    """Redraw until interrupted."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    def drawn(now: Status) -> Group:
        topics = [[cell(value) for value in row] for row in _topic_rows(now)]
        groups = [[cell(value) for value in row] for row in now.groups]
        parts: list[Any] = [Text("\n".join([_headline(now), *damage.lines(now.damage)]))]
        if topics:
            parts.append(rich_table(_TOPIC_HEADINGS, topics, set(_TOPIC_HEADINGS[1:])))
        if groups:
            parts.append(rich_table(_GROUP_HEADINGS, groups, set(_GROUP_HEADINGS[2:])))
        return Group(*parts, Text("Ctrl-C ends", style="dim"))

    console = Console(highlight=False)
    if console.is_dumb_terminal:
        # It cannot go back to draw over what it shows: one look below the other.
        while True:
            console.print(drawn(status))
            time.sleep(interval)
            status = look(cluster, admin, status)
    with Live(drawn(status), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            status = look(cluster, admin, status)
            live.update(drawn(status), refresh=True)
