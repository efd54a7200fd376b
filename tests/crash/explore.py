"""Opens crash states with the engine and checks what was promised; counts states by content."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

from tests.crash.promises import LogView, Promises, check_directory, require
from tests.crash.session import DATA, NOW, commit, open_directory
from tests.crash.states import State
from tests.crash.tape import TapeDisk

from duramen.errors import StorageError
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.journal.format import part_name
from duramen.storage.segment.seal import SEALING
from duramen.wire.seal import decode_seal

LEFTOVERS = (".tmp", ".new", ".tail", ".cut", ".deleted", ".cleaned", ".swap", "-delete")


@dataclass(slots=True)
class Findings:
    """What an exploration found. steps: of the tape; states: digests of distinct ones; violations: where and what."""

    path: str
    steps: int = 0
    states: set[bytes] = field(default_factory=set)
    opened: int = 0
    violations: list[str] = field(default_factory=list)


def explore(
    path: str,
    states: Iterator[State],
    check: Callable[[State], None],
    *,
    steps: int = 0,
    stop_at_first: bool = False,
) -> Findings:
    """Check states of one write path, all or up to the first violation, which is what `check` raises."""
    findings = Findings(path, steps)
    for state in states:
        findings.opened += 1
        findings.states.add(state.key)
        try:
            check(state)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            findings.violations.append(f"{path}, {state.origin}: {type(error).__name__}: {error}")
            if stop_at_first:
                break
    return findings


def check_storage(state: State) -> None:
    """Open the directory, hold it against its promises, open it again, go on with it, and look for leftovers."""
    promises = cast(Promises, state.promised or {})
    disk = TapeDisk(state.tree)
    views = _first_start(disk, promises, clean_stop=state.key[0] % 2 == 0)
    disk.end_process()
    _second_start(disk, promises, views)
    require(disk.open_files == 0, f"{disk.open_files} files are still open")


def _first_start(disk: TapeDisk, promises: Promises, *, clean_stop: bool) -> dict[bytes, LogView]:
    """Recover what the crash left, then crash again, or stop cleanly: then the next start believes the files."""
    directory = open_directory(disk, promises)
    views = check_directory(directory, promises)
    _growing_seals_hold(disk)
    directory.close(clean=clean_stop)
    return views


def _second_start(disk: TapeDisk, promises: Promises, views: dict[bytes, LogView]) -> None:
    """Starting again changes nothing, and leftovers go with the first maintenance."""
    directory = open_directory(disk, promises, 1000)
    require(check_directory(directory, promises) == views, "a second start answers something else")
    while jobs := directory.take_maintenance(NOW):
        for job in jobs:
            job.run()
            job.complete()
        commit(directory)
    _no_leftovers(disk, directory)
    directory.close(clean=False)


def _growing_seals_hold(disk: TapeDisk) -> None:
    """What a `.sealing` says is of bytes that are there: when the log has grown it is gone on from, not made anew."""
    contents = disk.contents()
    for name, data in contents.items():
        if not name.endswith(SEALING) or "-delete/" in name:
            continue
        try:
            seal = decode_seal(data, name)
        except StorageError:
            continue  # torn: it counts for nothing
        log = contents.get(name.removesuffix(SEALING) + ".log", b"")
        require(seal.length <= len(log), f"{name} speaks of {seal.length} bytes, there are {len(log)}")
        seal.check(memoryview(log)[: seal.length], 0, name, 0)


def _no_leftovers(disk: TapeDisk, directory: LogDirectory) -> None:
    """Nothing is in the directory that no log and no journal owns."""
    owned = {f"{log.tp}" for log in directory.logs.values()}
    for name in disk.contents():
        inside = name.removeprefix(f"{DATA}/").split("/")
        leftover = any(part.endswith(LEFTOVERS) for part in inside)
        if not inside[0].endswith("-stray"):  # kept as it was
            require(not leftover and (len(inside) == 1 or inside[0] in owned), f"{name} was left behind")
    generation = f"{DATA}/{part_name(directory.journal.maker.generation, 0)}".rpartition("-")[0]
    parts = [name for name in disk.contents() if name.endswith(".part") and not name.startswith(generation)]
    require(not parts, f"parts of another generation are left: {parts}")
