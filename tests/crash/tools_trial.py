"""The offline commands on a directory in memory: verify, dump and repair, with one failing disk call."""

from __future__ import annotations

import contextlib
import gc
import io
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import click
from tests.crash.call_sites import Site
from tests.crash.odd_paths import filled, rolled_back
from tests.crash.promises import read_raw, require
from tests.crash.session import DATA, NOW, Session
from tests.crash.watched import Fault, WatchedDisk

from duramen.cli.log import log as log_commands
from duramen.cli.log import repair as repair_command
from duramen.errors import DuramenError
from duramen.model import METADATA_TOPIC, topic_id_text
from duramen.storage.checkpoint.loss_record import LOST_FOLDER
from duramen.storage.journal.format import ENTRY_MAGIC, HEADER_BLOCK, EntryKind, decode_entry, decode_part_header
from duramen.storage.repair import rebuild_metadata
from duramen.storage.segment.partition_metadata import encode_partition_metadata

OTHER_ID = b"w" * 16


def harmed(how: str) -> Session:
    """A directory with a flipped bit, lost bytes and damaged side files, and the session that wrote it.

    how: "unclean", with a batch that bypassed the journal and a partition that was just being made; "journal", and the
    journal is damaged; "short", after a clean stop, and the last segment lost its end; "middle", and it lost a batch,
    and a metadata log its beginning;
    "gone", as "short", with another log all of whose segments are missing, and a seal that is none; "again" as "short";
    "lost" as "short", and "missing" as "unclean", with one or two other logs whose directories are gone; "strays" as
    "short", with a copy by the name of a swap and a directory by that of an index, and "missing" with such a copy and a
    segment inside of another one; "swaps" as "short", and compacted segments were damaged in front of their places;
    "anew" as "unclean", and a metadata log was begun, but not put in its place.
    """
    session = Session(1, WatchedDisk())  # type: ignore[arg-type]
    filled(session)
    session.keep_house(NOW)
    rolled_back(session, 60)
    for number in {"gone": (2,), "lost": (2,), "missing": (3, 2)}.get(how, ()):
        session.create(number)
        session.put(number, 300)
        session.commit()
        if number == 3:
            session.checkpoint()
    if how in ("short", "middle", "gone", "again", "lost", "strays", "swaps"):
        session.stop()
    else:
        if how == "unclean":
            session.put(1, 7000)
            session.disk.inner.make_directories(f"{DATA}/topic9-0")  # type: ignore[attr-defined]
        for _ in range(4):
            session.put(1, 200)
            session.commit()
        session.crash()
    disk = session.disk
    disk.end_process()
    logs = sorted(name for name in disk.contents() if name.endswith(".log") and "/topic1-" in name)
    if how == "gone":
        for name in [name for name in disk.contents() if name.endswith(".log") and name not in logs]:
            disk.inner.remove(name)  # type: ignore[attr-defined]
        disk.damage(logs[0][:-4] + ".seal", 9)  # type: ignore[attr-defined]
    if how in ("lost", "missing"):
        inner = disk.inner  # type: ignore[attr-defined]
        for path in [path for path in disk.contents() if path.startswith((f"{DATA}/topic2-", f"{DATA}/topic3-"))]:
            inner.remove(path)
        for name in [name for name in inner.list_directory(DATA) if name.startswith(("topic2-", "topic3-"))]:
            inner.remove(f"{DATA}/{name}")
        inner.sync_directory(DATA)
    if how != "missing":
        disk.damage(logs[0], 200, 0x10)  # type: ignore[attr-defined]
    file = disk.inner.open(logs[1], write=True)  # type: ignore[attr-defined]
    file.pwritev([bytes(60)], 1000)
    file.close()
    file = disk.inner.open(logs[-1], write=True)  # type: ignore[attr-defined]
    if how == "middle":
        file.pwritev([bytes(60)], 200)
    else:
        file.truncate(max(0, file.size() - 10))
    file.close()
    harms = {"journal": _damage_the_journal, "strays": _strays, "missing": _inside, "swaps": _swaps}
    if how in harms:
        harms[how](disk, logs)
    if how == "anew":
        disk.inner.make_directories(f"{DATA}/{LOST_FOLDER}/{METADATA_TOPIC}-0.new")  # type: ignore[attr-defined]
    if how == "middle":
        _without_beginning(disk)
        disk.inner.open(logs[-1][:-4] + ".seal", create=True, write=True).close()  # type: ignore[attr-defined]
    for name in disk.contents():
        if name.endswith(".timeindex") and name.startswith(logs[1][:-4]):
            disk.damage(name, 3)  # type: ignore[attr-defined]
    return session


def _strays(disk: Any, logs: list[str]) -> None:
    index = logs[1][:-4] + ".index"
    if disk.inner.exists(index):
        disk.inner.remove(index)
    disk.inner.make_directories(index)
    _put(disk, f"{logs[0]}.swap", b"copy")


def _inside(disk: Any, logs: list[str]) -> None:
    home, _, name = logs[0].rpartition("/")
    _put(disk, f"{home}/{int(name[:-4]) + 1:020d}.log", b"")
    _put(disk, f"{logs[0]}.swap", b"copy")


