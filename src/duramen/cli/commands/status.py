"""`duramen status`: nodes, topics and groups at a glance, refreshed while somebody looks."""

from __future__ import annotations

import sys
import time
from typing import Any

import click
from confluent_kafka.admin import AdminClient

from duramen.cli.commands import damage
from duramen.cli.commands.quorum_status import as_document
from duramen.cli.commands.status_look import Looks, Status, attention, headline, look
from duramen.cli.commands.status_screen import (
    GROUP_HEADINGS,
    NODE_HEADINGS,
    ORDERS,
    TOPIC_HEADINGS,
    ScreenLine,
    View,
    damage_of,
    group_rows,
    node_rows,
    screen,
    topic_rows,
    wrapped,
)
from duramen.cli.shared.connection import ClusterAccess, Seconds, cluster_options, json_option
from duramen.cli.shared.keys import listening
from duramen.cli.shared.output import print_json, print_table
from duramen.cli.shared.signals import ended_in_order

EPILOG = """\b
Examples:
  duramen status                refreshes until Ctrl-C; keys page and sort
  duramen status --sort rate    the busiest topics first
  duramen status --once
  duramen status --json | jq '.topics[] | {topic, bytes, records_per_second}'

\b
A live status goes on when the node is away, and says since when.
"""

_RATE_SECONDS_MAX = 1.0
"""Between the two looks that a rate needs, where there is only one answer."""
_DRAW_SECONDS = 0.5
_ALL_LINES = 1 << 20
_WIDTH = 80
"""Of lines that are not of a table, where they are printed once."""


@click.command(
    epilog=EPILOG,
    help="Show the nodes, topics and groups, live, with what the nodes know to be damaged.",
)
@click.option("--once", is_flag=True, help="Print once and stop; so it is without a terminal.")
@click.option(
    "--interval",
    type=Seconds(0.2, 86_400),
    default=2.0,
    show_default=True,
    help="Seconds between looks; --once and --json look twice, at most a second apart, for rates.",
)
@click.option(
    "--sort",
    "order",
    type=click.Choice(list(ORDERS)),
    default="bytes",
    show_default=True,
    help="Topics by name, or the most first.",
)
@json_option
@cluster_options
def command(cluster: ClusterAccess, once: bool, interval: float, order: str, as_json: bool) -> None:
    admin = cluster.admin()
    status = look(cluster, admin, None)
    if not as_json and not once and sys.stdout.isatty():
        with ended_in_order():
            _watch(cluster, admin, status, interval, View(order))
        return
    if status.topics:
        time.sleep(min(interval, _RATE_SECONDS_MAX))
        status = look(cluster, admin, status)
    if as_json:
        print_json(_as_json(status))
    else:
        _print(status, order)


def _print(status: Status, order: str) -> None:
    for line in wrapped(headline(status), _WIDTH):
        click.echo(line)
    for line in (*attention(status), *damage.lines(damage_of(status))):
        click.echo(line)
    if len(status.nodes) > 1:
        click.echo()
        print_table(NODE_HEADINGS, node_rows(status), right=("node", *NODE_HEADINGS[3:-1]))
    if status.topics:
        click.echo()
        print_table(TOPIC_HEADINGS, topic_rows(status.topics, order), right=TOPIC_HEADINGS[1:])
    if status.groups:
        click.echo()
        print_table(GROUP_HEADINGS, group_rows(status), right=GROUP_HEADINGS[1:3])


def _as_json(status: Status) -> dict[str, Any]:
    return {
        "cluster_id": status.cluster_id,
        "controller": status.controller,
        "time_ms": round(status.told * 1000),
        "nodes": [node._asdict() for node in status.nodes],
        "quorum": None if status.quorum is None else as_document(status.quorum),
        "topics": [
            {
                "topic": topic.topic,
                "partitions": len(topic.partitions),
                "records": topic.records,
                "offline": topic.offline,
                "under_replicated": topic.under_replicated,
                "under_min_isr": topic.under_min_isr,
                "bytes": topic.bytes,
                "lag": topic.lag,
                "records_per_second": None if topic.rate is None else round(topic.rate, 3),
                "offsets": [part._asdict() for part in topic.partitions],
            }
            for topic in status.topics
        ],
        "bytes_trouble": status.bytes_trouble,
        "groups": [
            {
                "group": group.group,
                "state": group.state,
                "members": group.members,
                "lag": group.lag,
                "offsets": [position._asdict() for position in group.positions],
            }
            for group in status.groups
        ],
        "groups_trouble": status.groups_trouble,
        "damage": [damage.as_json(node) for node in status.damage],
    }


def _watch(cluster: ClusterAccess, admin: AdminClient, status: Status, interval: float, view: View) -> None:
    """Redraw until interrupted."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    def drawn(lines: list[ScreenLine]) -> Group:
        return Group(*(Text(line.text, style=line.style, no_wrap=True, overflow="crop") for line in lines))

    console = Console(highlight=False)
    looks = Looks(cluster, admin, status, interval)
    looks.start()
    if console.is_dumb_terminal:
        # It cannot go back to draw over what it shows: one look below the other.
        shown: object = None
        while True:
            if shown != (looks.status.told, looks.trouble):
                shown = looks.status.told, looks.trouble
                away = looks.away(time.time())
                console.print(drawn(screen(looks.status, view, console.width, _ALL_LINES, away, keys=False)[0]))
            time.sleep(min(interval, _DRAW_SECONDS))
    with listening() as keys, Live(console=console, auto_refresh=False) as live:
        while True:
            width, height = console.size
            away = looks.away(time.time())
            lines, view = screen(looks.status, view, width, height - 1, away, keys=keys.can_be_pressed)
            live.update(drawn(lines), refresh=True)
            key = keys.pressed(min(interval, _DRAW_SECONDS))
            if key == "q":
                return
            view = view.after(key)
