"""`duramen dev`: a cluster of several nodes on this machine, in the foreground, to try things with."""

from __future__ import annotations

import os
import shutil
import tempfile

import click

from duramen.cli.shared.output import pairs

EPILOG = """\b
Examples:
  duramen dev                            three nodes, forgotten at the end
  duramen dev --port 9092 --keep ./three
  duramen dev --nodes 1 --set log.retention.hours=1

\b
Each line begins with the node that says it. Node N has --port plus
10 (N - 1) for clients, and the next one for controllers. With --set
gateway.listener=http://127.0.0.1:8082 each runs a gateway, at the port given
plus N - 1. Kill a node to see what the others do: it is not started again,
and what starts it by hand is told. Ctrl-C, SIGTERM and SIGHUP stop all nodes
within 5 seconds; exit code 0. It is 1 when all nodes have ended by
themselves.
"""


@click.command(
    epilog=EPILOG,
    help="""Run a cluster of several nodes on this machine, to try things with.

    The nodes are formed in a temporary folder, which is removed at the end, and
    are processes of their own. Each is a broker and a controller. Partitions
    have three copies, or as many as there are nodes. Of three copies a write
    with acks=all needs two: kill a node, and the others go on.
    """,
)
@click.option("--nodes", type=click.IntRange(1, 5), help="How many; 3, or those that --keep has.")
@click.option(
    "--port",
    type=click.IntRange(1, 65_534),
    metavar="BASE",
    help="The first port, best below 32768: Linux may give away those above meanwhile. Without, free ones.",
)
@click.option(
    "--keep",
    "folder",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Keep the cluster in this folder, and go on with it next time.",
)
@click.option(
    "-s", "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of every node; repeatable."
)
def command(nodes: int | None, port: int | None, folder: str | None, settings: tuple[str, ...]) -> int:
    place = os.path.abspath(folder) if folder is not None else tempfile.mkdtemp(prefix="duramen-dev-")
    try:
        click.echo(f"dev    | nodes in {place}" + ("" if folder is not None else ", removed at the end"))
        # Only now: what has to be loaded takes longer than a first word may.
        from duramen.cli.commands.dev_cluster import DevCluster
        from duramen.cli.commands.dev_run import DevRun

        cluster = DevCluster(place, nodes, port, pairs("--set", settings))
        return DevRun(cluster).run()
    finally:
        if folder is None:
            from duramen.cli.commands.dev_run import is_used

            if is_used(place):
                click.echo(f"dev    | {place} stays: another process uses it")
            else:
                shutil.rmtree(place, ignore_errors=True)
