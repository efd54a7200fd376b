"""`duramen stream`: create, list, append to, read, truncate, close and delete streams."""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO

import click

from duramen.cli.commands import stream_namespace
from duramen.cli.shared.confirmation import confirm
from duramen.cli.shared.connection import NAME, json_option
from duramen.cli.shared.output import human_bytes, note, pairs, plural, print_json, print_names
from duramen.cli.shared.position import LONG_MAX, StartPosition
from duramen.cli.shared.records import MAX_RECORD_BYTES, described, json_line
from duramen.cli.shared.signals import Terminated, ended_in_order
from duramen.cli.shared.stream_access import (
    StreamAccess,
    dlsn_option,
    place_in,
    stream_options,
    stream_position_option,
)
from duramen.dlsn import Dlsn
from duramen.errors import DeadlineError, ErrorCode, KafkaError, NetworkError, TlsError
from duramen.streams import (
    Receipt,
    Stream,
    StreamExistsError,
    StreamRecord,
    StreamWriter,
    TruncatedError,
    Txid,
    TxidMissingError,
)
from duramen.streams.link import TxidKind

_CONTENT_TYPE = "duramen.stream.content.type"
_MAX_BATCH = "max.message.bytes"
READ_BYTES = 256 * 1024
END_SECONDS = 0.05
"""From a line without an end to the end of the input, where they were written together."""
BATCH_LINES = 10_000
_AWAY_SECONDS = 0.5
POSITIONS = (
    "An offset, a DLSN, `txid:N`, `start`, `end`, -N (so many before the end), or a time (ISO 8601, or 10m for ago)."
)


@click.group(
    epilog="""\b
Examples:
  duramen stream create finance/ledger
  echo hello | duramen stream append finance/ledger
  duramen stream read finance/ledger --follow
  duramen stream close finance/ledger
  duramen stream list --at 'duramen+file:///data/log'
""",
    help="""Create, append to, read, truncate and close streams.

    A stream is a topic with one partition: finance/ledger is the topic finance.ledger.
    """,
)
def command() -> None:
    pass


command.add_command(stream_namespace.command, "namespace")


@command.command(
    epilog="""\b
Examples:
  duramen stream create finance/ledger
  duramen stream create clicks --config retention.ms=86400000
  duramen stream create ledger --at 'duramen+file:///data/log?namespace=eu'
""",
    help="Create streams. A directory (--at duramen+file://) is made where it is not there.",
)
@click.argument("names", metavar="STREAM...", nargs=-1, required=True, type=NAME)
@click.option("--config", "settings", multiple=True, metavar="KEY=VALUE", help="A topic setting; repeatable.")
@click.option("--exclusive", is_flag=True, help="One writer at a time: `duramen stream append --exclusive`.")
@click.option(
    "--txid",
    type=click.Choice(["none", "application", "assigned"]),
    default="none",
    help="Who gives the records transaction ids, which never step back.",
)
@click.option("--if-not-exists", is_flag=True, help="No error when the stream exists.")
@stream_options
def create(
    access: StreamAccess,
    names: tuple[str, ...],
    settings: tuple[str, ...],
    exclusive: bool,
    txid: TxidKind,
    if_not_exists: bool,
) -> None:
    config: dict[str, Any] = dict(pairs("--config", settings))
    with access.opened(makes_directory=True) as space:
        for name in dict.fromkeys(names):
            try:
                made = access.call(partial(space.create, name, exclusive=exclusive, txid=txid, **config))
                note(f"created {name}{_kept(access, made)}")
            except StreamExistsError as error:
                if not if_not_exists:
                    raise click.ClickException(f"{error}; --if-not-exists makes that no error.") from None
                note(f"{name} exists")


def _kept(access: StreamAccess, stream: Stream) -> str:
    """What a stream keeps of its records, by the setting that says so; "" where who made it may not see it."""
    try:
        settings = access.call(stream.settings)
    except KafkaError:
        return ""
    policy = settings["cleanup.policy"]
    by_age = f"retention.ms={settings['retention.ms']}"
    if policy == "delete":
        return f" with {by_age}"
    return f" with cleanup.policy={policy}" + (f", {by_age}" if "delete" in policy else "")


