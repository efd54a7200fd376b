"""`duramen log repair`: take what is damaged out of a data directory that no node uses, and put it aside."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import click

from duramen.cli.shared.confirmation import confirm
from duramen.cli.shared.connection import sentence
from duramen.cli.shared.output import human_bytes, plural, print_json, reason
from duramen.errors import DuramenError
from duramen.model import TopicPartition
from duramen.storage import (
    DROPPED,
    LOST_FOLDER,
    METADATA_LOG,
    MOVED,
    PLACED,
    RESTORED,
    DirectoryRepair,
    JournalLoss,
    JournalReset,
    RealDisk,
    SystemEntropy,
    rebuild_metadata_log,
    repair_directory,
    reset_journal,
    survey_journal_reset,
)

DEFAULT_DIRECTORY = "./duramen-data"
NOT_DROPPED = "nothing was dropped; the directory is as a start and a clean stop leave it."


class CannotError(click.ClickException):
    """What was asked for could not be begun, or not be ended: 1 says that something is wrong with the directory."""

    exit_code = 2


@contextlib.contextmanager
def ends_with_2() -> Iterator[None]:
    """Inside of this errors of directories and disks end the command with 2."""
    try:
        yield
    except BrokenPipeError:
        raise
    except DuramenError as error:
        raise CannotError(sentence(str(error))) from None
    except OSError as error:
        raise CannotError(sentence(reason(error))) from None


@click.command(
    epilog=f"""\b
Examples:
  duramen log repair --dry-run
  duramen log repair /var/lib/duramen --topic flights --partition 0
  duramen log repair /var/lib/duramen --yes --json

