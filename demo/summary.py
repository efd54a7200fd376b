"""What the demo leaves on the screen: the proof, what happened, the delays per airline, and what to try next."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from demo.proof import Finding

MEGABYTE = 1_000_000
BAR_WIDTH = 24


class Story(NamedTuple):
    """What was measured along the way. Seconds are wall time; bytes count keys and values before any framing."""

    rows: int
    keyless: int
    partitions: int
    bytes_written: int
    write_seconds: float
    bytes_replayed: int
    replay_seconds: float
    start_seconds: float
    restart_seconds: float
    on_the_way_at_kill: int
    cancelled: int
    late: int | None
    seconds: float


class Delay(NamedTuple):
    """One airline's year: how many flights, how many of them landed, and their minutes of delay in all."""

    airline: str
    flights: int
    landed: int
    minutes: int

    @property
    def mean(self) -> float:
        """Minutes late on arrival; negative is early."""
        return self.minutes / self.landed if self.landed else 0.0


def delays(story: Path, airlines: dict[str, str]) -> list[Delay]:
    """The delays one reader has added up, worst airline first."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for carrier, counted in json.loads(story.read_text())["delays"].items():
        totals[carrier] = counted
    rows = [Delay(airlines.get(carrier, carrier), *counted) for carrier, counted in totals.items()]
    return sorted(rows, key=lambda row: -row.mean)


def show_findings(console: Console, title: str, findings: list[Finding]) -> None:
    """The proof, one line a claim."""
    console.print(f"\n[bold]{title}[/bold]")
    for found in findings:
        mark = "[green]✓[/green]" if found.holds else "[red]✗[/red]"
        console.print(f"  {mark} {found.claim}", highlight=False, soft_wrap=True)
        for example in found.examples:
            console.print(f"      {example}", style="red", highlight=False, soft_wrap=True)


def show_story(console: Console, story: Story) -> None:
    """Counts and speeds."""
    written = story.bytes_written / MEGABYTE
    replayed = story.bytes_replayed / MEGABYTE
    table = Table(title="What happened", title_justify="left", show_header=False, box=None, padding=(0, 2))
    rows = {
        "events": f"{story.rows:,} flights ({story.keyless:,} without a key) into {story.partitions} partitions",
        "written": f"{written:,.0f} MB in {story.write_seconds:.1f} s = {written / story.write_seconds:.1f} MB/s "
        "while a group reads along",
        "replayed": f"{replayed:,.0f} MB in {story.replay_seconds:.1f} s = {replayed / story.replay_seconds:.1f} MB/s "
        "by one Python process",
        "node": f"ready in {story.start_seconds:.2f} s; ready again in {story.restart_seconds:.2f} s after kill -9",
        "killed": f"with {story.on_the_way_at_kill:,} rows sent and not yet acknowledged",
        "joined": f"{story.cancelled:,} cancellations with their weather; {story.late} too late, dropped",
        "all in all": f"{story.seconds:.0f} s",
    }
    for name, text in rows.items():
        table.add_row(f"[bold]{name}[/bold]", text)
    console.print()
    console.print(table, highlight=False)


def show_delays(console: Console, rows: list[Delay]) -> None:
    """The answer the flights give: who is late."""
    table = Table(title="Minutes late on arrival, per airline (2013, from New York)", title_justify="left", box=None)
    table.add_column("airline")
    table.add_column("flights", justify="right")
    table.add_column("mean", justify="right")
    table.add_column("")
    worst = max((row.mean for row in rows), default=1.0) or 1.0
    for row in rows:
        bar = "█" * round(BAR_WIDTH * max(row.mean, 0) / worst)
        table.add_row(row.airline, f"{row.flights:,}", f"{row.mean:.1f}", f"[yellow]{bar}[/yellow]")
    console.print()
    console.print(table, highlight=False)


def show_next(console: Console, data: Path, topic: str, group: str) -> None:
    """Where the data lies and what to try with it."""
    command = ".venv/bin/duramen"
    steps = {
        f"{command} serve --set log.dirs={data}": "the node again, on 127.0.0.1:9092",
        f"{command} topic describe {topic}": "in another terminal",
        f"{command} consume {topic} --from earliest --count 3": "as any reader may, at any time",
        f"{command} group describe {group}": "who has read how far",
        f"{command} log verify {data}": "with the node stopped: every checksum",
    }
    console.print(f"\n[bold]The data lies in[/bold] {data}. Try next:", highlight=False, soft_wrap=True)
    width = max(map(len, steps))
    for step, why in steps.items():
        console.print(f"  {step:<{width}}   [dim]# {why}[/dim]", highlight=False, soft_wrap=True)
    console.print()
