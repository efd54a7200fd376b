"""The demo's second half: a pipeline on Spark keeps three tables while it and the node are killed, and is mended."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any, NamedTuple

from demo.display import Display
from demo.flights import Flight
from demo.node import Node
from demo.proof import Finding, finding
from demo.weather import CANCELLATIONS, WEATHER, Event, Grounded, Weather
from demo.writer import Writer
from duramen.pipelines.model.folders import StepFolder
from duramen.pipelines.run.stores import open_as
from duramen.pipelines.tables.store import TableStore

SOUND = '    landed = flights.where("arr_delay IS NOT NULL")\n'
BUG = '    landed = flights.fillna(0, ["arr_delay"])  # a flight that never landed was on time\n'
A_BATCH = "32000"
BATCHES = 8
STEPS = ("aircraft", "delays", "grounded")
DRIVER_KILLED_AFTER = 2  # batches of each table
NODE_KILLED_AFTER = 4
WAIT_SECONDS_MAX = 240
AWAY_SECONDS = 1.0
PHASE = re.compile(r"(loading|starting|planning|first batch|waiting for|comparing)\b.* \.\.\.")
"""What `duramen spark` says on stderr while a person waits for it."""

Day = tuple[str, int, int]


class Told(NamedTuple):
    """What happened, for the proof and the report.

    batches: as the run told them, with the second of their end; late: rows that the watermark dropped, by who says so.
    """

    batches: list[dict[str, Any]]
    killed: dict[str, float]
    report: dict[str, Any]
    swap_seconds: float
    seen: set[int]
    late: dict[str, int | None]
    seconds: float


class Tables:
    """The folder with the pipeline's file and tables, and the process that runs it."""

    def __init__(self, display: Display, node: Node, folder: Path) -> None:
        self.display = display
        self.node = node
        self.folder = folder
        self.file = folder / "pipeline.py"
        self.log = folder / "spark.log"
        self.batches: list[dict[str, Any]] = []
        self.killed: dict[str, float] = {}
        self.goals: dict[str, int] = {}
        """Of each table, how many records it contains at the end."""
        self._began = time.monotonic()
        self._heard = 0
        """Bytes of the log whose lines were looked at."""
        self._process: subprocess.Popen[str] | None = None

    def run(self, rows: int, weather: Weather) -> Told:
        """Run, kill the driver, kill the node, run to the end; then late rows, a mended step, a replay and the swap."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        sound = Path(__file__).with_name("pipeline.py").read_text(encoding="utf-8")
        sound = sound.replace(A_BATCH, str(max(1, rows // BATCHES)))
        self.file.write_text(sound.replace(SOUND, BUG), encoding="utf-8")
        self.goals = {"aircraft": rows, "delays": rows, "grounded": weather.on_time}
        self.display.bar("rows into tables", sum(self.goals.values()))
        self._write(WEATHER, weather.observed)
        self._write(CANCELLATIONS, weather.cancelled)
        self._start()
        self._wait(lambda: self._least() >= DRIVER_KILLED_AFTER, "the first batches")
        self._kill_driver()
        self._start()
        self._wait(lambda: self._least() >= NODE_KILLED_AFTER, "batches of the second driver")
        self.node.kill()
        self.killed["node"] = time.monotonic() - self._began
        self.display.say("[red]kill -9[/red] of the node, in the middle of a batch")
        time.sleep(AWAY_SECONDS)
        self.node.start()
        self.display.say("the node is back; the pipeline goes on by itself")
        self._wait(self._done, "the last batch")
        self.display.say(f"the tables hold everything after {len(self.batches)} batches")
        late = self._come_late(weather.late)
        self._stop()
        self.file.write_text(sound, encoding="utf-8")
        self.display.say("the bug is mended: the topic is replayed through the new logic, beside the old table")
        self.display.bar("rows replayed", rows)
        told = self._command("reprocess", "delays", "--version", "v2", "--json", meanwhile=lambda: self._replayed(rows))
        self.display.update("rows replayed", rows)
        report = json.loads(told.splitlines()[-1])
        seen: set[int] = set()
        seconds = self._swap(seen)
        self.display.say(f"swapped in {seconds * 1000:.0f} ms; readers saw {len(seen)} states, the old and the new")
        return Told(self.batches, self.killed, report, seconds, seen, late, time.monotonic() - self._began)

    def table(self, step: str, version: str | None = None) -> TableStore:
        """A table as any reader opens it: the pointer first, then its current version."""
        folder = StepFolder(self.folder / "tables", step)
        place = folder.version(version or folder.current().version)
        return open_as(place.table, place.about() or {}, {})

    def end(self) -> None:
        """Leave no process behind."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _words(self, name: str, *words: str) -> list[str]:
        program = [str(Path(sys.executable).parent / "duramen"), "spark", name, str(self.file), *words]
        return [*program, "--bootstrap", self.node.address, "--folder", str(self.folder / "tables")]

    def _start(self) -> None:
        # A session of its own: kill -9 takes the JVM and the workers with it, as a machine that goes away would.
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words("run", "--json", "--trigger", "100 milliseconds"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line)
            self.batches.append({**told, "at": time.monotonic() - self._began})

    def _least(self) -> int:
        """Batches of the table that has fewer."""
        return min(sum(bool(batch["step"] == step) for batch in self.batches) for step in STEPS)

    def _rows(self) -> int:
        return sum(int(batch["rows"]) for batch in self.batches)

    def _done(self) -> bool:
        """Whether the tables contain every record; the tables are asked, not the batches."""
        if self._rows() < sum(self.goals.values()) * 0.8:
            return False
        commits = {step: self.table(step).last() for step in STEPS}
        return all(commit and sum(end for _, end in commit.offsets) == self.goals[s] for s, commit in commits.items())

    def _write(self, topic: str, events: list[Event]) -> None:
        writer = Writer(self.node.address, topic, events[-1].row)
        writer.write(iter(events), events[-1].row, lambda _: None)
        writer.finish(lambda _: None)
        if writer.failures:
            raise SystemExit(f"topic {topic}: {writer.failures[0]}")

    def _come_late(self, late: list[Event]) -> dict[str, int | None]:
        """Write records that the watermark drops, and wait for the batch that has them; what is told of them."""
        self._write(CANCELLATIONS, late)
        self.goals["grounded"] += len(late)
        self._wait(lambda: self._last_line() is not None, "the line of late rows")
        told = (self._last_line() or {}).get("late_total")
        [status] = [row for row in json.loads(self._command("status", "--json")) if row["step"] == "grounded"]
        self.display.say(f"{len(late)} cancellations come too late; run and status say: late {told}")
        return {"run": told, "status": status["late_total"]}

    def _last_line(self) -> Mapping[str, Any] | None:
        """What the run told of the batch of the joined table that ends where its topics end."""
        for batch in self.batches:
            ends = [end for partitions in batch["end"].values() for end in partitions.values()]
            if batch["step"] == "grounded" and sum(ends) == self.goals["grounded"]:
                return batch
        return None

    def _kill_driver(self) -> None:
        assert self._process is not None
        self.killed["driver"] = time.monotonic() - self._began
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.display.say(f"[red]kill -9[/red] of Spark, driver and workers, after {len(self.batches)} batches")

    def _stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        status = self._process.wait(60)
        self._process = None
        if status != 0:
            raise SystemExit(f"the pipeline ended with status {status}; see {self.log}")

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not ready():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"waited in vain for {what} of the pipeline; see {self.log}")
            self._tell_phases()
            self.display.update("rows into tables", min(self._rows(), sum(self.goals.values())))
            time.sleep(0.1)

    def _command(self, name: str, *words: str, meanwhile: Callable[[], None] = lambda: None) -> str:
        """What a command prints. SystemExit when it fails."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(self._words(name, *words), stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            while process.poll() is None:
                self._tell_phases()
                meanwhile()
                time.sleep(0.1)
        finally:
            process.kill()
            said, _ = process.communicate()
        if process.returncode != 0:
            raise SystemExit(f"duramen spark {name} failed; see {self.log}")
        return said

    def _tell_phases(self) -> None:
        """What Spark is at, as its command says it: starting Java takes longer than all else of a small machine."""
        with self.log.open("rb") as log:
            log.seek(self._heard)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._heard += len(line)
                text = line.decode("utf-8", "replace").strip().replace(str(self.file), self.file.name)
                if PHASE.fullmatch(text):
                    self.display.say(f"[dim]Spark:[/dim] {text}")

    def _replayed(self, rows: int) -> None:
        """Show how far the replay is, by the batches that it has told of."""
        batches = self.log.read_text(errors="replace").count("delays v2 ")
        self.display.update("rows replayed", min(batches * max(1, rows // BATCHES), rows - 1))

    def _swap(self, seen: set[int]) -> float:
        """Swap while a reader looks at the table again and again; `seen` gets the sums it saw."""
        over = threading.Event()

        def look() -> None:
            while not over.is_set():
                seen.add(total(self.table("delays")))

        reader = threading.Thread(target=look)
        reader.start()
        try:
            time.sleep(0.5)
            told = json.loads(self._command("swap", "delays", "v2", "--json"))
            time.sleep(0.5)
        finally:
            over.set()
            reader.join()
        seconds: float = told["seconds"]
        return seconds


def total(table: TableStore) -> int:
    """Flights that the table counts."""
    counts: list[int] = table.rows()["landed"].to_pylist()
    return sum(counts)


class Expected(NamedTuple):
    """The tables by a plain loop over the input. Sums are [flights, minutes]."""

    aircraft: dict[str, int]
    with_bug: dict[Day, list[int]]
    mended: dict[Day, list[int]]
    grounded: dict[int, Grounded]
    late: int


def expected(source: Iterable[Flight], weather: Weather) -> Expected:
    """What the tables must hold: the last row of each aircraft, the sums of each airline and day, and the join."""
    found = Expected({}, {}, {}, weather.grounded(), len(weather.late))
    for flight in source:
        event = json.loads(flight.value)
        if flight.key is not None:
            found.aircraft[flight.key.decode()] = flight.row
        day = (event["carrier"], event["month"], event["day"])
        late = event["arr_delay"]
        for sums, counts in ((found.with_bug, True), (found.mended, late is not None)):
            if counts:
                sums.setdefault(day, [0, 0])
                sums[day][0] += 1
                sums[day][1] += late or 0
    return found


def prove(tables: Tables, told: Told, want: Expected, writer: Writer) -> list[Finding]:
    """The claims about the tables, checked against the input alone."""
    rows = tables.table("aircraft").rows().to_pylist()
    aircraft = {row["tailnum"]: row for row in rows}
    wrong = [] if len(aircraft) == len(rows) else ["an aircraft has two rows"]
    wrong += differences(want.aircraft, {tail: row["row"] for tail, row in aircraft.items()})
    places = {tail: (row["_partition"], row["_offset"]) for tail, row in aircraft.items()}
    written = {tail: (writer.partitions[row], writer.offsets[row]) for tail, row in want.aircraft.items()}
    known = {tail: place for tail, place in written.items() if place[1] >= 0}
    strayed = differences(known, {tail: place for tail, place in places.items() if tail in known})
    old, new = tables.table("delays", "v1"), tables.table("delays", "v2")
    states = {total(old), total(new)}
    return [
        finding(f"table aircraft: the last flight of each of {len(want.aircraft):,} aircraft", wrong),
        finding("table aircraft: every row is traced to the offset that the writer was told", strayed),
        finding(
            "table delays: every flight counted once, through the death of the driver and of the node",
            differences(want.with_bug, sums(old)),
        ),
        finding(
            f"table grounded: {len(want.grounded):,} cancelled flights with their weather, as a loop joins",
            differences(want.grounded, grounded(tables.table("grounded"))),
        ),
        finding(
            f"late: {want.late} cancellations dropped by the watermark; run and status count so many",
            differences(dict.fromkeys(told.late, want.late), told.late),
        ),
        finding("table delays v2: mended by replay, it is what the input says", differences(want.mended, sums(new))),
        finding(
            f"the swap took {told.swap_seconds * 1000:.0f} ms; a reader saw the old sums or the new ones",
            [f"{seen:,} flights" for seen in told.seen - states]
            + (["more than a second"] if told.swap_seconds > 1 else []),
        ),
    ]


def sums(table: TableStore) -> dict[Day, list[int]]:
    """A table of delays as [flights, minutes] by airline and day."""
    found: dict[Day, list[int]] = {}
    for row in table.rows().to_pylist():
        day = (row["carrier"], row["month"], row["day"])
        found[day] = [-1, -1] if day in found else [row["landed"], row["minutes"]]
    return found


def grounded(table: TableStore) -> dict[int, Grounded]:
    """A table of cancelled flights by the flight's row; of one that is there twice, no airport."""
    found: dict[int, Grounded] = {}
    for row in table.rows().to_pylist():
        at = row["at"].astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        flight = row["flight_row"]
        found[flight] = (
            ("twice", at, None, None) if flight in found else (row["origin"], at, row["wind"], row["visibility"])
        )
    return found


def differences(want: dict[Any, Any], found: dict[Any, Any]) -> list[str]:
    """What is missing, too much or other."""
    keys = sorted(want.keys() | found.keys(), key=str)
    return [f"{k}: {found.get(k, 'missing')}, not {want.get(k, 'there')}" for k in keys if want.get(k) != found.get(k)]
