"""`duramen features`: the levels of the cluster's features, raised and lowered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import click

from duramen.cli.shared.confirmation import confirm
from duramen.cli.shared.connection import ClusterAccess, cluster_options, json_option
from duramen.cli.shared.group_look import with_consumer_members
from duramen.cli.shared.output import note, pairs, plural, print_json, print_table, printable
from duramen.client import Cluster as Client
from duramen.client.protocol.metadata import error_code
from duramen.client.protocol.routes import ANY
from duramen.errors import DuramenError, ErrorCode
from duramen.version import VERSION
from duramen.wire.messages import API

_API_VERSIONS: Final = 18
_UPDATE_FEATURES: Final = 57
_UPGRADE: Final = 1
_SAFE_DOWNGRADE: Final = 2
_UNSAFE_DOWNGRADE: Final = 3
_HIGHEST_LEVEL: Final = 32_767
_OF_THE_QUORUM: Final = "kraft.version"
_OF_GROUPS: Final = "group.version"
_GROUPS_SHOWN: Final = 10
_KAFKAS_PREFIX: Final = "The update failed for all features since the following feature had an error: "

EPILOG = """\b
Examples:
  duramen features describe
  duramen features upgrade --dry-run
  duramen features upgrade --feature transaction.version=2
  duramen features downgrade --feature transaction.version=0
"""


class Level(NamedTuple):
    """A feature: its level in the cluster, 0 where it is off, and the levels that the node asked can do."""

    feature: str
    level: int
    lowest: int
    highest: int


@click.group(epilog=EPILOG, help="Describe, raise and lower the levels of the cluster's features.")
def command() -> None:
    pass


@command.command(
    short_help="Show the features and their levels.",
    epilog="\b\nExamples:\n  duramen features describe\n  duramen features describe --json\n",
    help="""Show each feature, its level in the cluster, and the levels that the
    node asked can do. A level of 0 means that the feature is off.
    """,
)
@json_option
@cluster_options
def describe(cluster: ClusterAccess, as_json: bool) -> None:
    with _client(cluster) as client:
        levels = _levels(client)
    if as_json:
        print_json([level._asdict() for level in levels])
        return
    rows = [(printable(each.feature), each.level, f"{each.lowest} to {each.highest}") for each in levels]
    print_table(("feature", "level", "supported"), rows, right=("level",))


_FEATURE = click.option(
    "--feature", "features", multiple=True, metavar="NAME=LEVEL", help="The feature and its level; repeatable."
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Only ask whether it could be done.")


@command.command(
    short_help="Raise levels; all to the highest unless features are named.",
    epilog="""\b
Examples:
  duramen features upgrade
  duramen features upgrade --dry-run
  duramen features upgrade --feature metadata.version=30

\b
Every node must have the release that can do it. metadata.version is seldom
to be lowered again: first be sure that no older release will be needed.
""",
    help="Raise levels: of all features to the highest there is, or of those that are named.",
)
@_FEATURE
@_DRY_RUN
@json_option
@cluster_options
def upgrade(cluster: ClusterAccess, features: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    wanted = _wanted(features)
    with _client(cluster) as client:
        before = _levels(client)
        if not wanted:
            wanted = {
                each.feature: each.highest
                for each in before
                if each.level < each.highest and each.feature != _OF_THE_QUORUM
            }
        _update(client, before, wanted, _UPGRADE, dry_run, as_json)


@command.command(
    short_help="Lower levels.",
    epilog="""\b
Examples:
  duramen features downgrade --feature transaction.version=0 --dry-run
  duramen features downgrade --feature transaction.version=0