def _swaps(disk: Any, logs: list[str]) -> None:
    """One that has its seal beside it, one whose seal is in its place, and one of them has what it replaces there."""
    inner, contents = disk.inner, disk.contents()
    seals = [log[:-4] + ".seal" for log in logs[:2]]
    inner.rename(logs[0], logs[0] + ".swap")
    inner.rename(seals[0], seals[0] + ".swap")
    inner.rename(logs[1], logs[1] + ".swap")
    _put(disk, logs[1], contents[logs[0]][:700])
    inner.sync_directory(logs[0].rpartition("/")[0])


def _without_beginning(disk: Any) -> None:
    home = f"{DATA}/{METADATA_TOPIC}-0"
    disk.inner.make_directories(home)
    _put(disk, f"{home}/{5:020d}.log", b"")
    _put(disk, f"{home}/partition.metadata", encode_partition_metadata(topic_id_text(OTHER_ID)))


def _put(disk: Any, path: str, content: bytes) -> None:
    file = disk.inner.open(path, create=True, write=True)
    file.pwritev([content], 0)
    file.close()


def _damage_the_journal(disk: Any, logs: list[str]) -> None:
    """The youngest batch but two of it is not what was written."""
    parts = {name: content for name, content in disk.contents().items() if name.endswith(".part")}
    places = sorted(
        (entry.lsn, name, at)
        for name, content in parts.items()
        for at in range(HEADER_BLOCK, len(content), 8)
        if content[at : at + 4] == ENTRY_MAGIC.to_bytes(4, "big")
        and (header := decode_part_header(content[:HEADER_BLOCK]))
        and (entry := decode_entry(memoryview(content), at, header.seed))
        and entry.kind == EntryKind.BATCH
    )
    _, name, at = places[-3]
    disk.damage(name, at + 100)


def tools_trial(how: str, fault: Fault | None = None) -> Counter[Site]:
    """Run every command; returns the sites they came through. The commands end with an error of the disk or ours."""
    session = harmed(how)
    disk: WatchedDisk = session.disk  # type: ignore[assignment]
    before = disk.contents()
    disk.watch.hits.clear()
    disk.watch.fault = fault
    partition = f"{DATA}/topic1-0"
    commands: list[Callable[[], object]] = [
        lambda: log_commands.verify.callback((DATA,), True, False),  # type: ignore[misc]
        lambda: log_commands.verify.callback((partition,), False, True),  # type: ignore[misc]
        lambda: log_commands.dump.callback(partition, True, 0, None, False),  # type: ignore[misc]
        lambda: log_commands.dump.callback(partition, False, 0, 3, True),  # type: ignore[misc]
        lambda: repair_command.command.callback(DATA, None, None, False, True, True, False),  # type: ignore[misc]
        lambda: repair_command.command.callback(DATA, None, None, False, False, True, True),  # type: ignore[misc]
        lambda: repair_command.command.callback(DATA, None, None, True, False, True, False),  # type: ignore[misc]
        lambda: log_commands.verify.callback((DATA,), True, False),  # type: ignore[misc]
    ]
    if how == "anew":
        commands.insert(0, _begin_metadata_anew)
    if how == "again":  # put aside, and not in its place yet: there a repair was cut short
        commands = [commands[-2], lambda: _put_back(disk, before), *commands[-2:]]
    for command in commands:
        _told(disk, command)
        disk.end_process()
    hits = disk.watch.hits.copy()
    disk.watch.fault = None
    gc.collect()
    _told(disk, lambda: repair_command.command.callback(DATA, None, None, False, False, True, True))  # type: ignore[misc]
    _told(disk, lambda: repair_command.command.callback(DATA, None, None, True, False, True, True))  # type: ignore[misc]
    disk.end_process()
    session.start()
    log = session.log(1)
    found = dict(read_raw(log))
    acknowledged = next(iter(session.promises.values())).acknowledged
    missing = [base for base, data in acknowledged.items() if found.get(base) != data]
    require(len(missing) <= 3, f"a repair lost {missing}")
    session.crash()
    return hits


def _begin_metadata_anew() -> None:
    with patch.object(rebuild_metadata, "METADATA_TOPIC_ID", OTHER_ID):  # which topic1 has here
        repair_command.command.callback(DATA, None, None, False, False, True, True, True)  # type: ignore[misc]


def _put_back(disk: WatchedDisk, before: dict[str, bytes]) -> None:
    """The segments are what they were."""
    for name, content in before.items():
        if name.endswith(".log"):
            file = disk.inner.open(name, write=True)
            file.truncate(0)
            file.pwritev([content], 0)
            file.close()


def _told(disk: WatchedDisk, command: Callable[[], object]) -> None:
    """Run a command as its user does; what it may raise, the command line's main tells in a sentence."""
    with (
        patch.object(log_commands, "RealDisk", lambda: disk),
        patch.object(repair_command, "RealDisk", lambda: disk),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(OSError, DuramenError, click.ClickException),
    ):
        command()
