"""Lives of a log directory: random steps, a kill or a power cut at any disk call, a start that may be cut, too; again.

    ending = live(7)

One seed is one life, and decides everything in it: what is done (`lives_steps.py`), which disk call is the last one,
what power leaves of the disk, and whether a small file is taken away, or an older one put in its place, before a start.
After every start the promises of `promises.py` are checked; then what the start has found is the new ledger.
"""

from __future__ import annotations

import posixpath
import re
import traceback
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from tests.crash.lives_steps import Steps
from tests.crash.promises import LogPromise, LogView, check_directory, require, settled
from tests.crash.session import DATA, open_directory

from duramen.errors import StorageError
from duramen.sim.world.disk import CrashDisk, NodeDied, PowerCut
from duramen.storage.checkpoint.kafka_files import CHECKPOINT
from duramen.storage.files.atomic import replace_file
from duramen.storage.log.log import Log
from duramen.storage.segment.leader_epochs import LEADER_EPOCHS
from duramen.storage.segment.partition_metadata import PARTITION_METADATA
from duramen.wire.batch import parse_header

GENERATIONS = 4
"""Starts of a life. What one leaves for the next to stumble over shows soon."""
SMALL_FILES = (
    ".kafka_cleanshutdown",
    "*.index",
    "*.producers",
    "*.seal",
    "*.sealing",
    "*.snapshot",
    "*.timeindex",
    "cleaner-offset-checkpoint",
    "duramen-checkpoint",
    "duramen-cleaned",
    "duramen-directory",
    "leader-epoch-checkpoint",
    "log-start-offset-checkpoint",
    "meta.properties",
    "partition.metadata",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
)
"""What is tampered with: all that is neither a log nor the journal (test_deleted_files.py)."""
RARE = (".kafka_cleanshutdown", "cleaner-offset-checkpoint", "duramen-cleaned")
"""There after few deaths only, and then preferred."""
DEATHS = ("power cut in a call", "power cut in a call", "power cut", "kill in a call", "kill", "clean stop")


class Ending(NamedTuple):
    """How a life ended: "whole", "refused" or "offline" (tampered with and told so), or "broken": `violation` says it.

    met: how often something was met, by name. trace: every step. where: the traceback of a violation.
    """

    seed: int
    how: str
    violation: str
    met: Counter[str]
    trace: list[str]
    where: str = ""


