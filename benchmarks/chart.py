"""Owns the picture of a run of `make bench`: how many times better or worse than Kafka, figure by figure, as an SVG.

python -m benchmarks.chart          of the newest complete run, into docs/pictures/beside-kafka.svg
"""

from __future__ import annotations

import html
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import RECORDED_RESULTS, number
from benchmarks.scenarios import DURABILITY_TITLES

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "beside-kafka.svg"
MORE_IS_BETTER = {"MB/s", "records/s"}
FOLLOWING = {
    "delay, p99": "p99",
    "broker CPU-s per GB": "broker CPU per GB",
    "broker CPU µs per request": "broker CPU per request",
}
"""Figures that are drawn below the first of their scenario, and what they are called there."""

WIDTH, LEFT, RIGHT, ROW, HEAD = 960, 400, 670, 21, 36
LEAST, MOST = 0.5, 12.0
"""Ends of the logarithmic axis: times as good as Kafka."""
TICKS = (0.5, 1, 2, 4, 8)
INK, FAINT, GRID, BETTER, WORSE, PAPER = "#1f2328", "#6e7781", "#d8dee4", "#2f7d4f", "#b5532a", "#ffffff"


class Bar(NamedTuple):
    """A figure. times: as good as Kafka; above 1 is better, whatever the unit. first: of its scenario."""

    title: str
    times: float
    told: str
    first: bool


def bar(title: str, row: Mapping[str, Any], *, first: bool = True) -> Iterator[Bar]:
    """A row of the result file, when both sides have it."""
    if row["ratio"] and row["kafka"] is not None:
        times = row["ratio"] if row["figure"] in MORE_IS_BETTER else 1 / row["ratio"]
        yield Bar(title, times, f"{number(row['duramen'], '').strip()} : {number(row['kafka'], row['unit'])}", first)


def bars(scenario: Mapping[str, Any]) -> Iterator[Bar]:
    """Rate or delay of a scenario, and what follows it."""
    rows = {row["figure"]: row for row in scenario["figures"]}
    title = scenario["title"]
    if "delay, p50" in rows:
        yield from bar(f"{title}, p50", rows["delay, p50"])
    else:
        yield from bar(title, rows["records/s" if title.startswith("one ") else "MB/s"])
    for name, short in FOLLOWING.items():
        if name in rows:
            yield from bar(short, rows[name], first=False)


def groups(result: Mapping[str, Any]) -> Iterator[tuple[str, list[Bar]]]:
    """Headings of the picture and what stands below them."""
    scenarios = sorted(result["scenarios"], key=lambda scenario: str(scenario["key"]))
    for durability, title in DURABILITY_TITLES.items():
        yield title, [each for one in scenarios if one["durability"] == durability for each in bars(one)]
    for title, parts in result["whole_broker"].items():
        yield title, [each for rows in parts.values() for row in rows for each in bar(row["figure"], row)]


def place(times: float) -> float:
    """Where on the axis, in pixels; what lies beyond its ends is drawn at them."""
    share = math.log(min(max(times, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return LEFT + share * (RIGHT - LEFT)


def text(x: float, y: float, words: str, *, anchor: str = "start", fill: str = INK, weight: int = 400) -> str:
    """Words at a place."""
    style = f'text-anchor="{anchor}" fill="{fill}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{html.escape(words)}</text>'


def drawn(one: Bar, y: float) -> list[str]:
    """One row: its title, the bar from Kafka's line on, the ratio, and both values."""
    here, kafka = place(one.times), place(1)
    colour = BETTER if one.times >= 1 else WORSE
    x, width = min(here, kafka), max(abs(here - kafka), 1.5)
    shape = f'height="11" rx="1.5" fill="{colour}" opacity="{1 if one.first else 0.5}"'
    return [
        text(LEFT - 14, y + 13, one.title, anchor="end", fill=INK if one.first else FAINT),
        f'<rect x="{x:.1f}" y="{y + 4:.1f}" width="{width:.1f}" {shape}/>',
        text(RIGHT + 56, y + 13, f"{one.times:.2f}×", anchor="end", fill=colour, weight=600),
        text(RIGHT + 72, y + 13, one.told, fill=FAINT),
    ]


def block(title: str, rows: Sequence[Bar], top: float) -> Iterator[str]:
    """A group: heading, grid, rows."""
    yield text(16, top - 9, title, weight=600)
    for tick in TICKS:
        yield f'<path d="M{place(tick):.1f} {top}v{len(rows) * ROW}" stroke="{INK if tick == 1 else GRID}"/>'
    for index, row in enumerate(rows):
        yield from drawn(row, top + index * ROW)


def picture(result: Mapping[str, Any]) -> str:
    """The SVG of one result file."""
    title = "Duramen beside Apache Kafka: how many times better (right) or worse (left)"
    machine = result["machine"]
    parts = [text(16, 28, title, weight=600), text(RIGHT + 72, 60, "Duramen : Kafka", fill=FAINT)]
    for tick in TICKS:
        parts.append(text(place(tick), 60, "as Kafka" if tick == 1 else f"{tick:g}×", anchor="middle", fill=FAINT))
    y = 62
    for heading, rows in groups(result):
        if rows:
            parts += block(heading, rows, y + HEAD)
            y += HEAD + len(rows) * ROW
    run = f"{result['made'][:10]}, commit {result['commit'][:9]}, {machine['processor']}, {machine['cores']} cores"
    parts.append(
        text(16, y + 28, f"Medians over {result['rounds']} rounds; × of the rounds' own ratios. {run}.", fill=FAINT)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 44}" width="{WIDTH}" height="{y + 44}" '
        f'role="img" aria-label="{html.escape(title)}" font-size="12.5" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">\n'
        f'<rect width="{WIDTH}" height="{y + 44}" fill="{PAPER}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def newest() -> Path:
    """The newest complete run; ValueError when there is none."""
    return max(RECORDED_RESULTS.glob("*-bench.json"))


def main() -> int:
    """Draw the newest run."""
    path = newest()
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"{PICTURE} shows {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
