"""`duramen cluster status`: who leads the metadata quorum, and how far its voters and observers are."""

from __future__ import annotations

import time
from typing import Any

import click

from duramen.cli.shared.output import ProgressLine, print_json, print_table
from duramen.cli.shared.quorum_look import NO_LEADER, Address, QuorumAnswer, QuorumLook, Replica, look_at_quorum, shown
from duramen.config.listeners import parse_host_port

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
_LOOK_SECONDS = 3.0
"""For one answer."""
_BETWEEN_LOOKS_SECONDS = 0.2
_HEADINGS = ("node", "role", "controller", "log end", "lag", "fetched")


@click.command(
    "status",
    short_help="Show the metadata quorum.",
    help="""Show who leads the metadata quorum, in which epoch, and how far its replicas are.

    One address is enough: its node tells of the others, and all of them are
    asked. `fetched` is how long ago a replica last fetched from the leader.
    """,
    epilog="""\b
Examples:
  duramen cluster status
  duramen cluster status --bootstrap-controller 127.0.0.1:9093
  duramen cluster status --json | jq '.voters[] | {id, lag}'

\b
Exit code: 0 there is a leader; 1 nobody answers, or nobody leads: then the
line says who answered. In the JSON offsets are those of the metadata log,
times milliseconds since 1970.
""",
)
@click.option(
    "-b",
    "--bootstrap",
    envvar="DURAMEN_BOOTSTRAP",
    metavar="HOST:PORT",
    help=f"Listeners of brokers, with commas.  [env var: DURAMEN_BOOTSTRAP; default: {DEFAULT_BOOTSTRAP}]",
)
@click.option("--bootstrap-controller", "controllers", metavar="HOST:PORT", help="Listeners of controllers.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 86_400),
    default=5.0,
    show_default=True,
    help="Seconds to wait for a leader.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def command(bootstrap: str | None, controllers: str | None, timeout: float, as_json: bool) -> None:
    if controllers is not None:
        key, text = "--bootstrap-controller", controllers
    else:
        key, text = "--bootstrap", bootstrap or DEFAULT_BOOTSTRAP
    addresses = [parse_host_port(key, each.strip()) for each in text.split(",")]
    look = _look_until(addresses, timeout)
    leader = look.leader
    if leader is None:
        lives = look.answers or NO_LEADER in look.silent.values()
        remedy = "" if lives else f". Start a node with `duramen serve`, or name another with {key}."
        raise click.ClickException(without_leader(look) + remedy)
    if as_json:
        print_json(as_document(leader))
        return
    for line in head(leader):
        click.echo(line)
    click.echo()
    print_table(_HEADINGS, rows(leader, look, time.time()), right=("node", "log end", "lag"))


def _look_until(addresses: list[Address], seconds: float) -> QuorumLook:
    """Look until somebody leads, nobody answers, or the time is over: an election takes a moment."""
    until = time.monotonic() + seconds
    with ProgressLine("waiting for a leader") as progress:
        while True:
            look = look_at_quorum(addresses, min(_LOOK_SECONDS, seconds))
            left = until - time.monotonic()
            if look.leader is not None or not look.answers or left <= 0:
                return look
            progress.show()
            time.sleep(min(left, _BETWEEN_LOOKS_SECONDS))


def without_leader(look: QuorumLook) -> str:
    """Why there is nothing to show, in one line."""
    silent = ", ".join(f"{shown(address)} ({why})" for address, why in look.silent.items())
    if not look.answers:
        begins = "the quorum has no leader" if NO_LEADER in look.silent.values() else "no controller answers"
        return f"{begins}: {silent}"
    answered = ", ".join(f"{shown(each.address)} (epoch {each.leader_epoch})" for each in look.answers)
    return f"the quorum has no leader; answered: {answered}; not: {silent or 'none'}"


def head(leader: QuorumAnswer) -> list[str]:
    """Above the table."""
    return [
        f"cluster {leader.cluster_id or 'of unknown id'}",
        f"leader {leader.leader_id} at {shown(leader.address)}, epoch {leader.leader_epoch}",
        f"high watermark {leader.high_watermark:,}",
    ]


def rows(leader: QuorumAnswer, look: QuorumLook, now: float) -> list[tuple[object, ...]]:
    """The leader first, then voters, then observers."""
    voters = sorted(leader.voters, key=lambda each: each.id != leader.leader_id)
    return [
        *(_row(each, "leader" if each.id == leader.leader_id else "voter", look, now) for each in voters),
        *(_row(each, "observer", look, now) for each in leader.observers),
    ]


def _row(replica: Replica, role: str, look: QuorumLook, now: float) -> tuple[object, ...]:
    address = next(((host, port) for _, host, port in replica.endpoints), None)
    if role == "leader":
        fetched = ""
    elif replica.last_fetch_ms is None:
        fetched = "never"
    else:
        fetched = f"{max(0.0, now - replica.last_fetch_ms / 1000):.1f} s ago"
    if address in look.silent:
        fetched = f"{fetched}, no answer".removeprefix(", ")
    end = None if replica.log_end_offset < 0 else replica.log_end_offset
    return str(replica.id), role, shown(address) if address else None, end, replica.lag, fetched


def as_document(leader: QuorumAnswer) -> dict[str, Any]:
    """The JSON."""
    return {
        "cluster_id": leader.cluster_id,
        "leader_id": leader.leader_id,
        "leader_epoch": leader.leader_epoch,
        "high_watermark": leader.high_watermark,
        "voters": [_replica(each) for each in leader.voters],
        "observers": [_replica(each) for each in leader.observers],
    }


def _replica(replica: Replica) -> dict[str, Any]:
    endpoints = [{"listener": name, "host": host, "port": port} for name, host, port in replica.endpoints]
    return {**replica._asdict(), "endpoints": endpoints}