@command.command(
    "list",
    epilog="""\b
Examples:
  duramen stream list
  duramen stream list finance/ --limit 100
  duramen stream list finance/ --limit 100 --after finance/ledger
  duramen stream list --json
""",
    help="List the names of streams that begin with PREFIX, sorted.",
)
@click.argument("prefix", default="")
@click.option("--limit", type=click.IntRange(1), default=1_000_000, help="At most so many.")
@click.option("--after", default="", metavar="STREAM", help="Go on behind this name, the last of the page before.")
@json_option
@stream_options
def list_(access: StreamAccess, prefix: str, limit: int, after: str, as_json: bool) -> None:
    with access.opened() as space:
        names = access.call(lambda: space.list(prefix, after=after, limit=limit))
    print_names(names, as_json=as_json)
    if not (names or prefix or after or as_json):
        note("there are no streams; `duramen stream create NAME` makes one")


@command.command(
    epilog="""\b
Examples:
  echo hello | duramen stream append greetings
  duramen stream append greetings lines.txt --expect 0
  duramen stream append images cat.png --whole
  tail -f app.log | duramen stream append logs
  duramen stream append ledger day.txt --exclusive --writer host-7
""",
    short_help="Append lines of a file or of stdin, or all of it.",
    help="""Append the lines of a file or of stdin, each as a record, or all of it as one (--whole).

    Lines that come together are one batch. Says where they went, once they are durable.
    """,
)
@click.argument("name", metavar="STREAM", type=NAME)
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--whole", is_flag=True, help="The whole input is one record, line ends and all.")
@click.option("--expect", type=click.IntRange(0), metavar="OFFSET", help="Only where the stream ends there.")
@click.option("--writer", metavar="NAME", help="As this named writer; who writes under the name already is fenced.")
@click.option("--exclusive", is_flag=True, help="Open an exclusive stream for this command, and give it up at the end.")
@click.option("--txid", type=click.IntRange(1, LONG_MAX), help="The transaction id of the records.")
@click.option("--raw", is_flag=True, help="To a JSON stream append what is no JSON, too, rather than refuse it.")
@json_option
@stream_options
def append(
    access: StreamAccess,
    name: str,
    file: BinaryIO,
    whole: bool,
    expect: int | None,
    writer: str | None,
    exclusive: bool,
    txid: int | None,
    raw: bool,
    as_json: bool,
) -> None:
    if expect is not None and exclusive:
        raise click.UsageError("--exclusive has nobody beside it; leave out --expect.")
    count, first, last = 0, None, None
    with ended_in_order(), access.opened() as space:
        stream = access.call(lambda: space.stream(name))
        settings = _settings(access, stream)
        limit = int(settings.get(_MAX_BATCH, MAX_RECORD_BYTES))
        takes_json = not raw and settings.get(_CONTENT_TYPE, "").partition(";")[0].strip().lower() == "application/json"
        written = access.call(
            lambda: stream.writer(name=writer, exclusive=exclusive, expected_position=expect, max_bytes=sys.maxsize)
        )
        if file.isatty():
            note("Ctrl-D ends the record" if whole else "each line is a record; Ctrl-D ends")
        try:
            for batch in [_whole(file, limit)] if whole else _cut(_batches(file, limit)):
                if takes_json:
                    _check_json(name, batch, count)
                receipt = access.call(partial(_append, written, batch, txid))
                count += len(batch)
                first, last = first or receipt, receipt
                if as_json:
                    print_json({"stream": name, "records": len(batch), **_told(receipt)})
            if expect is not None and not count:
                _check_end(access, stream, name, expect)
            access.call(written.close)
        except TxidMissingError:
            text = f"{name}: its application gives transaction ids; give the records one: --txid NUMBER."
            raise click.ClickException(text) from None
        except BaseException as error:
            if count:
                stored = f"{plural(count, 'record')} of the input {'is' if count == 1 else 'are'} stored"
                typed = isinstance(error, KeyboardInterrupt) and not isinstance(error, Terminated)  # behind its ^C
                note(f"{chr(10) if typed else ''}{stored}; what follows is not, or its fate is unknown")
            raise
    if not as_json:
        note(f"appended {plural(count, 'record')} to {name}" + ("" if first is None else _where(first, last or first)))


def _settings(access: StreamAccess, stream: Stream) -> Mapping[str, str]:
    """The stream's settings; none for who may only write to it, and then nothing is checked here."""
    try:
        return access.call(stream.settings)
    except KafkaError as error:
        if error.code not in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
            raise
        return {}


