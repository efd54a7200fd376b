"""`duramen group`: list, describe, alter, reset and delete consumer groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import click
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, MemberAssignment

from duramen.cli.shared.confirmation import confirm
from duramen.cli.shared.connection import (
    EARLIEST,
    LATEST,
    NAME,
    ClusterAccess,
    at_time,
    call,
    cluster_options,
    ends_of,
    explain,
    failed,
    failure,
    json_option,
    offsets_at,
    only,
    partitions_of,
    sentence,
    wait,
    wait_for_each,
)
from duramen.cli.shared.group_look import pending_in, state_name, state_names
from duramen.cli.shared.output import cell, note, pairs, plural, print_json, print_table, printable
from duramen.cli.shared.position import found_or_end, nearest, time_option
from duramen.cli.shared.settings import alter_settings, group_resource, own_of_groups
from duramen.client import Cluster as Client
from duramen.swaps import CutOver, SwapLog
from duramen.swaps.cut_overs import Committed, Where, topics_of
from duramen.swaps.resets import chain_with, reset_commits

EPILOG = """\b
Examples:
  duramen group list
  duramen group describe audit
  duramen group alter audit --set consumer.session.timeout.ms=50000
  duramen group reset-offsets audit --topic flights --to-earliest
  duramen group reset-offsets audit --topic flights --to-earliest --execute
  duramen group delete audit
"""


PENDING_ASKED_MAX = 20_000
"""Of partitions about which a group is asked whether their offsets are pending."""


@click.group(
    epilog=EPILOG,
    help="List, describe, alter, reset and delete consumer groups.",
)
def command() -> None:
    pass


@command.command(
    "list",
    epilog="\b\nExamples:\n  duramen group list\n  duramen group list --json\n",
    short_help="List consumer groups with their state and lag.",
    help="List consumer groups with their type, state, members and lag.",
)
@json_option
@cluster_options
def list_(cluster: ClusterAccess, as_json: bool) -> None:
    admin = cluster.admin()
    rows = group_rows(cluster, admin)
    if as_json:
        keys = ("group", "type", "state", "members", "lag")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
    elif rows:
        print_table(("group", "type", "state", "members", "lag"), rows, right=("members", "lag"))
    else:
        note("there are no groups; `duramen consume TOPIC --group NAME` makes one")


def group_rows(cluster: ClusterAccess, admin: AdminClient) -> list[tuple[str, str, str, int, int | None]]:
    """Each group's name, type, state, number of members and lag (None where nothing was committed)."""
    found = group_positions(cluster, admin)
    states = state_names(cluster, [group for group, _ in found])
    return [
        (group.group_id, type_name(group), states[group.group_id], len(group.members), lag_of(positions))
        for group, positions in found
    ]


def lag_of(positions: Iterable[GroupPosition]) -> int | None:
    """Of several partitions together; None where nothing was committed."""
    lags = [row.lag for row in positions if row.lag is not None]
    return sum(lags) if lags else None


def group_positions(
    cluster: ClusterAccess, admin: AdminClient
) -> list[tuple[ConsumerGroupDescription, list[GroupPosition]]]:
    """Every group, and where it is in each of its partitions."""
    timeout = cluster.timeout
    future = call(cluster, "cannot list groups", lambda: admin.list_consumer_groups(request_timeout=timeout))
    listed = wait(cluster, "cannot list groups", future)
    if listed.errors:
        # Each node is asked for its own groups; one that does not answer would be missing silently.
        raise failure(KafkaException(listed.errors[0]), "cannot list groups")
    names = sorted(group.group_id for group in listed.valid if group.group_id)
    if len(names) < len(listed.valid):  # old clients may commit without a name, and nothing can ask for it
        note("a group without a name is left out: offsets that were committed under none")
    described = _describe(cluster, admin, names)
    return list(zip(described, _positions(cluster, admin, described), strict=True))


def _describe(cluster: ClusterAccess, admin: AdminClient, names: list[str]) -> list[ConsumerGroupDescription]:
    if not names:
        return []
    futures = _asked(cluster, admin, names)
    return [wait(cluster, name, futures[name]) for name in names]


def _asked(cluster: ClusterAccess, admin: AdminClient, names: list[str]) -> dict[str, Future[ConsumerGroupDescription]]:
    timeout = cluster.timeout
    return call(cluster, "cannot describe", lambda: admin.describe_consumer_groups(names, request_timeout=timeout))


def type_name(group: ConsumerGroupDescription) -> str:
    """classic or consumer: the protocol that the group's members speak."""
    return str(group.type.name).lower()