""",
    help="""Lower the levels of the features that are named; 0 turns one off.

    Where group.version=0 would end members of groups, it asks.
    """,
)
@_FEATURE
@click.option("--unsafe", is_flag=True, help="Even where metadata may be lost by it.")
@_DRY_RUN
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@cluster_options
def downgrade(
    cluster: ClusterAccess, features: tuple[str, ...], unsafe: bool, dry_run: bool, yes: bool, as_json: bool
) -> None:
    wanted = _wanted(features)
    if not wanted:
        raise click.UsageError("which one? Give --feature NAME=LEVEL.")
    with _client(cluster) as client:
        kind = _UNSAFE_DOWNGRADE if unsafe else _SAFE_DOWNGRADE
        before = _levels(client)
        if wanted.get(_OF_GROUPS) == 0 and any(each.feature == _OF_GROUPS and each.level for each in before):
            _warn_of_members(client, asks=not dry_run, yes=yes)
        _update(client, before, wanted, kind, dry_run, as_json)


def _warn_of_members(client: Client, *, asks: bool, yes: bool) -> None:
    """Whose heartbeats are refused from then on, which ends their programs. Committed offsets stay."""
    try:
        names = with_consumer_members(client)
    except DuramenError as error:  # a node is down; the level may be lowered all the same
        note(f"which groups of the consumer protocol have members is not known: {error}")
    else:
        if not names:
            return
        shown = ", ".join(map(printable, names[:_GROUPS_SHOWN]))
        more = f" and {len(names) - _GROUPS_SHOWN:,} more" if len(names) > _GROUPS_SHOWN else ""
        note(f"{plural(len(names), 'group')} of the consumer protocol with members: {shown}{more}")
    if asks:
        confirm("End these members? Committed offsets stay.", yes)


def _wanted(given: tuple[str, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in given:
        for name, level in pairs("--feature", [text]).items():
            if name in found:
                raise click.UsageError(f"--feature {name} is given twice.")
            if not level.strip().isdecimal() or int(level) > _HIGHEST_LEVEL:
                raise click.UsageError(f"--feature {text}: the level is a number from 0 on.")
            found[name] = int(level)
    return found


@contextmanager
def _client(cluster: ClusterAccess) -> Iterator[Client]:
    """Our own: the client library knows nothing of features."""
    if not cluster.is_plaintext:
        raise click.ClickException("features are asked for in plain text only; kafka-features.sh can do TLS and SASL.")
    with Client(cluster.answering(), timeout_s=cluster.timeout) as client:
        try:
            yield client
        except DuramenError as error:
            raise click.ClickException(f"{error}.") from None


def _levels(client: Client) -> list[Level]:
    request = API[_API_VERSIONS].request.new(client_software_name="duramen-cli", client_software_version=VERSION)
    told = client.call(ANY, _API_VERSIONS, request)
    levels = {each.name: each.max_version_level for each in told.finalized_features}
    return [
        Level(each.name, levels.get(each.name, 0), each.min_version, each.max_version)
        for each in sorted(told.supported_features, key=lambda each: str(each.name))
    ]


def _update(
    client: Client, before: list[Level], wanted: Mapping[str, int], kind: int, dry_run: bool, as_json: bool
) -> None:
    """All of them, or none: the node says why."""
    levels = {each.feature: each.level for each in before}
    if wanted:
        asked = API[_UPDATE_FEATURES].request
        updates = [asked.FeatureUpdateKey(feature=name, max_version_level=level) for name, level in wanted.items()]
        for update in updates:
            update.upgrade_type = kind
        request = asked.new(feature_updates=updates, validate_only=dry_run)
        answer = client.call(ANY, _UPDATE_FEATURES, request, code_of=lambda response: int(response.error_code))
        _check(answer, are_several=len(wanted) > 1)
    changes: list[dict[str, Any]] = [
        {"feature": name, "old_level": levels.get(name, 0), "new_level": level} for name, level in wanted.items()
    ]
    if as_json:
        print_json({"executed": not dry_run, "features": changes})
        return
    for change in changes:
        if change["old_level"] == change["new_level"]:
            note(f"{printable(change['feature'])} is {change['new_level']} already")
            continue
        verb = "would go" if dry_run else "went"
        note(f"{printable(change['feature'])} {verb} from {change['old_level']} to {change['new_level']}")
    if not changes:
        note("every feature has its highest level")


def _check(response: Any, *, are_several: bool) -> None:
    code = error_code(response.error_code)
    if code is not ErrorCode.NONE:
        told = str(response.error_message or code.name)
        if told.startswith(_KAFKAS_PREFIX):
            told = ("nothing was changed: " if are_several else "") + told.removeprefix(_KAFKAS_PREFIX)
        raise click.ClickException(printable(told if told.endswith(".") else f"{told}."))