class Life(Steps):
    """One life. tampered: whether small files are taken away or put back between its generations."""

    def __init__(self, seed: int, disk: Callable[..., CrashDisk] = CrashDisk) -> None:
        super().__init__(seed, disk)
        self.seed = seed
        self.tampered = seed % 2 == 0
        self._older: dict[str, list[bytes]] = {}

    def start(self) -> None:
        """Open the directory; nothing is under way."""
        self.nothing_under_way()
        self.directory = open_directory(self.disk, self.promises, self.dice.randrange(1, 1 << 30), self.settings)

    def run(self) -> str:
        """All of it; returns how it ended. PromiseBrokenError, or whatever else is not as it should be."""
        self.start()
        for generation in range(GENERATIONS):
            self.trace.append(f"--- generation {generation}")
            self._until_death()
            for _ in range(self.dice.choice([0, 0, 1, 2])):
                self._start_that_is_cut()
            what = self._tamper() if self.tampered else ""
            try:
                self.start()
            except StorageError as error:
                if not what:
                    raise
                self.trace.append(f"refused: {error}")
                return "refused"
            if what and self.directory.offline:
                return "offline"
            if what:
                self.directory.recovery.damage.clear()
            self._take_stock()
            self.met["starts"] += 1
        return "whole"

    # ---- deaths

    def _until_death(self) -> None:
        """Steps, and the end of the process."""
        how = self.dice.choice(DEATHS)
        count = self.dice.randrange(20, 160)
        last = self.disk.calls + self.dice.randrange(1, 600)
        self.disk.cut_at = last if how == "power cut in a call" else None
        self.disk.kill_at = last if how == "kill in a call" else None
        try:
            whole = self.steps(count)
            if how == "clean stop" and whole and self.disk.fault is None:
                self._stop()
                self.met["clean stops"] += 1
            elif how.startswith("power cut"):
                self.disk.power_cut()
                self.met["power cuts between calls"] += 1
            else:
                self.disk.kill()
                self.met["kills between calls"] += 1
            self.trace.append(how)
        except NodeDied as death:
            self._died(death, "in steps")
        self._power_on()

    def _stop(self) -> None:
        """A clean stop, as the engine does it: what is under way ends first. Power may fail in it."""
        if self.dice.random() < 0.3:
            self.disk.cut_at = self.disk.calls + self.dice.randrange(1, 60)
        while self.group is not None:
            self.end_group()
        while self.round is not None:
            self.go_on_with_checkpoint()
        while self.jobs or self.ran:
            self.go_on_with_maintenance()
        while self.rebuilds:
            self.go_on_with_rebuilds()
        while self.cleaning_job is not None:
            self.go_on_with_compaction()
        if self.directory.journal.failed is not None:
            self.disk.kill()  # what was under way has failed, and a fenced directory is not stopped cleanly
            return
        self.stop()
        self.disk.end_process()

    def _start_that_is_cut(self) -> None:
        """A start that dies in one of its calls, or right behind the last one."""
        last = self.disk.calls + self.dice.randrange(1, 400)
        if self.dice.random() < 0.5:
            self.disk.cut_at = last
        else:
            self.disk.kill_at = last
        try:
            self.start()
            self.disk.cut_at = self.disk.kill_at = None
            self.disk.kill()
            self.met["starts killed at their end"] += 1
        except NodeDied as death:
            self._died(death, "in a start")
        self._power_on()

    def _died(self, death: NodeDied, where: str) -> None:
        self.trace.append(f"{death!r}, {where}")
        self.met[f"{'power cuts' if isinstance(death, PowerCut) else 'kills'} {where}"] += 1

    def _power_on(self) -> None:
        self.disk.fault = None
        self.disk.cut_at = self.disk.kill_at = None
        if not self.disk.powered:
            self.disk.power_on()

    # ---- the ledger

    def _take_stock(self) -> None:
        """Hold what the start has found against the ledger; from here on it is the ledger."""
        logs = {topic_id: self.directory.logs.get((topic_id, 0)) for topic_id in self.promises}
        for topic_id, log in logs.items():
            if log is not None:
                self.promises[topic_id] = settled(log, self.promises[topic_id])
            if log is not None and self.promises[topic_id].compacted:
                _count_all(log, self.promises[topic_id])
        views = check_directory(self.directory, self.promises)
        for topic_id, log in logs.items():
            if log is None:
                del self.promises[topic_id]
            else:
                _begin_anew(self.promises[topic_id], views[topic_id])
                self.producers_go_on(log)

    # ---- tampering

    def _may_be_back(self, path: str) -> bool:
        """Whether an older file may be put in the place of this one.

        That of a partition's identity is another topic's of the same name: until this one was made, nothing knows that.
        """
        if kind_of(path) != PARTITION_METADATA:
            return True
        its = [promise for promise in self.promises.values() if posixpath.dirname(path) == f"{DATA}/{promise.tp}"]
        return all(promise.created for promise in its) and not all(promise.deleted for promise in its)

    def _tamper(self) -> str:
        """Mostly one small file of a kind goes, or is what it was at an earlier start; returns what was done.

        Not those named by an offset: each is written once, and an older one is of records that were cut off.
        """
        now = {path: data for path, data in self.disk.contents().items() if kind_of(path) in SMALL_FILES}
        kinds: dict[str, list[str]] = {}
        for path in now:
            kinds.setdefault(kind_of(path), []).append(path)
        what = ""
        if kinds and self.dice.random() < 0.8:
            kind = self.dice.choices(sorted(kinds), [20 if kind in RARE else 1 for kind in sorted(kinds)])[0]
            path = self.dice.choice(kinds[kind])
            older = [data for data in self._older.get(path, []) if data != now[path] and self._may_be_back(path)]
            if older and not kind.startswith("*") and self.dice.random() < 0.6:
                what = f"rolled back: {kind}"
                replace_file(self.disk, path, self.dice.choice(older))
            else:
                what = f"removed: {kind}"
                self.disk.remove(path)
            for promise in self.promises.values():
                if kind == CHECKPOINT and older:
                    promise.synced_end = 0  # an old one knows of the end that was journaled, not of what followed
                if path == f"{DATA}/{promise.tp}/{LEADER_EPOCHS}":
                    promise.epoch = -1  # one without a record yet is nowhere else
            self.trace.append(f"{what}: {path}")
            self.met[what] += 1
        for path, data in now.items():
            self._older.setdefault(path, []).append(data)
        return what


def kind_of(path: str) -> str:
    """A file's name without its offset; that of a directory that is about to be removed, if it lies in one."""
    if "-delete/" in path:
        return posixpath.basename(posixpath.dirname(path))
    name = posixpath.basename(path)
    found = re.fullmatch(r"\d{20}(\.[a-z]+)", name)
    return name if found is None else f"*{found[1]}"


def _count_all(log: Log, promise: LogPromise) -> None:
    """What was found of a compacted log counts as acknowledged, for nothing of it may go now; what was is among it."""
    for base, data in promise.acknowledged.items():
        there = parse_header(data).next_offset <= log.end_offset
        require(there, f"{promise.tp} ends at {log.end_offset}, {base} was acknowledged")
    promise.acknowledged = {base: each[-1][1] for base, each in promise.queued.items() if _fits(each, log.end_offset)}


def _fits(queued: list[tuple[int, bytes]], end: int) -> bool:
    """Whether the last batch of these is one of a log that ends there; the first of one may begin in front of it."""
    return parse_header(queued[-1][1]).next_offset <= end


def _begin_anew(promise: LogPromise, view: LogView) -> None:
    """What a start has found is durable: no later one may find less, or anything that this one did not."""
    promise.created, promise.delete_asked = True, False
    promise.cut_asked, promise.cuts, promise.cuts_asked = None, 0, 0
    promise.forgotten = max(promise.forgotten, promise.start_asked)
    promise.start = promise.start_asked = view.start
    promise.synced_end = view.end
    promise.epoch = view.epochs[-1][0] if view.epochs else -1
    if promise.compacted:
        promise.queued = {base: [(0, each[-1][1])] for base, each in promise.queued.items() if _fits(each, view.end)}
    else:
        promise.queued = {base: [(0, data)] for base, data in view.batches}
        promise.acknowledged = dict(view.batches) if promise.stable else {}


def live(seed: int) -> Ending:
    """The life of a seed."""
    life = Life(seed)
    try:
        how = life.run()
    except (Exception, NodeDied) as error:  # noqa: BLE001 - whatever it is, it is a finding
        where = traceback.format_exc()
        return Ending(seed, "broken", f"{type(error).__name__}: {error}", life.met, life.trace, where)
    return Ending(seed, how, "", life.met, life.trace)