class GroupPosition(NamedTuple):
    """Where a group is in one partition; None: committed nothing, or the partition is offline."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    member: str | None
    member_id: str | None = None


def commits(cluster: ClusterAccess, admin: AdminClient, group: str) -> dict[Where, Committed]:
    """What a group has committed in each partition where it has."""
    return {
        (tp.topic, tp.partition): Committed.told_by(tp.offset, _metadata(tp))
        for tp in _committed(cluster, admin, group)
    }


def committed_offsets(cluster: ClusterAccess, admin: AdminClient, group: str) -> dict[Where, int]:
    """A group's committed offset in each partition where it has one."""
    return {(tp.topic, tp.partition): tp.offset for tp in _committed(cluster, admin, group)}


def _committed(cluster: ClusterAccess, admin: AdminClient, group: str) -> list[TopicPartition]:
    asked = [ConsumerGroupTopicPartitions(group)]
    timeout = cluster.timeout
    futures = call(cluster, group, lambda: admin.list_consumer_group_offsets(asked, request_timeout=timeout))
    found = wait(cluster, group, only(futures)).topic_partitions or []
    return [tp for tp in found if tp.offset >= 0 and tp.error is None]


def _metadata(tp: TopicPartition) -> str | None:
    """None where confluent-kafka cannot tell: it reads on behind metadata that do not end with a zero, which are not
    those of our clients (Java's programs write such).
    """
    try:
        return tp.metadata
    except UnicodeDecodeError:
        return None


def _positions(
    cluster: ClusterAccess, admin: AdminClient, groups: list[ConsumerGroupDescription]
) -> list[list[GroupPosition]]:
    """Of each group every partition that it committed an offset of or that a member reads."""
    if not groups:
        return []
    committed = [committed_offsets(cluster, admin, group.group_id) for group in groups]
    owners = [_owners(group) for group in groups]
    # Asked once for all groups, and behind their commits, so that no end lies before what is committed.
    existing = partitions_of(cluster, admin, None)
    named = set().union(*committed, *owners)
    wanted = {tp for tp in named if tp[1] in existing.get(tp[0], ())}
    deleted: set[Where] = set()  # since the topics were listed
    ends = ends_of(cluster, admin, sorted(wanted), deleted)
    wanted -= deleted
    return [
        [_position(tp, offsets.get(tp), ends.get(tp), members.get(tp)) for tp in sorted({*offsets, *members} & wanted)]
        for offsets, members in zip(committed, owners, strict=True)
    ]


def _owners(group: ConsumerGroupDescription) -> dict[Where, tuple[str, str]]:
    """Which member reads each partition: its client, and its id."""
    return {
        (owned.topic, owned.partition): (member.client_id + "@" + member.host.lstrip("/"), member.member_id)
        for member in group.members
        for owned in (member.assignment.topic_partitions if member.assignment else [])
    }


def _position(
    place: Where, offset: int | None, ends: tuple[int, int] | None, owner: tuple[str, str] | None
) -> GroupPosition:
    end = None if ends is None else ends[1]
    lag = None if offset is None or end is None else max(0, end - offset)
    return GroupPosition(*place, offset, end, lag, *(owner or (None, None)))


