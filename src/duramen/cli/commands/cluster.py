"""`duramen cluster`: form a cluster, by formatting the directories of each of its nodes; look at its quorum."""

from __future__ import annotations

import time
from typing import Any

import click

from duramen.cli.commands import quorum_status
from duramen.cli.shared.output import print_json
from duramen.cli.shared.properties_file import config_options, node_settings
from duramen.config import BrokerConfig, load_broker_config
from duramen.errors import ConfigError
from duramen.partition.metadata.formation import (
    Founding,
    InitialController,
    format_node,
    new_id,
    parse_controllers,
    parse_id,
)
from duramen.storage import FormattedDirectory, RealDisk, SystemEntropy

EPILOG = """\b
Examples:
  duramen cluster init --standalone
  duramen cluster init --plan 1@a:9093,2@b:9093,3@c:9093
  duramen cluster init --config node1.properties --cluster-id ID \\
               --initial-controllers 1@a:9093:DIR,2@b:9093:DIR
  duramen cluster status --bootstrap-controller a:9093
  duramen cluster random-uuid
"""


@click.group(
    epilog=EPILOG,
    help="""Form a cluster: format the directories of its nodes, once, before they first start.

    A node that is to be alone needs none of this; `duramen serve` makes its
    directory itself. `duramen dev` forms a cluster here and runs it, to try.
    docs/operations.md has the files of three nodes.
    """,
)
def command() -> None:
    pass


command.add_command(quorum_status.command)


@command.command(
    "init",
    short_help="Format a node's directories.",
    epilog="""\b
Examples:
  duramen cluster init --standalone --set log.dirs=/var/lib/duramen
  duramen cluster init --plan 1@a:9093,2@b:9093,3@c:9093 --json
  duramen cluster init --config node1.properties --cluster-id ID \\
               --initial-controllers 1@a:9093:DIR,2@b:9093:DIR

\b
--plan prints the line that is to be run on each controller: the same voters
and the same cluster id, with that node's own --config. What is formatted is
not formatted again; what was interrupted is completed by the same line. Exit
code: 0 done, 1 it cannot be formatted, 2 it was asked for wrongly.
""",
    help="""Format the directories of one node, as kafka-storage format does.

    A controller is told who the first voters are: this node alone
    (--standalone), these (--initial-controllers, the same on each of them), or
    that the others know (--no-initial-controllers). A broker that is no
    controller is told nothing.
    """,
)
@config_options
@click.option("--cluster-id", metavar="ID", help="The cluster's id; without it a random one, which is printed.")
@click.option("--standalone", is_flag=True, help="This node is the only voter, and the cluster is its own.")
@click.option(
    "-I",
    "--initial-controllers",
    "controllers",
    metavar="LIST",
    help="The first voters, as ID@HOST:PORT:DIRECTORY-ID, separated by commas.",
)
@click.option("-N", "--no-initial-controllers", "later", is_flag=True, help="A controller that is no voter yet.")
@click.option("--plan", metavar="LIST", help="Print the line for controllers ID@HOST:PORT, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def init_command(
    file: str | None,
    settings: tuple[str, ...],
    cluster_id: str | None,
    standalone: bool,
    controllers: str | None,
    later: bool,
    plan: str | None,
    as_json: bool,
) -> None:
    if cluster_id is not None:
        parse_id("--cluster-id", cluster_id)
    chosen = [
        option
        for option, given in (
            ("--plan", plan is not None),
            ("--standalone", standalone),
            ("--initial-controllers", controllers is not None),
            ("--no-initial-controllers", later),
        )
        if given
    ]
    if len(chosen) > 1:
        raise click.UsageError(f"{chosen[0]} and {chosen[1]} exclude each other.")
    if plan is not None:
        _plan(plan, cluster_id, as_json=as_json)
        return
    config = load_broker_config(None, node_settings(file, settings)[0])
    if not chosen and "controller" in config.strings("process.roles"):
        raise ConfigError(
            "who are the first voters? Give --standalone for this node alone, --initial-controllers for several, or "
            "--no-initial-controllers for a controller that joins later"
        )
    voters = None if controllers is None else parse_controllers("--initial-controllers", controllers)
    if voters is not None and cluster_id is None:
        raise ConfigError("--initial-controllers needs --cluster-id: every node of a cluster is given the same one")
    if not chosen and cluster_id is None:
        raise ConfigError("a broker needs --cluster-id: that of its controllers")
    if later and cluster_id is None:
        raise ConfigError("--no-initial-controllers needs --cluster-id: that of the other controllers")
    founding = Founding(voters, is_standalone=standalone)
    now_ms = int(time.time() * 1000)
    formatted = format_node(RealDisk(), SystemEntropy(), config, cluster_id, founding, now_ms)
    _print_formatted(config, formatted, voters, as_json=as_json)


def _plan(text: str, cluster_id: str | None, *, as_json: bool) -> None:
    """The same voters for each of them, with ids that nothing has yet."""
    entropy = SystemEntropy()
    cluster_id = cluster_id or new_id(entropy)
    found = parse_controllers("--plan", text, with_directories=False)
    planned = [each._replace(directory_id=new_id(entropy)) for each in found]
    listed = ",".join(map(str, planned))
    if as_json:
        print_json({"cluster_id": cluster_id, "initial_controllers": listed, "controllers": _controllers(planned)})
        return
    click.echo(f"duramen cluster init --config FILE --cluster-id {cluster_id} --initial-controllers {listed}")


def _controllers(controllers: list[InitialController] | None) -> list[dict[str, Any]]:
    return [each._asdict() for each in controllers or ()]


def _print_formatted(
    config: BrokerConfig,
    formatted: list[FormattedDirectory],
    voters: list[InitialController] | None,
    *,
    as_json: bool,
) -> None:
    identity = formatted[0].identity
    if as_json:
        print_json(
            {
                "cluster_id": identity.cluster_id,
                "node_id": identity.node_id,
                "directories": [
                    {
                        "path": each.path,
                        "directory_id": each.identity.directory_id,
                        "metadata": each.path == config.metadata_directory,
                    }
                    for each in formatted
                ],
                "controllers": _controllers(voters),
            }
        )
        return
    click.echo(f"cluster {identity.cluster_id}, node {identity.node_id}")
    for each in formatted:
        what = ", with the metadata log" if each.path == config.metadata_directory else ""
        click.echo(f"formatted {each.path}: directory {each.identity.directory_id}{what}")


@command.command(
    "random-uuid",
    short_help="Print a random id.",
    help="Print a random id, for a cluster or a directory.",
    epilog="""\b
Examples:
  duramen cluster random-uuid
""",
)
def random_uuid_command() -> None:
    click.echo(new_id(SystemEntropy()))
