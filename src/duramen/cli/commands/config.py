"""`duramen config`: describe and alter the settings of topics, nodes and groups."""

from __future__ import annotations

from collections.abc import Iterable

import click
from confluent_kafka.admin import AdminClient, ConfigResource

from duramen.cli.shared.connection import NAME, ClusterAccess, call, cluster_options, json_option
from duramen.cli.shared.output import note, pairs, plural, print_json
from duramen.cli.shared.settings import (
    alter_settings,
    described,
    group_resource,
    is_default,
    label,
    node_resource,
    refuse_unknown,
    source_name,
    topic_resource,
)

EPILOG = """\b
Examples:
  duramen config describe --topic flights --all
  duramen config describe --node 1
  duramen config alter --topic flights --set retention.ms=86400000
  duramen config alter --topic state --append cleanup.policy=delete
"""


@click.group(
    epilog=EPILOG,
    help="Describe and alter the settings of topics, nodes and groups.",
)
def command() -> None:
    pass


def _resource(
    cluster: ClusterAccess, admin: AdminClient, topic: str | None, node: int | None, group: str | None
) -> ConfigResource:
    """What the options name; the node itself when they name nothing and there is only one."""
    if sum(option is not None for option in (topic, node, group)) > 1:
        raise click.UsageError("give one of --topic, --node and --group.")
    if topic is not None:
        return topic_resource(topic)
    if group is not None:
        return group_resource(group)
    nodes = sorted(call(cluster, "cannot list nodes", lambda: admin.list_topics(timeout=cluster.timeout)).brokers)
    listed = ", ".join(map(str, nodes))
    if node is not None and node not in nodes:
        raise click.ClickException(f"there is no node {node}; there is {listed}.")
    if node is None and len(nodes) != 1:
        raise click.UsageError(f"which one? Give --topic NAME or --node ID; there are the nodes {listed}.")
    return node_resource(nodes[0] if node is None else node)


@command.command(
    short_help="Show settings and where each value comes from.",
    epilog="""\b
Examples:
  duramen config describe --topic flights
  duramen config describe --node 1 --all
  duramen config describe --topic flights --key retention.ms --json
""",
    help="Show settings, where each value comes from, and whether it can be changed.",
)
@click.option("-t", "--topic", type=NAME, help="The topic.")
@click.option("--node", type=int, help="The node's id; may be left out when there is only one.")
@click.option("-g", "--group", type=NAME, help="The consumer group.")
@click.option("-a", "--all", "every", is_flag=True, help="Defaults as well.")
@click.option("--key", "keys", multiple=True, help="Only this setting; repeatable.")
@json_option
@cluster_options
def describe(
    cluster: ClusterAccess,
    topic: str | None,
    node: int | None,
    group: str | None,
    every: bool,
    keys: tuple[str, ...],
    as_json: bool,
) -> None:
    admin = cluster.admin()
    resource = _resource(cluster, admin, topic, node, group)
    entries = described(cluster, admin, resource)
    refuse_unknown(resource, keys, entries)
    if keys:
        entries = [entry for entry in entries if entry.name in keys]
    elif not every:
        entries = [entry for entry in entries if not is_default(entry)]
    if as_json:
        print_json(
            [
                {"name": e.name, "value": e.value, "source": source_name(e), "read_only": bool(e.is_read_only)}
                for e in entries
            ]
        )
    elif entries:
        for entry in entries:
            value = "(hidden)" if entry.is_sensitive else entry.value if entry.value is not None else "(unset)"
            click.echo(f"{entry.name}={value}\n    {source_name(entry)}{', read-only' if entry.is_read_only else ''}")
    else:
        note("every setting has its default; --all shows them")


def _lists(option: str, given: Iterable[str]) -> dict[str, str]:
    """What to add to a list or take from it; a key that is given again has more of it."""
    found: dict[str, str] = {}
    for text in given:
        for key, value in pairs(option, [text]).items():
            found[key] = f"{found[key]},{value}" if key in found else value
    return found


@command.command(
    epilog="""\b
Examples:
  duramen config alter --topic flights --set retention.ms=86400000
  duramen config alter --topic flights --unset retention.ms
  duramen config alter --topic state --append cleanup.policy=delete
  duramen config alter --node 1 --set message.max.bytes=2097152
  duramen config alter --group audit --set consumer.session.timeout.ms=50000
""",
    help="Change settings of a topic, a node or a group while it runs.",
)
@click.option("-t", "--topic", type=NAME, help="The topic.")
@click.option("--node", type=int, help="The node's id; may be left out when there is only one.")
@click.option("-g", "--group", type=NAME, help="The consumer group.")
@click.option("-s", "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a setting; repeatable.")
@click.option("--unset", multiple=True, metavar="KEY", help="Return a setting to its default; repeatable.")
@click.option("--append", multiple=True, metavar="KEY=VALUE", help="Add to a list; repeatable.")
@click.option("--subtract", multiple=True, metavar="KEY=VALUE", help="Take from a list; repeatable.")
@cluster_options
def alter(
    cluster: ClusterAccess,
    topic: str | None,
    node: int | None,
    group: str | None,
    settings: tuple[str, ...],
    unset: tuple[str, ...],
    append: tuple[str, ...],
    subtract: tuple[str, ...],
) -> None:
    count = len(settings) + len(unset) + len(append) + len(subtract)
    if not count:
        raise click.UsageError("nothing to change: give --set, --unset, --append or --subtract.")
    changes = pairs("--set", settings)
    added, taken = _lists("--append", append), _lists("--subtract", subtract)
    admin = cluster.admin()
    resource = _resource(cluster, admin, topic, node, group)
    alter_settings(cluster, admin, resource, changes, unset, added, taken)
    note(f"changed {plural(count, 'setting')} of {label(resource)}")
