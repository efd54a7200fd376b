"""`duramen truncate`: delete the oldest records of a topic."""

from __future__ import annotations

import click
from confluent_kafka import TopicPartition
from confluent_kafka.admin import DeletedRecords

from duramen.cli.shared.confirmation import confirm
from duramen.cli.shared.connection import (
    EARLIEST,
    LATEST,
    NAME,
    ClusterAccess,
    at_time,
    call,
    cluster_options,
    json_option,
    offsets_at,
    partitions_of,
    wait_for_each,
)
from duramen.cli.shared.output import note, print_json
from duramen.cli.shared.position import StartPosition, position_option

EPILOG = """\b
Examples:
  duramen truncate flights --before 1000 --partition 0
  duramen truncate flights --before 2026-05-01T00:00:00Z
  duramen truncate flights --before latest --yes
"""


@click.command(
    epilog=EPILOG,
    help="Delete the records before an offset or a time. The offsets of the others do not change.",
)
@click.argument("topic", type=NAME)
@click.option(
    "--before",
    callback=position_option,
    required=True,
    metavar="POSITION",
    help="An offset, a time (ISO 8601, or 7d for a week ago) or `latest`. Everything before it goes.",
)
@click.option("-p", "--partition", "partitions", type=int, multiple=True, help="Only this partition; repeatable.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@cluster_options
def command(
    cluster: ClusterAccess, topic: str, before: StartPosition, partitions: tuple[int, ...], yes: bool, as_json: bool
) -> None:
    admin = cluster.admin()
    known = partitions_of(cluster, admin, [topic])[topic]
    for partition in partitions:
        if partition not in known:
            raise click.ClickException(f"{topic} has no partition {partition}.")
    chosen = [(topic, partition) for partition in (sorted(set(partitions)) or known)]
    first = offsets_at(cluster, admin, chosen, EARLIEST)
    last = offsets_at(cluster, admin, chosen, LATEST)
    target = dict(last)
    if before.kind == "offset":
        target = dict.fromkeys(chosen, before.value)
    elif before.kind == "from-end":
        target = {tp: max(first[tp], last[tp] - before.value) for tp in chosen}
    elif before.kind == "earliest":
        target = dict(first)
    elif before.kind == "time":
        found = offsets_at(cluster, admin, chosen, at_time(before.value))
        target = {tp: offset if offset >= 0 else last[tp] for tp, offset in found.items()}
    for tp in chosen:
        if target[tp] > last[tp]:
            raise click.ClickException(f"{topic}-{tp[1]} ends at offset {last[tp]}, before {target[tp]}.")
    going = {tp: offset for tp, offset in target.items() if offset > first[tp]}
    count = sum(offset - first[tp] for tp, offset in going.items())
    if not going:
        note(f"nothing to delete: {topic} starts there already")
    else:
        confirm(f"Delete up to {count:,} records of {topic}?", yes)
        wanted = [TopicPartition(name, partition, offset) for (name, partition), offset in going.items()]
        futures = call(cluster, topic, lambda: admin.delete_records(wanted, request_timeout=cluster.timeout))

        def tell(name: str, cut: DeletedRecords) -> None:
            if not as_json:
                click.echo(f"{name} now starts at offset {cut.low_watermark}")
            first[(topic, int(name.rpartition("-")[2]))] = cut.low_watermark

        wait_for_each(cluster, {f"{tp.topic}-{tp.partition}": future for tp, future in futures.items()}, tell)
    if as_json:
        print_json([{"topic": topic, "partition": p, "start_offset": first[(topic, p)]} for _, p in chosen])
