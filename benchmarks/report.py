"""Owns what a run leaves behind: figures from the rounds, the table on the terminal, the JSON file in results/."""

from __future__ import annotations

import json
import os
import signal
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.text import Text

from benchmarks import warmth
from benchmarks.kafka_peer import ROOT
from benchmarks.scenarios import DURABILITY_TITLES, Figure, Sample, Scenario

RECORDED_RESULTS = Path(__file__).resolve().parent / "results"
PARTIAL_RESULTS = ROOT / ".cache" / "bench-results"
RESULTS = RECORDED_RESULTS if os.environ.get("BENCH_RECORD") else PARTIAL_RESULTS
"""Where a complete run is stored: among the tracked ones only for `make bench-record`, which maintainers type."""
OURS, THEIRS = "Duramen", "Kafka"
WIDTH = 80


def terminal() -> Console:
    """What a run prints to: the terminal, or lines of WIDTH columns where there is none."""
    console = Console(soft_wrap=False)
    return console if console.is_terminal else Console(width=WIDTH, soft_wrap=False)


def run_to_end(console: Console, run: Callable[[], int], problems: tuple[type[Exception], ...]) -> int:
    """What `run` returns; 130 where it is interrupted or terminated, 2 for one of these problems, which is named."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, end)
    try:
        return run()
    except KeyboardInterrupt:
        console.print("stopped; both brokers are down and their data is removed")
        return 130
    except problems as problem:
        console.print(str(problem), style="red", markup=False, highlight=False)
        return 2


@dataclass(frozen=True)
class Row:
    """One line of the table: medians over the rounds and the median of the rounds' ratios."""

    name: str
    unit: str
    ours: float | None
    theirs: float | None
    ratio: float | None
    aim: str = ""
    met: bool | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "figure": self.name,
            "unit": self.unit,
            "duramen": _rounded(self.ours),
            "kafka": _rounded(self.theirs),
            "ratio": _rounded(self.ratio),
            "aim": self.aim or None,
            "met": self.met,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The median of the rounds' own ratios: a slow minute of the machine hits both halves of a round."""
    paired = [mine / other for mine, other in zip(ours, theirs, strict=False) if other]
    return _median(paired)


def compare(
    name: str,
    unit: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    more_is_better: bool = False,
    aim: float | None = None,
    limit: float | None = None,
) -> Row:
    """Draw one row from both brokers' rounds and judge it: `aim` bounds the ratio, `limit` Duramen's median."""
    mine, other, ratio = _median(ours), _median(theirs), _ratio(ours, theirs)
    sign = "≥" if more_is_better else "≤"
    text, met = "", None
    if aim is not None:
        text = f"{sign}{aim:g}×"
        if ratio is not None:
            met = ratio >= aim if more_is_better else ratio <= aim
    elif limit is not None:
        text = f"{sign}{limit:g}"
        if mine is not None:
            met = mine >= limit if more_is_better else mine <= limit
    return Row(name, unit, mine, other, ratio, text, met)


def figure_row(figure: Figure, rounds: Mapping[str, Sequence[Sample]]) -> Row:
    """The row of one figure of a scenario."""
    ours = [figure.draw(sample) for sample in rounds.get(OURS, ())]
    theirs = [figure.draw(sample) for sample in rounds.get(THEIRS, ())]
    return compare(figure.name, figure.unit, ours, theirs, figure.more_is_better, figure.aim, figure.limit)


def risen(scenario: Scenario, rounds: Mapping[str, Sequence[Sample]]) -> list[str]:
    """What is said beside the ratio of a scenario in which a broker got faster to the last round."""
    said = []
    for name, samples in rounds.items():
        rates = scenario.rates(samples)
        if warmth.still_rises(rates):
            whom = "Kafka" if name == OURS else "Duramen"
            said.append(
                f"{name} still got faster, {rates[0]:,.0f} → {rates[-1]:,.0f} {scenario.figures[0].unit}: "
                f"the ratio flatters {whom}"
            )
    return said


def number(value: float | None, unit: str) -> str:
    """Three significant digits, thousands separated, with the unit."""
    if value is None:
        return "–"
    if value >= 1000:
        return f"{value:,.0f} {unit}"
    return f"{value:#.3g}".rstrip(".") + f" {unit}"


def _line(name: str, ours: str, theirs: str, ratio: str, aim: str) -> str:
    """One line of 80 columns."""
    return f"{name:<34}{ours:>15}{theirs:>15}{ratio:>8}{aim:>8}"


def _text(row: Row) -> Text:
    """A row as it is printed: green where the aim is met, red where not."""
    mark = {True: "✓", False: "✗", None: ""}[row.met]
    ratio = "–" if row.ratio is None else f"{row.ratio:#.3g}".rstrip(".") + "×"
    line = _line(f"  {row.name}", number(row.ours, row.unit), number(row.theirs, row.unit), ratio, row.aim + mark)
    return Text(line, style={True: "green", False: "red", None: ""}[row.met])


class Reporter:
    """Prints as the run goes and keeps everything for the file."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._groups: list[tuple[str, list[tuple[str, list[Row], str]]]] = []
        self._scenarios: list[dict[str, Any]] = []

    def note(self, text: str) -> None:
        self.console.print(Text(text, style="dim"))

    def add_group(self, title: str, name: str, rows: list[Row], remark: str = "") -> None:
        """File rows under a heading, in order of arrival."""
        for known, entries in self._groups:
            if known == title:
                entries.append((name, rows, remark))
                return
        self._groups.append((title, [(name, rows, remark)]))

    def add_scenario(
        self, scenario: Scenario, rounds: Mapping[str, Sequence[Sample]], failures: Mapping[str, str]
    ) -> None:
        rows = [figure_row(figure, rounds) for figure in scenario.figures]
        remark = "; ".join([*(f"{name}: {reason}" for name, reason in failures.items()), *risen(scenario, rounds)])
        self.add_group(DURABILITY_TITLES[scenario.durability], scenario.title, rows, remark)
        self._scenarios.append(
            {
                "key": scenario.key,
                "title": scenario.title,
                "durability": scenario.durability,
                "settings": dict(scenario.settings),
                "figures": [row.as_json() for row in rows],
                "failures": dict(failures),
                "still_rising": [name for name in rounds if warmth.still_rises(scenario.rates(rounds[name]))],
                "rounds": {name: list(samples) for name, samples in rounds.items()},
            }
        )

    def print_tables(self) -> None:
        """The whole comparison, one table per durability, exactly 80 columns on any terminal."""
        order = list(DURABILITY_TITLES.values())
        for title, entries in sorted(self._groups, key=lambda group: [*order, group[0]].index(group[0])):
            self.console.print(Text(f"\n{title}", style="bold"))
            self.console.print(Text(_line("", OURS, THEIRS, "ratio", "aim"), style="dim"))
            self.console.print(Text("─" * WIDTH, style="dim"))
            for name, rows, remark in entries:
                self.console.print(Text(name, style="cyan"))
                for row in rows:
                    self.console.print(_text(row))
                if remark:
                    self.console.print(Text(f"  {remark}", style="red"))
        self.console.print()

    def write(self, facts: Mapping[str, Any], path: Path) -> None:
        """Store facts and figures as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        groups = {
            title: {name: [row.as_json() for row in rows] for name, rows, _ in entries}
            for title, entries in self._groups
            if title not in DURABILITY_TITLES.values()
        }
        document = {**facts, "whole_broker": groups, "scenarios": self._scenarios}
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
