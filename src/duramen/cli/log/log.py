"""`duramen log`: look into the files of a data directory and check them, while no node uses it."""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterator
from typing import Any

import click

from duramen.cli.log.repair import DEFAULT_DIRECTORY, ends_with_2, ranges
from duramen.cli.log.repair import command as repair
from duramen.cli.shared.output import ProgressLine, human_bytes, note, plural, print_json, print_table
from duramen.cli.shared.position import iso
from duramen.cli.shared.records import Incoming, to_full, to_json
from duramen.errors import DuramenError
from duramen.ports import File
from duramen.storage import (
    DECODED_BYTES_MAX,
    NO_KEY,
    DamagedBytes,
    DirectoryReport,
    Finding,
    MissingOffsets,
    PartitionReport,
    RealDisk,
    verify_path,
    walk_batches,
)
from duramen.wire.batch import ABORT, COMMIT, BatchHeader, read_marker, records
from duramen.wire.records.control import ControlType, type_of

EPILOG = """\b
Examples:
  duramen log verify                       checks ./duramen-data
  duramen log verify /var/lib/duramen --json
  duramen log dump duramen-data/flights-0
  duramen log dump duramen-data/flights-0 --records --from 1000 --count 5
  duramen log repair /var/lib/duramen --dry-run
"""
_MARKERS = {ABORT: "abort", COMMIT: "commit"}
_STREAM_RECORDS: dict[int, str] = {ControlType.WRITER_OPENED: "writer opened", ControlType.STREAM_CLOSED: "closed"}
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@click.group(
    epilog=EPILOG,
    help="Look into a data directory, check and repair it. All but `dump` need it for themselves.",
)
def command() -> None:
    pass


command.add_command(repair, "repair")