@command.command(
    short_help="Show groups' members, offsets and lag.",
    epilog="""\b
Examples:
  duramen group describe audit
  duramen group describe audit --members
  duramen group describe audit --state
  duramen group describe audit --json
""",
    help="Show groups' members, what they have committed in each partition, and how far behind they are.",
)
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, type=NAME)
@click.option("--members", "only_members", is_flag=True, help="Who is in the group, and what each of them has.")
@click.option("--state", "only_state", is_flag=True, help="One line for each group.")
@json_option
@cluster_options
def describe(
    cluster: ClusterAccess, names: tuple[str, ...], only_members: bool, only_state: bool, as_json: bool
) -> None:
    if only_members and only_state:
        raise click.UsageError("give --members or --state, not both.")
    admin = cluster.admin()
    told: list[dict[str, Any]] = []
    groups: list[ConsumerGroupDescription] = []
    troubles: list[str] = []
    for name, future in _asked(cluster, admin, list(dict.fromkeys(names))).items():
        error = failed(cluster, name, future)
        if error is None:
            groups.append(future.result())
        else:
            troubles.append(explain(error, name))
    states = state_names(cluster, groups)
    settings = own_of_groups(cluster, admin, [group.group_id for group in groups]) if groups else {}
    missing = []
    places = _asked_for_pending(cluster, admin) if groups else []
    for group, rows in zip(groups, _positions(cluster, admin, groups), strict=True):
        if state_name(group) == "Dead" and not rows:
            missing.append(group.group_id)
            continue
        pending = pending_in(cluster, group.group_id, places)
        told.append(
            {
                "group": group.group_id,
                "type": type_name(group),
                "state": states[group.group_id],
                "assignor": group.partition_assignor,
                "coordinator": None if group.coordinator is None else group.coordinator.id,
                "members": [
                    {
                        "member_id": member.member_id,
                        "client_id": member.client_id,
                        "host": member.host.lstrip("/"),
                        "instance_id": member.group_instance_id,
                        "partitions": _listed(member.assignment),
                        "target": _listed(member.target_assignment),
                    }
                    for member in group.members
                ],
                "partitions": [row._asdict() for row in rows],
                "pending": None if pending is None else [f"{topic}:{number}" for topic, number in pending],
                "lag": lag_of(rows),
                "settings": settings.get(group.group_id, {}),
            }
        )
    if missing:
        troubles.append(f"there is no group {', '.join(missing)}; `duramen group list` shows those there are")
    if as_json and (told or not troubles):
        print_json(told)
    for description in () if as_json else told:
        _print_state(description)
        if only_members:
            _print_members(description)
        elif not only_state:
            _print_positions(description)
    if troubles:
        raise click.ClickException(sentence("; ".join(troubles)))


def _asked_for_pending(cluster: ClusterAccess, admin: AdminClient) -> list[Where]:
    """Every partition there is: of one whose first offset is pending nothing else tells that the group has to do with
    it."""
    found = [(topic, number) for topic, numbers in partitions_of(cluster, admin, None).items() for number in numbers]
    return found[:PENDING_ASKED_MAX]


def _listed(assignment: MemberAssignment | None) -> list[str] | None:
    """As topic:partition; None for what a classic group does not have."""
    if assignment is None:
        return None
    owned = sorted((each.topic, each.partition) for each in assignment.topic_partitions)
    return [f"{topic}:{partition}" for topic, partition in owned]


def in_ranges(partitions: Iterable[str]) -> list[str]:
    """Sorted topic:partition as topic:0-9,12, one of each topic."""
    topics: dict[str, list[list[int]]] = {}
    for text in partitions:
        topic, _, number = text.rpartition(":")
        ranges = topics.setdefault(topic, [])
        if ranges and ranges[-1][-1] + 1 == int(number):
            ranges[-1][1:] = [int(number)]
        else:
            ranges.append([int(number)])
    return [f"{topic}:{','.join('-'.join(map(str, each)) for each in ranges)}" for topic, ranges in topics.items()]


def _print_members(group: dict[str, Any]) -> None:
    rows = [
        (
            printable(member["member_id"]),
            printable(f"{member['client_id']}@{member['host']}"),
            printable(member["instance_id"] or "-"),
            len(member["partitions"] or ()),
            " ".join(map(printable, in_ranges(member["partitions"] or ()))) or "-",
        )
        for member in group["members"]
    ]
    if rows:
        print_table(("member", "client", "instance", "count", "partitions"), rows, right=("count",))


def _print_state(group: dict[str, Any]) -> None:
    assignor = f", assignor {printable(group['assignor'])}" if group["assignor"] else ""
    members = len(group["members"])
    what = f"{printable(group['group'])}: {group['type']}, {group['state']}"
    click.echo(f"{what}, members {members}, lag {cell(group['lag'])}{assignor}")
    for name, value in group["settings"].items():
        click.echo(f"    {printable(name)}={printable(value)}")


def _print_positions(group: dict[str, Any]) -> None:
    headings = ("topic", "partition", "committed", "end", "lag", "member", "client")
    keys = (*headings[:5], "member_id", "member")
    rows = [tuple(row[key] for key in keys) for row in group["partitions"]]
    if rows:
        print_table(headings, rows, right=headings[1:5])
    if group["pending"]:
        where = " ".join(map(printable, in_ranges(group["pending"])))
        click.echo(f"    pending in an open transaction: {where}; see `duramen transaction list --state Ongoing`")