\b
What is dropped goes to {LOST_FOLDER}/ in the data directory first; look at it
with `duramen log dump`. The exit code is 0 when nothing has to be dropped,
1 when records were or would be dropped, 2 when it cannot be done.
""",
    help="""Take what is damaged out of a data directory that no node uses.

    A flipped bit in a sealed segment is turned back. Other damaged batches go;
    the records around them keep their offsets, and readers pass over the gap.
    Indexes, snapshots and seals are made again by the next start.

    With --journal and a damaged journal: it is put aside, the segments keep
    what they have, and what they do not have is named.

    With --metadata a node whose metadata log was on a disk that is gone gets
    an empty one in DIRECTORY, and its topics are known by what is left.
    """,
)
@click.argument("path", metavar="[DIRECTORY]", default=DEFAULT_DIRECTORY, type=click.Path(exists=True, file_okay=False))
@click.option("--topic", help="Only the partitions of this topic.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition of --topic.")
@click.option("--journal", "without", is_flag=True, help="Go on without what a damaged journal held.")
@click.option("--metadata", "anew", is_flag=True, help="Begin the metadata log anew: its disk is gone for good.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def command(
    path: str,
    topic: str | None,
    partition: int | None,
    without: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    anew: bool = False,
) -> int:
    if anew and (without or topic is not None):
        raise click.UsageError("--metadata goes with no other kind of repair.")
    if partition is not None and topic is None:
        raise click.UsageError("--partition needs --topic.")
    only = topic if topic is None or partition is None else TopicPartition(topic, partition)
    with ends_with_2():
        if anew:
            return _rebuild_metadata(path, dry_run=dry_run, yes=yes, as_json=as_json)
        code = _reset_journal(path, dry_run=dry_run, yes=yes, as_json=as_json) if without else None
        return code if code is not None else _repair(path, only, dry_run=dry_run, yes=yes, as_json=as_json)


class _Dialogue:
    """Prints what a repair finds, and asks at the terminal. Raises UsageError where nothing has the name asked for."""

    def __init__(self, path: str, only: TopicPartition | str | None, *, yes: bool, silent: bool) -> None:
        self._path = path
        self._only = only
        self._yes = yes
        self._silent = silent

    def show(self, found: DirectoryRepair) -> None:
        only = self._only
        if only is not None and not found.repairs:
            raise click.UsageError(f"{self._path} has no partition {f'of {only}' if isinstance(only, str) else only}.")
        if not self._silent:
            _print(found)

    def approve(self, found: DirectoryRepair) -> None:
        confirm(f"Repair {self._path}: {plural(len(found.actions), 'change')}?", self._yes)

    def approve_more(self) -> None:
        confirm("The recovery is done, and shows more to drop. Drop it?", self._yes, otherwise=NOT_DROPPED)


def _repair(path: str, only: TopicPartition | str | None, *, dry_run: bool, yes: bool, as_json: bool) -> int:
    dialogue = _Dialogue(path, only, yes=yes, silent=as_json)
    found = repair_directory(RealDisk(), path, SystemEntropy(), dialogue, only=only, dry_run=dry_run)
    if as_json:
        print_json(_as_json(found, done=not dry_run))
    elif found.is_applied:
        click.echo("done; start the node, then run `duramen log verify` at its next stop")
    return int(any(action.kind == DROPPED for action in found.actions))


def _reset_journal(path: str, *, dry_run: bool, yes: bool, as_json: bool) -> int | None:
    """The command for a damaged journal; None when it is sound, and the rest of the directory is what matters."""
    disk = RealDisk()
    survey = survey_journal_reset(disk, path)
    if survey is None:
        return None
    found = survey.found
    resumes = isinstance(found, JournalReset)
    if not as_json:
        click.echo(_journal_message(found, path))
        for action in survey.in_the_way:
            click.echo(f"{action.kind}: {action.path}: {action.what}; it goes to {action.side_file}")
    lines: list[dict[str, Any]] = []
    if not dry_run:
        question = f"Finish it in {path}?" if resumes else f"Put the journal of {path} aside and go on without it?"
        confirm(question, yes)
        lines = reset_journal(disk, path, survey, SystemEntropy())
    if as_json:
        loss = {} if isinstance(found, JournalReset) else found._asdict()
        print_json({"path": path, "done": not dry_run, "resumed": resumes, **loss, "ends": None, "losses": lines})
        return 1
    for line in lines:
        where = "" if line["first_offset"] < 0 else f" offsets {line['first_offset']}..{line['last_offset']}:"
        copy = f" ({line['side_file']})" if "side_file" in line else ""
        click.echo(f"may be missing: {line['partition']}{where} {line['what']}{copy}")
    if lines:
        click.echo("done; run `duramen log verify`, then start the node")
    return 1


def _rebuild_metadata(path: str, *, dry_run: bool, yes: bool, as_json: bool) -> int:
    """The command for a metadata log that is gone with its disk."""

    def approve(recovers: bool) -> None:
        if not as_json:
            _print_rebuild(path, recovers=recovers)
        if not dry_run:
            confirm("Is the old metadata log lost for good, and on no disk that is only not mounted?", yes)

    now_ms = int(time.time() * 1000)
    begins_at = rebuild_metadata_log(RealDisk(), path, now_ms, SystemEntropy(), approve, dry_run=dry_run)
    if as_json:
        print_json({"path": path, "done": not dry_run, "partition": METADATA_LOG, "begins_at": begins_at})
    elif not dry_run:
        click.echo("done; start the node with all directories that are left in log.dirs")
    return 1


def _journal_message(found: JournalLoss | JournalReset, path: str) -> str:
    if isinstance(found, JournalReset):
        return f"{path}: a repair without the journal was interrupted; it has to be finished"
    if found.missing:
        what = "nobody knows what acknowledged journal entries were there; the segments may have their records"
        return f"{found.what}\n{what}"
    return (
        f"{found.what}\n{found.last_lsn - found.first_lsn + 1} acknowledged journal entries cannot be applied, "
        f"{found.intact} of them can be read; the segments may have their records all the same"
    )


def _print(found: DirectoryRepair) -> None:
    if found.recovers:
        click.echo(f"{found.path} was not stopped cleanly: its journal is recovered first")
    for action in found.actions:
        where = f" bytes {action.start}..{action.end}" if action.kind in (RESTORED, DROPPED) else ""
        offsets = f"; it goes to {action.side_file}" if action.kind in (MOVED, PLACED) else ""
        if action.kind == DROPPED:
            last = "?" if action.last_offset < 0 else action.last_offset
            offsets = f"; offsets {action.first_offset}..{last} become a gap" if action.first_offset >= 0 else ""
            if 0 <= action.last_offset < action.first_offset:
                offsets = "; no offsets were there"
            if action.side_file:
                offsets += f"; {human_bytes(action.end - action.start)} go to {action.side_file}"
        click.echo(f"{action.kind}: {action.path}{where}: {action.what}{offsets}")
    for repair in found.repairs:
        if any(action.kind == DROPPED for action in repair.actions):
            click.echo(f"{repair.name}: readable afterwards: {ranges(found.readable[repair.name])}")
        if repair.name == METADATA_LOG and any(action.kind == DROPPED for action in repair.actions):
            click.echo("lost topics that have logs here are known again at the next start, without their settings")
    if not found.actions:
        more = " as far as can be seen before a start; ask again after it and a clean stop" if found.recovers else ""
        click.echo(f"{found.path}: nothing to repair{more}")


def ranges(readable: list[tuple[int, int]]) -> str:
    """Offset ranges for people."""
    return ", ".join(f"{first}..{last}" for first, last in readable) or "nothing"


def _as_json(found: DirectoryRepair, *, done: bool) -> dict[str, Any]:
    return {
        "path": found.path,
        "recovers": found.recovers,
        "done": done,
        "actions": [action._asdict() for action in found.actions],
        "partitions": [
            {"partition": repair.name, "readable": ranges(found.readable[repair.name])}
            for repair in found.repairs
            if repair.name and repair.actions
        ],
    }


def _print_rebuild(path: str, *, recovers: bool) -> None:
    if recovers:
        click.echo(f"{path} was not stopped cleanly: its journal is recovered first")
    click.echo(
        f"{METADATA_LOG} begins anew in {path}. Topics are known again by their\n"
        "partitions' directories, with settings that keep all records; their own settings\n"
        "and other dynamic ones are lost. The node's own topics get as many partitions as\n"
        "offsets.topic.num.partitions and duramen.sink.topic.num.partitions say: let these\n"
        "be what they were when it first started."
    )
