"""Lives of a broker with several log directories: what clients ask for, jobs that end in any order, a directory that is
full, fails or is missing, a kill or a power cut at any disk call, a start that may be cut, too; again.

    ending = live(7)

One seed is one life. After every start the promises are checked; then what the start has found is the new ledger.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Mapping
from random import Random
from typing import ClassVar

from tests.crash.broker_clients import Clients
from tests.crash.broker_promises import Excused, check_files, check_positions, check_records, check_topics
from tests.crash.lives import DEATHS, Ending
from tests.crash.lives_steps import fault_of
from tests.crash.promises import require
from tests.worlds.broker_world import InProcess
from tests.worlds.partition_world import Lanes, Numbers

from duramen.errors import DuramenError
from duramen.model import METADATA_TOPIC
from duramen.sim.world.disk import CrashDisk, DiskCall, NodeDied

DIRECTORIES = ("/a", "/b", "/c")
GENERATIONS = 4
MOST_JOBS = 1 << 30
REST_MS = 70_000
"""After which the files of what was deleted are gone (file.delete.delay.ms)."""
FAULTS = ("some no space", "failing sync", "no journal part")
COVERED = (
    *(f"ended by a {how}" for how in dict.fromkeys(DEATHS)),
    *(f"fault: {kind}" for kind in FAULTS),
    "starts",
    "starts cut",
    "starts without a directory",
    "rests",
    "journals filled",
    "topics made under an old name",
    "told of partition-not-deleted",
    "told of directory-failed",
    "told of directory-full",
    "told of snapshot-written",
    "told of log-of-deleted-topic",
)


class DrawnLanes(Lanes):
    """Jobs end in an order that is drawn, those of one lane in theirs. left: how many may run now."""

    def __init__(self, dice: Random) -> None:
        super().__init__()
        self.dice = dice
        self.left = MOST_JOBS

    def step(self) -> bool:
        first = {entry[0]: entry for entry in reversed(self.waiting) if entry[0] not in self.held}
        if not first or not self.left:
            return False
        self.left -= 1
        drawn = first[self.dice.choice(sorted(first))]
        self.waiting.remove(drawn)
        self.waiting.insert(0, drawn)
        return super().step()


class Life(Clients):
    """One life. away: the directory that is not there now, if any. failed, full: those whose disk was, since the start.

    unknown: partitions of deleted topics that were in a directory that was away; a new one of the name may be offline.
    """

    steps: ClassVar[Mapping[str, int]] = {
        **Clients.steps,
        "fill_journal": 1,
        "run": 12,
        "pass_time": 3,
        "break_or_mend": 2,
        "read_back": 1,
        "rest": 1,
    }

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.disk = CrashDisk(Random(seed), torn=self.dice.random() < 0.6)
        self.trace: list[str] = []
        self.directories = DIRECTORIES[: self.dice.choice([2, 3])]
        self.away = ""
        self.failed: set[str] = set()
        self.full: set[str] = set()
        self.entropy = Numbers()
        self.was_away: set[str] = set()
        self.unknown: set[str] = set()
        draw = self.dice.choice
        self.settings = {
            "duramen_journal_part_bytes": str(1 << 16),
            "duramen_journal_max_bytes": draw([str(1 << 17), str(1 << 18)]),
            "duramen_journal_bypass_bytes": "8192",
            "duramen_reserve_bytes": draw(["0", "65536"]),
            "log_segment_delete_delay_ms": "0",
            "log_flush_offset_checkpoint_interval_ms": draw(["0", "1000", "60000"]),
            "metadata_log_max_record_bytes_between_snapshots": draw(["1", "400", "100000"]),
            "metadata_max_retention_bytes": draw(["0", "-1", "2000"]),
            "offsets_topic_num_partitions": "3",
            "auto_create_topics_enable": "false",
        }

    def run_life(self) -> None:
        """All of it. PromiseBrokenError, or whatever else is not as it should be."""
        self.start()
        if self.dice.random() < 0.5:  # from the beginning: then the journal never grows
            self._break(self.dice.choice(self.directories), "no journal part")
        for generation in range(GENERATIONS):
            self.trace.append(f"--- generation {generation}")
            self._until_death()
            for _ in range(self.dice.choice([0, 0, 1, 2])):
                self._start_that_is_cut()
            self._take_away_or_put_back()
            self.start()
            self._check()
            self.met["starts"] += 1

    def start(self) -> None:
        """Begin anew on the disk as it is; every broker draws other ids."""
        self.failed.clear()
        self.full.clear()
        there = ",".join(each for each in self.directories if each != self.away)
        lanes = DrawnLanes(self.dice)
        self.server = InProcess(self.disk, lanes=lanes, entropy=self.entropy, log_dirs=there, **self.settings)
        self.connect()

    # ---- steps

    def run(self) -> None:
        """Some jobs; those of some lanes wait."""
        lanes = self.server.lanes
        assert isinstance(lanes, DrawnLanes)
        names = ["checkpoint", "housekeeping", *(f"journal:{each}" for each in self.directories)]
        lanes.held = {name for name in names if self.dice.random() < 0.3}
        lanes.left = self.dice.choice([1, 2, 5, MOST_JOBS])
        self.server.run()
        lanes.left = MOST_JOBS
        self.listen()

    def pass_time(self) -> None:
        self.server.pass_ms(self.dice.choice([100, 1000, 1000, 5000]))
        self.listen()

    def break_or_mend(self) -> None:
        """One directory's disk is full or fails from now on; or no more."""
        if self.dice.random() < 0.7:
            return
        if self.disk.fault is not None:
            self.disk.fault = None
        else:
            self._break(self.dice.choice(self.directories), self.dice.choice(FAULTS))

    def _break(self, directory: str, kind: str) -> None:
        random = Random(self.dice.random())
        self.trace.append(f"{directory}: {kind}")
        self.met[f"fault: {kind}"] += 1

        def fault(call: DiskCall) -> OSError | None:
            if not call.path.startswith(f"{directory}/"):
                return None
            if kind != "no journal part":
                error = fault_of(kind, call, random)
            else:
                error = OSError(errno.ENOSPC, kind, call.path) if call.operation == "preallocate" else None
            if error is not None:
                (self.full if error.errno == errno.ENOSPC else self.failed).add(directory)
            return error

        self.disk.fault = fault

    def read_back(self) -> None:
        """A topic that is there; also from a directory that failed."""
        topic = self._some()
        if topic is not None:
            check_records(self.server, topic, lambda name: bool(self.failed or self.full) or self._excused()(name))
            self.met["topics read"] += 1

    def rest(self) -> None:
        """The disk is mended, and what waits for that comes to its end."""
        self.disk.fault = None
        self.server.lanes.held = set()
        self.server.pass_ms(REST_MS)
        self.listen()
        if not self.failed:
            check_files(self.server, self._excused())
            self.met["rests"] += 1

    # ---- deaths

    def _until_death(self) -> None:
        how = self.dice.choice(DEATHS)
        count = self.dice.randrange(20, 140)
        last = self.disk.calls + self.dice.randrange(1, self.dice.choice([600, 3000]))
        self.disk.cut_at = last if how == "power cut in a call" else None
        self.disk.kill_at = last if how == "kill in a call" else None
        names, weights = list(self.steps), list(self.steps.values())
        try:
            for _ in range(count):
                step = self.dice.choices(names, weights)[0]
                self.trace.append(step)
                getattr(self, step)()
            if how == "clean stop":
                self._stop()
            elif how.startswith("power cut"):
                self.disk.power_cut()
            else:
                self.disk.kill()
        except NodeDied as death:
            self.trace.append(repr(death))
        self.trace.append(how)
        self.met[f"ended by a {how}"] += 1
        self._power_on()
        self.disconnect()
        self._check_events(stops=how == "clean stop")

    def _stop(self) -> None:
        self.server.lanes.held = set()
        over: list[bool] = []
        self.server.broker.stop(lambda: over.append(True))
        for _ in range(60):
            self.server.pass_ms(500)
            if over:
                break
        require(bool(over), "a stop does not end")
        self.disk.end_process()

    def _start_that_is_cut(self) -> None:
        """A start that dies in one of its calls, or behind the last one; one that finds no room may refuse."""
        last = self.disk.calls + self.dice.randrange(1, 600)
        self.disk.cut_at, self.disk.kill_at = self.dice.choice([(last, None), (None, last)])
        if self.dice.random() < 0.3:
            self._break(self.dice.choice(self.directories), "some no space")
        try:
            self.start()
            self.disk.kill()
        except NodeDied as death:
            self.trace.append(f"{death!r}, in a start")
        except (OSError, DuramenError, AssertionError) as error:
            self.trace.append(f"{error!r}, in a start")
            require(bool(self.failed or self.full) and "traceback" not in str(error), f"a start was refused: {error!r}")
        self.met["starts cut"] += 1
        self._power_on()
        self.disconnect()

    def _power_on(self) -> None:
        self.disk.fault = None
        self.disk.cut_at = self.disk.kill_at = None
        self.disk.power_on()

    def _take_away_or_put_back(self) -> None:
        """Mostly all directories are there; one that has not the metadata log may be away for one generation."""
        some = [each for each in self.directories if not self.disk.names.has(f"{each}/{METADATA_TOPIC}-0")]
        self.away = self.dice.choice(some) if some and not self.away and self.dice.random() < 0.2 else ""
        if self.away:
            self.trace.append(f"without {self.away}")
            self.was_away.add(self.away)
            self.met["starts without a directory"] += 1

    # ---- what is held against the ledger

    def _check_events(self, *, stops: bool = False) -> None:
        """Nothing was told of that no fault and no directory that is or was away explains."""
        for event, fields in self.server.events:
            self.met[f"told of {event}"] += 1
            directory, name = fields.get("directory"), f"{fields.get('topic')}-{fields.get('partition')}"
            faulty = bool(self.away or self.failed or self.full)
            if event == "log-of-unknown-topic":  # it was deleted while its directory was away, and a snapshot followed
                self.unknown.add(name)
            explained = {
                "damage": False,
                "read-failed": False,
                "uncleanable": bool(self.failed or self.full),
                "coordinator-load-failed": faulty,
                "directory-failed": directory in self.failed or (stops and directory in self.full),
                "log-of-unknown-topic": bool(self.was_away),
                "partition-offline": faulty or name in self.unknown,
                "stop-failed": bool(self.failed or self.full),
            }
            require(explained.get(event, True), f"told for nothing: {event} {fields}")

    def _check(self) -> None:
        """What a start has found; it is the ledger of what comes next."""
        self.unknown.clear()
        self._check_events()
        self.topics = check_topics(self.server, self.topics)
        for topic in self.topics:
            check_records(self.server, topic, self._excused(), whole=True)
            check_positions(self.server, topic, away=bool(self.away))
        self.server.pass_ms(REST_MS)
        check_files(self.server, self._excused())

    def _excused(self) -> Excused:
        """What explains that a partition of this name is offline or has files that nobody wants, but for the disk."""
        return lambda name: bool(self.away) or name in self.unknown


def live(seed: int) -> Ending:
    """The life of a seed."""
    life = Life(seed)
    try:
        life.run_life()
    except (Exception, NodeDied) as error:  # noqa: BLE001 - whatever it is, it is a finding
        where = traceback.format_exc()
        return Ending(seed, "broken", f"{type(error).__name__}: {error}", life.met, life.trace, where)
    return Ending(seed, "whole", "", life.met, life.trace)