@command.command(
    epilog="""\b
Examples:
  duramen log verify
  duramen log verify /disk1/duramen /disk2/duramen --records
  duramen log verify duramen-data/flights-0 --json

\b
The exit code is 1 when something is wrong, 2 when it cannot be checked.
After a crash a tail that is no whole batch is nothing wrong: the next start
replaces or cuts it.
""",
    help="""Walk every segment; check batches, seals, indexes and the journal.

    DIRECTORY is a data directory or one partition in it; ./duramen-data unless given.

    START is the first offset that readers see, and RECORDS counts from there on;
    of a compacted batch across START, which has gaps, it may count some below.
    """,
)
@click.argument("paths", metavar="[DIRECTORY]...", nargs=-1, type=click.Path(exists=True, file_okay=False))
@click.option("--records", "decode", is_flag=True, help="Also decompress and open every record.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def verify(paths: tuple[str, ...], decode: bool, as_json: bool) -> int:
    if not paths and not os.path.isdir(DEFAULT_DIRECTORY):
        raise click.UsageError(f"there is no {DEFAULT_DIRECTORY} here; name the data directory.")
    reports: list[dict[str, Any]] = []
    wrong = 0
    for path in paths or (DEFAULT_DIRECTORY,):
        with ends_with_2():
            report = _verified(path, decode=decode)
        wrong += sum(finding.kind != "tail" for finding in report.all_findings())
        reports.append(_as_json(report))
        if not as_json:
            _print(report)
    if as_json:
        print_json(reports)
    return 1 if wrong else 0


def _verified(path: str, *, decode: bool) -> DirectoryReport:
    done = 0
    with ProgressLine(f"checking {path}") as progress:

        def tick(size: int) -> None:
            nonlocal done
            done += size
            progress.show(human_bytes(done))

        return verify_path(RealDisk(), path, tick, decode=decode)


def _as_json(report: DirectoryReport) -> dict[str, Any]:
    return {
        "path": report.path,
        "cluster_id": report.cluster_id,
        "node_id": report.node_id,
        "clean": report.clean,
        "journal_entries": report.journal_entries,
        "scrub": None
        if report.scrub is None
        else {
            "started_ms": report.scrub.started_ms,
            "round_bytes": report.scrub.bytes,
            "under_way": report.scrub.key != NO_KEY,
            "damage": [damage.fields() for damage in report.scrub.known],
        },
        "partitions": [
            {
                "partition": partition.name,
                "topic_id": partition.topic_id,
                "start_offset": partition.start_offset,
                "records": partition.records,
                "bytes": partition.size,
                "readable": partition.readable,
                "segments": [
                    {
                        "base_offset": segment.base_offset,
                        "end_offset": segment.next_offset,
                        "bytes": segment.size,
                        "batches": segment.batches,
                        "records": segment.records,
                        "max_timestamp": segment.max_timestamp,
                        "sealed": segment.sealed,
                    }
                    for segment in partition.segments
                ],
            }
            for partition in report.partitions
        ],
        "findings": [finding._asdict() for finding in report.all_findings()],
    }


def _print(report: DirectoryReport) -> None:
    if report.cluster_id:
        state = "closed cleanly" if report.clean else "not closed cleanly; the next start recovers it"
        journal = "" if report.journal_entries is None else f", journal entries {report.journal_entries:,}"
        click.echo(f"{report.path}: node {report.node_id} of cluster {report.cluster_id}, {state}{journal}")
    if report.scrub is not None:
        state = "had checked" if report.scrub.key != NO_KEY else "checked"
        known = plural(len(report.scrub.known), "damaged range")
        began = iso(report.scrub.started_ms)
        click.echo(f"the scrubber's round of {began} {state} {human_bytes(report.scrub.bytes)}; it knew of {known}")
    rows = [_row(partition) for partition in report.partitions]
    if rows:
        headings = ("partition", "segments", "sealed", "start", "end", "records", "bytes", "")
        print_table(headings, rows, right=headings[1:7])
    findings = list(report.all_findings())
    for finding in findings:
        click.echo(_line(finding))
    for partition in report.partitions:
        if partition.is_damaged:
            when = "in its segments" if report.needs_journal else "after `duramen log repair`"
            click.echo(f"{partition.name}: readable {when}: {ranges(partition.readable)}")
    records_found = sum(partition.records for partition in report.partitions)
    size = sum(partition.size for partition in report.partitions)
    verdict = "everything is sound"
    if any(finding.kind == "damage" for finding in findings):
        verdict = "there is damage"
    elif any(finding.kind == "index" for finding in findings):
        verdict = (
            "all records are sound; a start makes the files named above again, of a sealed segment behind `log repair`"
        )
    elif findings:
        verdict = "sound up to the tails named above, which the next start replaces or cuts"
    click.echo(f"{plural(records_found, 'record')}, {human_bytes(size)}: {verdict}")


def _row(partition: PartitionReport) -> tuple[object, ...]:
    kinds = {finding.kind for finding in partition.findings}
    mark = "damage" if "damage" in kinds else "index" if "index" in kinds else "tail" if "tail" in kinds else "ok"
    last = partition.segments[-1].next_offset if partition.segments else 0
    sealed = sum(segment.sealed for segment in partition.segments)
    return (
        partition.name,
        len(partition.segments),
        sealed,
        partition.start_offset,
        last,
        partition.records,
        human_bytes(partition.size),
        mark,
    )


def _line(finding: Finding) -> str:
    where = f" bytes {finding.start}..{finding.end}" if finding.end else ""
    offset = f", from offset {finding.offset}" if finding.offset >= 0 else ""
    if finding.last_offset >= finding.offset >= 0:
        offset = f", offsets {finding.offset}..{finding.last_offset}"
    return f"{finding.kind}: {finding.path}{where}: {finding.what}{offset}"


@command.command(
    short_help="Show the batches or records of a partition's files.",
    epilog="""\b
Examples:
  duramen log dump duramen-data/flights-0
  duramen log dump duramen-data/flights-0/00000000000000000000.log --json
  duramen log dump duramen-data/flights-0 --records --from 1000 --count 5
  duramen log dump 00000000000000000000.log.dropped-4096
""",
    help="""Show the batches or records in a partition's directory or in one segment file.

    Damaged bytes are told, and the next sound batch behind them is looked for; so are offsets between two
    segments that no file holds. The exit code is then 1, and 2 where nothing can be read.
    """,
)
@click.argument("path", type=click.Path(exists=True))
@click.option("--records", "open_records", is_flag=True, help="Show records instead of batches.")
@click.option("--from", "first", type=click.IntRange(min=0), default=0, help="Begin at the batch with this offset.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after so many batches or records.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def dump(path: str, open_records: bool, first: int, count: int | None, as_json: bool) -> int:
    shown = 0
    damage = 0
    for file, position, header in _read(path, first):
        if isinstance(header, DamagedBytes | MissingOffsets):
            damage += 1
            lines = [_damaged_line(header, as_json)]
        elif open_records and not header.is_control:
            lines = [line for offset, line in _record_lines(file, position, header, as_json) if offset >= first]
        else:
            lines = [_batch_line(file, position, header, as_json)]
        for line in lines:
            if count is not None and shown >= count:
                return int(damage > 0)
            click.echo(line)
            shown += 1
    if not shown:
        note("nothing is stored there" + (f" from offset {first} on" if first else ""))
    return int(damage > 0)


def _read(path: str, first: int) -> Iterator[tuple[File, int, BatchHeader | DamagedBytes | MissingOffsets]]:
    with ends_with_2():
        yield from walk_batches(RealDisk(), path, first)


def _damaged_line(damaged: DamagedBytes | MissingOffsets, as_json: bool) -> str:
    if isinstance(damaged, MissingOffsets):
        if as_json:
            return json.dumps({"missing": True, "first_offset": damaged.first, "last_offset": damaged.last})
        return f"missing  offsets {damaged.first}..{damaged.last}: no segment holds them"
    if as_json:
        return json.dumps({"damaged": True, "position": damaged.start, "bytes": damaged.end - damaged.start})
    return f"damaged  bytes {damaged.start}..{damaged.end}: no sound batch is here"


def _batch_line(file: File, position: int, header: BatchHeader, as_json: bool) -> str:
    """One batch; a control batch says what it marks."""
    fields: dict[str, Any] = {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "position": position,
        "bytes": header.size,
        "records": header.count,
        "leader_epoch": header.leader_epoch,
        "codec": _CODECS[header.compression] if header.compression < len(_CODECS) else str(header.compression),
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "LogAppendTime" if header.timestamp_type else "CreateTime",
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
    }
    batch = file.pread(header.size, position) if header.is_control else b""
    marker = read_marker(batch, header) if header.is_control else None
    if marker is not None:
        fields["marker"] = _MARKERS[marker.type]
        fields["coordinator_epoch"] = marker.coordinator_epoch
    stream = None
    if marker is None and header.is_control:
        stream = _STREAM_RECORDS.get(type_of(batch, header))
    if stream is not None:
        fields["marker"] = stream
    if as_json:
        return json.dumps(fields, separators=(",", ":"))
    parts = [
        f"{header.base_offset}..{header.last_offset}",
        f"byte {position}",
        human_bytes(header.size),
        fields["codec"],
        f"epoch {header.leader_epoch}",
        iso(header.max_timestamp) if header.max_timestamp >= 0 else "no time",
    ]
    if header.producer_id >= 0:
        parts.append(f"producer {header.producer_id}/{header.producer_epoch} seq {header.base_sequence}")
    if header.is_transactional:
        parts.append("transactional")
    if header.is_control:
        marks = "" if marker is None else f" {_MARKERS[marker.type]} by coordinator epoch {marker.coordinator_epoch}"
        parts.append(f"control{marks if stream is None else f' {stream}'}")
    return "  ".join(parts)


def _record_lines(file: File, position: int, header: BatchHeader, as_json: bool) -> Iterator[tuple[int, str]]:
    try:
        name = posixpath.basename(posixpath.dirname(posixpath.abspath(file.path)))
        topic, _, partition = name.rpartition("-")
        for record in records(file.pread(header.size, position), header, max_bytes=DECODED_BYTES_MAX):
            found = Incoming(
                topic,
                int(partition) if partition.isdecimal() else 0,
                record.offset,
                record.timestamp,
                record.key,
                record.value,
                [(bytes(key).decode("utf-8", "backslashreplace"), value) for key, value in record.headers],
            )
            line = to_json(found) if as_json else to_full(found, b"\t", b"null")
            yield record.offset, line.decode("utf-8", "backslashreplace")
    except DuramenError as error:
        raise click.ClickException(f"{file.path}: the batch at byte {position} cannot be opened: {error}.") from None
