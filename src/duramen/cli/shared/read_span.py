"""What `duramen consume` reads without a group: from where to where, as offsets of each partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import click
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient

from duramen.cli.shared.connection import EARLIEST, LATEST, ClusterAccess, at_time, offsets_at, partitions_of
from duramen.cli.shared.output import note, plural
from duramen.cli.shared.position import StartPosition, found_or_end, nearest

_TOLD_MAX = 4


class ReadSpan(NamedTuple):
    """From where, until where (None: to the end) or the newest so many, and whether more is waited for.

    committed: to whom the log ends where a transaction is open.
    """

    start: StartPosition
    until: StartPosition | None
    newest: int | None
    follow: bool
    committed: bool


def starts_of(
    cluster: ClusterAccess, topics: Sequence[str], partitions: tuple[int, ...], span: ReadSpan
) -> list[TopicPartition]:
    """Each partition with the offset to begin at; without those that have nothing to read there, nor are waited for."""
    admin, start = cluster.admin(), span.start
    chosen = []
    for topic, known in partitions_of(cluster, admin, topics).items():
        for partition in partitions:
            if partition not in known:
                raise click.ClickException(f"{topic} has no partition {partition}; it has {known[0]} to {known[-1]}.")
        chosen += [(topic, partition) for partition in (sorted(set(partitions)) or known)]
    if start.kind in ("earliest", "latest"):
        offsets = dict.fromkeys(chosen, OFFSET_BEGINNING if start.kind == "earliest" else OFFSET_END)
    else:
        first = offsets_at(cluster, admin, chosen, EARLIEST)
        last = offsets_at(cluster, admin, chosen, LATEST, committed=span.committed)
        offsets = offsets_of(cluster, admin, chosen, start, first, committed=span.committed)
        if start.kind == "time":
            offsets = found_or_end(offsets, last)
        elif start.kind == "offset":
            _refuse_out_of_range(offsets, first, offsets_at(cluster, admin, chosen, LATEST))
            if not span.follow:  # behind the first record of an open transaction no end is found
                offsets = {place: offset for place, offset in offsets.items() if offset <= last[place]}
    return [TopicPartition(*place, offset) for place, offset in offsets.items()]


def tell_held_back(cluster: ClusterAccess, places: Iterable[tuple[str, int]]) -> None:
    """Say, to who reads committed records to the end, where an open transaction holds back more."""
    admin, read = cluster.admin(), list(places)
    with suppress(click.ClickException):  # all that there was is read
        ends = offsets_at(cluster, admin, read, LATEST)  # asked first, so that what comes meanwhile is not held back
        stable = offsets_at(cluster, admin, read, LATEST, committed=True)
        held = [place for place in sorted(read) if stable[place] < ends[place]]
        for place in held[:_TOLD_MAX]:
            behind = ends[place] - stable[place]
            waiting = f"{plural(behind, 'offset')} behind it {'waits' if behind == 1 else 'wait'}"
            note(f"{place[0]}-{place[1]}: stopped at {stable[place]}, {waiting} for an open transaction")
        if len(held) > _TOLD_MAX:
            note(f"so it is in {plural(len(held) - _TOLD_MAX, 'partition')} more")


def offsets_of(
    cluster: ClusterAccess,
    admin: AdminClient,
    places: list[tuple[str, int]],
    position: StartPosition,
    first: Mapping[tuple[str, int], int],
    *,
    committed: bool,
) -> dict[tuple[str, int], int]:
    """The offset of a position in each partition; -1 where no record is of that time, or later."""
    if position.kind == "time":
        return offsets_at(cluster, admin, places, at_time(position.value), committed=committed)
    if position.kind == "offset":
        return dict.fromkeys(places, position.value)
    if position.kind == "earliest":
        return dict(first)
    last = offsets_at(cluster, admin, places, LATEST, committed=committed)
    if position.kind == "from-end":
        return {place: max(first[place], last[place] - position.value) for place in places}
    return last


def _refuse_out_of_range(
    offsets: dict[tuple[str, int], int], first: dict[tuple[str, int], int], last: dict[tuple[str, int], int]
) -> None:
    """An offset that no partition has is a mistake; one that some have lets the others start at their nearest end."""
    if not any(first[tp] <= offset <= last[tp] for tp, offset in offsets.items()):
        ranges = ", ".join(
            f"{topic}-{partition}: {first[(topic, partition)]} to {last[(topic, partition)]}"
            for topic, partition in sorted(offsets)[:4]
        )
        raise click.ClickException(f"offset {next(iter(offsets.values()))} lies outside of the log ({ranges}).")
    offsets.update(nearest(offsets, first, last))