def _check_end(access: StreamAccess, stream: Stream, name: str, expected: int) -> None:
    """Of an input without a record: the end is not checked by an append."""
    end = access.call(stream.end)
    if end != expected:
        raise click.ClickException(f"{name}: the stream ends at {end}, not at {expected}.")


def _whole(file: BinaryIO, limit: int) -> list[bytes]:
    content = file.read(limit + 1)
    if len(content) > limit:
        raise _too_large("the input", limit)
    return [content]


def _too_large(what: str, limit: int) -> click.ClickException:
    return click.ClickException(
        f"{what} is longer than {human_bytes(limit)} ({limit:,} bytes, {_MAX_BATCH} of the stream); no record can be."
    )


def _check_json(name: str, batch: list[bytes], before: int) -> None:
    """Refuse a batch with a record that readers over HTTP could not get as JSON. before: records of the input."""
    for number, value in enumerate(batch, before + 1):
        try:
            json.loads(value, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise click.ClickException(
                f"{name} takes JSON, and record {number} of the input is none: {str(error)[:200]}; --raw appends it."
            ) from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _append(writer: StreamWriter, batch: list[bytes], txid: int | None) -> Receipt:
    for value in batch:
        writer.write(value, txid=txid)
    receipt = writer.flush()
    assert receipt is not None
    return receipt


def _told(receipt: Receipt) -> dict[str, object]:
    return {**receipt._asdict(), "dlsn": str(receipt.dlsn)}


def _where(first: Receipt, last: Receipt) -> str:
    copies = "1 copy" if last.copies == 1 else f"{last.copies} copies"
    return f" from offset {first.offset} (DLSN {first.dlsn}), ends at {last.end}; {last.durability}, {copies}"


def _batches(file: BinaryIO, limit: int) -> Iterator[list[bytes]]:
    """The lines that are there, without waiting for more; without their ends. limit: bytes of a line, which ends the
    command when it is longer, rather than fill the memory."""
    read = getattr(file, "read1", file.read)
    lines: list[bytes] = []
    number, size, held = 0, 0, 0
    rest: list[bytes] = []
    while piece := read(READ_BYTES):
        begun, *more = piece.split(b"\n")
        rest.append(begun)
        held += len(begun)
        if held > limit:
            if lines:
                yield lines
            raise _too_large(f"line {number + 1:,} of the input", limit)
        if more:
            ended = [b"".join(rest), *more[:-1]]
            lines += [line.removesuffix(b"\r") for line in ended]
            number += len(ended)
            rest, held = [more[-1]] if more[-1] else [], len(more[-1])
        size += len(piece)
        # The last line may have no end: then the end of the input comes with it.
        if lines and not (held and size < READ_BYTES and _has_more(file)):
            yield lines
            lines, size = [], 0
    if held:
        lines.append(b"".join(rest))
    if lines:
        yield lines


def _cut(batches: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
    """The lines in batches that every address takes."""
    for lines in batches:
        for start in range(0, len(lines), BATCH_LINES):
            yield lines[start : start + BATCH_LINES]


def _has_more(file: BinaryIO) -> bool:
    """Whether more of it, or its end, comes in a moment."""
    try:
        return bool(select.select([file], [], [], END_SECONDS)[0])
    except (OSError, ValueError, TypeError):  # it is no file of the system's, which waits for nothing
        return True


@command.command(
    epilog="""\b
Examples:
  duramen stream read ledger
  duramen stream read ledger --from -10 --follow
  duramen stream read ledger --from 2026-05-01T00:00:00Z --json
  duramen stream read ledger --after 00000001-0000000000000004-00000002
""",
    help="""Print a stream's records, each value on a line, up to its end.

    --follow waits there for more, until the stream is closed.
    """,
)
@click.argument("name", metavar="STREAM", type=NAME)
@click.option(
    "--from", "start", callback=stream_position_option, metavar="POSITION", help=f"Where to begin. {POSITIONS}"
)
@click.option("--after", callback=dlsn_option, metavar="DLSN", help="Begin behind this record instead.")
@click.option("-f", "--follow", is_flag=True, help="At the end wait for more.")
@click.option("-n", "--limit", type=click.IntRange(1), help="Stop after so many records.")
@json_option
@stream_options
def read(
    access: StreamAccess,
    name: str,
    start: StartPosition | Dlsn | Txid | None,
    after: Dlsn | None,
    follow: bool,
    limit: int | None,
    as_json: bool,
) -> None:
    if start is not None and after is not None:
        raise click.UsageError("--from and --after both say where to begin; give one of them.")
    with ended_in_order(), _start_named(), access.opened() as space:
        stream = access.call(lambda: space.stream(name))
        place = "start" if start is None else access.call(lambda: place_in(stream, start))
        reader = access.call(lambda: stream.reader(place, after=after, follow=follow))
        left = limit
        out = sys.stdout.buffer
        for record in _patiently(access, reader) if follow else reader:
            out.write((json_line(_described(record)) if as_json else record.value or b"") + b"\n")
            if follow:
                out.flush()
            if left is not None:
                left -= 1
                if not left:
                    break
        out.flush()


def _patiently(access: StreamAccess, reader: Iterator[StreamRecord]) -> Iterator[StreamRecord]:
    """The records, also when who is asked is away for longer than a call may take."""
    away = False
    while True:
        try:
            record = next(reader, None)
        except TlsError:
            raise
        except (DeadlineError, NetworkError) as error:
            if not away:
                note(f"waiting for {access.address}: {error}")
            away = True
            time.sleep(_AWAY_SECONDS)
            continue
        if record is None:
            return
        away = False
        yield record


@contextmanager
def _start_named() -> Iterator[None]:
    """Says how to begin with the first record there is, where one was truncated."""
    try:
        yield
    except TruncatedError as error:
        raise click.ClickException(f"{error}: --from start begins there.") from None


def _described(record: StreamRecord) -> dict[str, object]:
    place = {"offset": record.offset, "dlsn": str(record.dlsn)}
    return {**place, **described(record.timestamp_ms, record.key, record.value, record.headers)}


@command.command(
    epilog="""\b
Examples:
  duramen stream truncate ledger --before 1000
  duramen stream truncate ledger --before 7d --yes
""",
    help="Delete the records before a position. The offsets of the others do not change.",
)
@click.argument("name", metavar="STREAM", type=NAME)
@click.option(
    "--before",
    callback=stream_position_option,
    required=True,
    metavar="POSITION",
    help=f"Everything before it goes. {POSITIONS}",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@stream_options
def truncate(access: StreamAccess, name: str, before: StartPosition | Dlsn | Txid, yes: bool, as_json: bool) -> None:
    with access.opened() as space:
        stream = access.call(lambda: space.stream(name))
        confirm(f"Delete the records of {name} before that position?", yes)
        first = access.call(lambda: stream.truncate(before=place_in(stream, before)))
    if as_json:
        print_json({"stream": name, "start_offset": first})
    else:
        click.echo(f"{name} now starts at offset {first}")


@command.command(
    epilog="""\b
Examples:
  duramen stream close ledger
  duramen stream close ledger --expect 1000 --yes
""",
    short_help="Close a stream for ever.",
    help="Close a stream: nothing is appended to it any more, by anybody, for ever. Its records stay.",
)
@click.argument("name", metavar="STREAM", type=NAME)
@click.option("--expect", type=click.IntRange(0), metavar="OFFSET", help="Only where the stream ends there.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@stream_options
def close(access: StreamAccess, name: str, expect: int | None, yes: bool) -> None:
    with access.opened() as space:
        stream: Stream = access.call(lambda: space.stream(name))
        confirm(f"Close {name} for ever?", yes)
        access.call(lambda: stream.close_stream(expected_position=expect))
    note(f"closed {name}")


@command.command(
    epilog="""\b
Examples:
  duramen stream delete ledger
  duramen stream delete old/a old/b --yes
""",
    help="Delete streams with all their records.",
)
@click.argument("names", metavar="STREAM...", nargs=-1, required=True, type=NAME)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@stream_options
def delete(access: StreamAccess, names: tuple[str, ...], yes: bool) -> None:
    with access.opened() as space:
        confirm(f"Delete {', '.join(names)} with all records?", yes)
        for name in dict.fromkeys(names):
            access.call(lambda name=name: space.delete(name))  # type: ignore[misc]
            note(f"deleted {name}")