@command.command(
    short_help="Change a group's own settings.",
    epilog="""\b
Examples:
  duramen group alter audit --set consumer.session.timeout.ms=50000
  duramen group alter audit --unset consumer.session.timeout.ms

\b
Groups of the consumer protocol have consumer.session.timeout.ms,
consumer.heartbeat.interval.ms and consumer.assignment.interval.ms, between
the node's group.consumer.min.* and group.consumer.max.*. What a group has of
its own stays when it is deleted; `duramen group describe` shows it.
""",
    help="Change what a group has of its own over the node's settings of groups.",
)
@click.argument("group", type=NAME)
@click.option("-s", "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a setting; repeatable.")
@click.option("--unset", "--delete", multiple=True, metavar="KEY", help="Return a setting to the node's; repeatable.")
@cluster_options
def alter(cluster: ClusterAccess, group: str, settings: tuple[str, ...], unset: tuple[str, ...]) -> None:
    if not settings and not unset:
        raise click.UsageError("nothing to change: give --set or --unset.")
    changes = pairs("--set", settings)
    admin = cluster.admin()
    alter_settings(cluster, admin, group_resource(group), changes, unset)
    note(f"changed {plural(len(settings) + len(unset), 'setting')} of group {group}")
    (described,) = _describe(cluster, admin, [group])
    if state_name(described) == "Dead":
        if not committed_offsets(cluster, admin, group):
            note(f"there is no group {group} yet; one of this name will have it")
    elif changes and type_name(described) == "classic":
        note(f"{group} is a classic group now; these settings are for the consumer protocol")


@command.command(
    "reset-offsets",
    epilog="""\b
Examples:
  duramen group reset-offsets audit --topic flights --to-earliest
  duramen group reset-offsets audit -t flights:0,2 --to-offset 500 --execute
  duramen group reset-offsets audit --all-topics --to-datetime 2h --execute
  duramen group reset-offsets audit --topic flights --shift-by -100 --execute

\b
Without --execute nothing changes: what would happen is shown. The group
must have no members.
""",
    help="Move a group to other offsets.",
)
@click.argument("group", type=NAME)
@click.option(
    "-t", "--topic", "topics", multiple=True, metavar="TOPIC[:N,N]", help="A topic, or some partitions of it."
)
@click.option("--all-topics", is_flag=True, help="Every topic the group has committed offsets of.")
@click.option("--to-earliest", is_flag=True, help="To the oldest record.")
@click.option("--to-latest", is_flag=True, help="Past the newest record.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset.")
@click.option(
    "--to-datetime",
    "to_time",
    callback=time_option,
    metavar="TIME",
    help="To a time: ISO 8601, or 2h for two hours ago.",
)
@click.option("--shift-by", type=int, metavar="N", help="By N records, backwards where N is negative.")
@click.option("--dry-run", is_flag=True, help="Only show what would happen; the default.")
@click.option("--execute", is_flag=True, help="Do it.")
@json_option
@cluster_options
def reset_offsets(
    cluster: ClusterAccess,
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_time: int | None,
    shift_by: int | None,
    dry_run: bool,
    execute: bool,
    as_json: bool,
) -> None:
    target = ResetTarget(to_earliest, to_latest, to_offset, to_time, shift_by)
    target.check()
    if dry_run and execute:
        raise click.UsageError("give --dry-run or --execute, not both.")
    if bool(topics) == all_topics:
        raise click.UsageError("say which topics: --topic NAME, or --all-topics.")
    admin = cluster.admin()
    (described,) = _describe(cluster, admin, [group])
    if described.members:
        raise click.ClickException(f"{group} has {plural(len(described.members), 'member')}; stop its consumers first.")
    told = commits(cluster, admin, group)
    current = {place: commit.offset for place, commit in told.items()}
    chosen = sorted(current) if all_topics else _chosen(cluster, admin, topics)
    if not chosen:
        raise click.ClickException(f"{group} has committed no offsets; name the topics with --topic.")
    wanted = target.offsets(cluster, admin, group, chosen, current)
    chains = _chains(cluster)
    if execute:
        _alter(cluster, admin, group, reset_commits(chains, told, wanted))
    _print_reset(group, wanted, current, execute=execute, as_json=as_json)
    if execute and state_name(described) == "Dead" and not current:
        note(f"there was no group {group} before")
    for topic in dict.fromkeys(topic for topic, _ in wanted):
        chain = chain_with(chains, topic)
        if chain is not None and topics_of(*chain)[-1] != topic:
            note(f"{topic} was swapped: readers that follow swaps go on behind it in {topics_of(*chain)[-1]}")


def _chains(cluster: ClusterAccess) -> Mapping[str, tuple[CutOver, ...]]:
    """Which topics were swapped; nobody follows swaps through TLS or SASL."""
    if not cluster.is_plaintext:
        return {}
    with Client(cluster.answering(), timeout_s=cluster.timeout) as client:
        return SwapLog(client).chains()


