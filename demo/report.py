"""The demo's report: one HTML file with charts drawn as SVG, for a person who was not there."""

from __future__ import annotations

import datetime
import html
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from demo.proof import Finding
from demo.tables import Day, Told
from demo.weather import WIND_BAND, Grounded, Weather

YEAR = 2013
HOURS_MIN = 50  # fewer say nothing about a wind
KILLED = (
    "Each bar is a batch: its height the records, its place when it was done. The red lines are kill -9, of Spark with "
    "its driver and workers, and of the node; pale red is how long it took until a batch was done again. The batch "
    "that was cut off is run once more, and the tables took it once."
)
MENDED = (
    "Mean minutes late on arrival. The first logic counted flights that never landed as on time. The mended logic was "
    "run over the same log from its first record, compared, and swapped in."
)
JOINED = (
    "Two topics joined: flights that were cancelled, and the weather at their airport in that hour. Each bar is how "
    "many flights were cancelled in a hundred hours of such wind at one airport, by the table."
)
INK, SOFT, PALE = "#22303c", "#7a8894", "#e6eaee"
OLD, NEW, KILL, AWAY = "#c9a227", "#1b7f79", "#c0392b", "#fbe9e6"
STEPS = {"aircraft": "#3867a8", "delays": NEW, "grounded": "#8a5a9e"}
STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, sans-serif; color: #22303c; background: #fbfaf7; margin: 0; }
main { max-width: 62rem; margin: 0 auto; padding: 3rem 1.5rem 5rem; }
h1 { font-size: 2.1rem; line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.02em; }
h2 { font-size: 1.15rem; margin: 3rem 0 .2rem; }
p { max-width: 48rem; margin: .3rem 0 1rem; } .soft { color: #7a8894; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: 1rem; margin: 2rem 0; }
.fact { background: #fff; border: 1px solid #e6eaee; border-radius: .6rem; padding: .8rem 1.1rem; line-height: 1.3; }
.fact b { display: block; font-size: 1.5rem; line-height: 1.5; }
figure { background: #fff; border: 1px solid #e6eaee; border-radius: .6rem; margin: 1rem 0; padding: 1rem; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; }
ul { list-style: none; padding: 0; }
li { padding: .18rem 0; }
li::before { content: "✓ "; color: #1b7f79; font-weight: 700; }
li.bad::before { content: "✗ "; color: #c0392b; }
"""


class Facts(NamedTuple):
    """What the report tells beside the charts."""

    rows: int
    partitions: int
    seconds: float
    airlines: Mapping[str, str]
    with_bug: Mapping[Day, Sequence[int]]
    mended: Mapping[Day, Sequence[int]]
    grounded: Mapping[int, Grounded]
    weather: Weather


def write(path: Path, facts: Facts, told: Told, findings: Sequence[Finding]) -> None:
    """The whole report into one file that needs nothing else."""
    holds = sum(found.holds for found in findings)
    batches = len(told.batches)
    shown = [
        (f"{facts.rows:,}", "flights in the log"),
        (f"{batches}", "batches into three tables"),
        (f"{len(told.killed)}", "processes killed meanwhile"),
        (f"{told.swap_seconds * 1000:.0f} ms", "to swap in the table, mended"),
        (f"{holds} of {len(findings)}", "claims proved from the input"),
    ]
    parts = [
        "<h1>A year of flights, three tables, and two deaths</h1>",
        f'<p class="soft">New York City, {YEAR}. Told by the demo of Duramen in {facts.seconds:.0f} seconds.</p>',
        '<div class="facts">',
        *(f'<div class="fact"><b>{number}</b>{what}</div>' for number, what in shown),
        "</div>",
        "<h2>The pipeline while it was killed</h2>",
        f"<p>{KILLED}</p>",
        f"<figure>{timeline(told)}</figure>",
        "<h2>What the planted bug hid</h2>",
        f"<p>{MENDED} {html.escape(hidden(facts, told))}</p>",
        f"<figure>{airlines(facts)}</figure>",
        "<h2>Every day of the year</h2>",
        f"<p>Mean minutes late of all airlines, by the mended table. {extremes(facts)} Point at a day.</p>",
        f"<figure>{calendar(facts.mended)}</figure>",
        "<h2>Cancelled, by the wind</h2>",
        f"<p>{JOINED} {html.escape(too_late(facts, told))}</p>",
        f"<figure>{winds(facts)}</figure>",
        "<h2>Proof</h2>",
        "<p>Compared with the input by a plain loop over it, not with any counter of the system.</p><ul>",
        *(f"<li{'' if f.holds else ' class=bad'}>{html.escape(f.claim)}</li>" for f in findings),
        "</ul>",
    ]
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Duramen: the demo</title><style>{STYLE}</style>"
    )
    path.write_text(f"{page}<main>{''.join(parts)}</main></html>\n", encoding="utf-8")


def hidden(facts: Facts, told: Told) -> str:
    """What the bug changed, in two sentences."""
    before, after = means(facts.with_bug, 0), means(facts.mended, 0)
    most = max(after, key=lambda code: abs(after[code] - before.get(code, 0.0)))
    name = facts.airlines.get(str(most), str(most)).rstrip(".")
    said = f"It hid most at {name}: {before.get(most, 0.0):.1f} minutes, in truth {after[most]:.1f}."
    found = told.report.get("difference") or {}
    if "differing" in found:
        said += f" {found['differing']:,} of {found['old_rows']:,} rows of the table changed."
    return said


def too_late(facts: Facts, told: Told) -> str:
    """How many rows the watermark dropped."""
    sent = len(facts.weather.late)
    return (
        f"{sent} cancellations were written when the year was over, older than the watermark of 7 days: Spark dropped "
        f"{told.late['run']}, and the run and its status say so."
    )


def extremes(facts: Facts) -> str:
    """The worst day and the best."""
    by_day = means(facts.mended, 1)
    worst, best = (by_day and choose(by_day, key=lambda day: by_day[day]) for choose in (max, min))
    if not by_day:
        return ""
    told = [f"{datetime.date(YEAR, *day):%-d %B} ({by_day[day]:+.0f})" for day in (worst, best)]  # type: ignore[misc]
    return f"The worst was {told[0]}, the best {told[1]}."


def text(x: float, y: float, words: str, anchor: str = "start", fill: str = INK) -> str:
    """Words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{html.escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, hint: str = "") -> str:
    """A rectangle, with a hint for who points at it."""
    title = f"<title>{html.escape(hint)}</title>" if hint else ""
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}" rx="1.5" fill="{fill}"'
    return f"<rect {shape}>{title}</rect>"


def drawing(width: int, height: int, label: str, parts: Sequence[str]) -> str:
    """An SVG of these parts. label: what it shows, for who does not see it."""
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def timeline(told: Told) -> str:
    """Batches of both tables along time, and the kills."""
    width, lane, left = 900, 90, 80
    last: float = max([batch["at"] for batch in told.batches] + list(told.killed.values()) + [1.0])
    most = max([batch["rows"] for batch in told.batches] + [1])

    def x(seconds: float) -> float:
        return left + (width - left - 20) * seconds / last

    bottom = lane * len(STEPS)
    parts = []
    for at in told.killed.values():
        again = min((batch["at"] for batch in told.batches if batch["at"] > at), default=at)
        parts.append(box(x(at), 14, x(again) - x(at), bottom - 14, AWAY, f"{again - at:.1f} s until a batch was done"))
    for number, (step, color) in enumerate(STEPS.items()):
        base = (number + 1) * lane
        parts += [text(0, base - 8, step, fill=color), box(left, base, width - left, 1, PALE)]
        for batch in told.batches:
            if batch["step"] == step:
                height = (lane - 25) * batch["rows"] / most
                hint = f"batch {batch['batch']}: {batch['rows']:,} records, {batch['latency_ms']:,} ms"
                parts.append(box(x(batch["at"]) - 5, base - height, 10, height, color, hint))
    for name, at in told.killed.items():
        parts += [box(x(at), 14, 1.5, bottom - 14, KILL), text(x(at), 10, f"{name} killed", "middle", KILL)]
    tick = 10 if last < 150 else 60
    parts += [text(x(t), bottom + 18, f"{t} s", "middle", SOFT) for t in range(0, int(last) + 1, tick)]
    return drawing(width, bottom + 24, "batches along time, and the kills", parts)


def means(sums: Mapping[Day, Sequence[int]], place: int) -> dict[object, float]:
    """Mean minutes late by one part of the key: 0 the airline, slice by day otherwise."""
    found: dict[object, list[int]] = {}
    for day, (flights, minutes) in sums.items():
        into = found.setdefault(day[0] if place == 0 else day[1:], [0, 0])
        into[0] += flights
        into[1] += minutes
    return {key: minutes / flights for key, (flights, minutes) in found.items()}


def airlines(facts: Facts) -> str:
    """Mean lateness of each airline, with the bug and without."""
    before, after = means(facts.with_bug, 0), means(facts.mended, 0)
    order = sorted(after, key=lambda code: -after[code])
    low = min([*before.values(), *after.values(), 0.0])
    high = max([*before.values(), *after.values(), 1.0])
    left, width, row = 210, 900, 30

    def x(minutes: float) -> float:
        return left + (width - left - 100) * (minutes - low) / (high - low)

    parts = [box(x(0), 0, 1, row * len(order) + 6, SOFT)]
    for number, code in enumerate(order):
        y, old, new = number * row + 8, before.get(code, 0.0), after[code]
        parts.append(text(left - 10, y + 14, facts.airlines.get(str(code), str(code)), "end"))
        for value, top, color, what in ((old, y, OLD, "with the bug"), (new, y + 10, NEW, "mended")):
            parts.append(box(min(x(0), x(value)), top, abs(x(value) - x(0)), 8, color, f"{what}: {value:.2f} min"))
        parts.append(text(max(x(0), x(new), x(old)) + 6, y + 15, f"{old:.1f} → {new:.1f}", fill=SOFT))
    bottom = row * len(order) + 14
    parts += [box(left, bottom, 10, 10, OLD), text(left + 15, bottom + 10, "with the bug", fill=SOFT)]
    parts += [box(left + 120, bottom, 10, 10, NEW), text(left + 135, bottom + 10, "mended", fill=SOFT)]
    return drawing(width, bottom + 16, "mean minutes late of each airline, with the bug and mended", parts)


def winds(facts: Facts) -> str:
    """Cancelled flights in a hundred hours, by the speed of the wind."""
    hours = facts.weather.hours_by_wind()
    found = Counter(int(wind // WIND_BAND) for _, _, wind, _ in facts.grounded.values() if wind is not None)
    bands = [band for band in sorted(hours) if hours[band] >= HOURS_MIN]
    rates = {band: 100 * found[band] / hours[band] for band in bands}
    left, width, row, most = 210, 900, 24, max([*rates.values(), 1.0])
    parts = []
    for number, (band, rate) in enumerate(rates.items()):
        y, length = number * row + 4, (width - left - 100) * rate / most
        words = f"wind {band * WIND_BAND} to {(band + 1) * WIND_BAND} mph"
        hint = f"{found[band]:,} cancelled flights in {hours[band]:,} hours"
        parts.append(text(left - 10, y + 13, words, "end"))
        parts.append(box(left, y, length, 16, STEPS["grounded"], hint))
        parts.append(text(left + length + 6, y + 13, f"{rate:.0f}", fill=SOFT))
    return drawing(width, row * len(rates) + 8, "cancelled flights in a hundred hours, by wind", parts)


def calendar(sums: Mapping[Day, Sequence[int]]) -> str:
    """A cell a day, weeks as columns."""
    by_day = means(sums, 1)
    cell, left, top = 16, 40, 20
    first = datetime.date(YEAR, 1, 1)
    parts = [
        text(0, top + cell * (n * 2 + 1) - 4, name, fill=SOFT) for n, name in enumerate(("Mon", "Wed", "Fri", "Sun"))
    ]
    for number in range((datetime.date(YEAR + 1, 1, 1) - first).days):
        day = first + datetime.timedelta(number)
        column, line = divmod(number + first.weekday(), 7)
        x, y = left + column * cell, top + line * cell
        if day.day == 1:
            parts.append(text(x, top - 6, day.strftime("%b"), fill=SOFT))
        late = by_day.get((day.month, day.day))
        hint = f"{day:%A %d %B}: " + ("no flights" if late is None else f"{late:+.1f} min")
        parts.append(box(x, y, cell - 2, cell - 2, PALE if late is None else shade(late), hint))
    x, y = left, top + 7 * cell + 12
    for n, late in enumerate((-15, 0, 15, 30, 60)):
        words = f"{late:+d} min" if late else "on time"
        parts += [box(x + n * 90, y, 12, 12, shade(late)), text(x + n * 90 + 18, y + 11, words, fill=SOFT)]
    return drawing(left + 54 * cell, y + 18, "mean minutes late of each day", parts)


def shade(late: float) -> str:
    """Green for early, through sand, to red for an hour late."""
    stops = [(-15.0, (27, 127, 121)), (0.0, (173, 209, 190)), (12.0, (243, 230, 190)), (30.0, (226, 149, 92))]
    stops.append((60.0, (176, 42, 48)))
    late = min(max(late, stops[0][0]), stops[-1][0])
    for (low, dark), (high, light) in pairwise(stops):
        if late <= high:
            part = (late - low) / (high - low)
            return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(dark, light, strict=True))
    return "#b02a30"