def _alter(cluster: ClusterAccess, admin: AdminClient, group: str, wanted: Mapping[Where, Committed]) -> None:
    places = [TopicPartition(*place, told.offset, told.metadata) for place, told in wanted.items()]
    asked = [ConsumerGroupTopicPartitions(group, places)]
    timeout = cluster.timeout
    futures = call(cluster, group, lambda: admin.alter_consumer_group_offsets(asked, request_timeout=timeout))
    for tp in wait(cluster, group, only(futures)).topic_partitions or []:
        if tp.error is not None:
            raise click.ClickException(f"{group}, {tp.topic}-{tp.partition}: {tp.error.str()}.")


def _print_reset(
    group: str, wanted: Mapping[Where, int], current: Mapping[Where, int], *, execute: bool, as_json: bool
) -> None:
    rows = [(*tp, current.get(tp), offset) for tp, offset in wanted.items()]
    if as_json:
        keys = ("topic", "partition", "old_offset", "new_offset")
        print_json(
            {"group": group, "executed": execute, "partitions": [dict(zip(keys, row, strict=True)) for row in rows]}
        )
        return
    print_table(("topic", "partition", "old", "new"), rows, right=("partition", "old", "new"))
    note(f"{group} was moved" if execute else "nothing was changed; add --execute to do it")


def _chosen(cluster: ClusterAccess, admin: AdminClient, topics: Iterable[str]) -> list[Where]:
    """The partitions that TOPIC and TOPIC:N,N name."""
    chosen: set[Where] = set()
    for text in topics:
        name, colon, numbers = text.partition(":")
        if not name:
            raise click.UsageError(f"--topic {text}: expected TOPIC or TOPIC:N,N.")
        known = partitions_of(cluster, admin, [name])[name]
        picked = known
        if colon:
            if not re.fullmatch(r"[0-9]{1,10}(,[0-9]{1,10})*", numbers):
                raise click.UsageError(f"--topic {text}: expected TOPIC:N,N.")
            picked = [int(part) for part in numbers.split(",")]
        for number in picked:
            if number not in known:
                raise click.ClickException(f"{name} has no partition {number}.")
            chosen.add((name, number))
    return sorted(chosen)


class ResetTarget(NamedTuple):
    """Where to move a group to: exactly one of the five."""

    to_earliest: bool
    to_latest: bool
    to_offset: int | None
    to_time: int | None
    shift_by: int | None

    def check(self) -> None:
        """Exactly one must be given; a usage error otherwise."""
        given = [self.to_earliest, self.to_latest] + [value is not None for value in self[2:]]
        if sum(given) != 1:
            raise click.UsageError(
                "say where to: one of --to-earliest, --to-latest, --to-offset, --to-datetime and --shift-by."
            )

    def offsets(
        self, cluster: ClusterAccess, admin: AdminClient, group: str, chosen: list[Where], current: Mapping[Where, int]
    ) -> dict[Where, int]:
        """The new offset of each partition, kept inside of its log."""
        first = offsets_at(cluster, admin, chosen, EARLIEST)
        last = offsets_at(cluster, admin, chosen, LATEST)
        if self.to_earliest:
            return first
        if self.to_latest:
            return last
        if self.to_time is not None:
            found = offsets_at(cluster, admin, chosen, at_time(self.to_time))
            wanted = found_or_end(found, last)
        elif self.to_offset is not None:
            wanted = dict.fromkeys(chosen, self.to_offset)
        else:
            missing = [f"{topic}-{partition}" for topic, partition in chosen if (topic, partition) not in current]
            if missing:
                raise click.ClickException(f"{group} has committed no offset of {missing[0]} that could be shifted.")
            wanted = {tp: current[tp] + (self.shift_by or 0) for tp in chosen}
        return nearest(wanted, first, last)


@command.command(
    short_help="Delete groups without members.",
    epilog="\b\nExamples:\n  duramen group delete audit\n  duramen group delete audit --yes\n",
    help="Delete groups without members, and the offsets they committed.",
)
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, type=NAME)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@cluster_options
def delete(cluster: ClusterAccess, names: tuple[str, ...], yes: bool) -> None:
    once = list(dict.fromkeys(names))
    confirm(f"Delete {', '.join(once)} and the offsets committed there?", yes)
    admin = cluster.admin()
    timeout = cluster.timeout
    futures = call(cluster, "cannot delete", lambda: admin.delete_consumer_groups(once, request_timeout=timeout))
    wait_for_each(cluster, futures, lambda name, _: note(f"deleted {name}"))
