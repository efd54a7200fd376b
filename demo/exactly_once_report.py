"""The report of `make demo-exactly-once`: one HTML file with a chart of the transactions along time, and the proof."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from demo.proof import Finding
from demo.report import AWAY, INK, KILL, NEW, OLD, PALE, SOFT, STYLE, box, drawing, text

STORY = (
    "A program reads orders and writes a bill for each of them. Bills, and where it stands in the orders, are one "
    "transaction. Each green bar is a transaction that was committed, its height the orders in it; a yellow tick is "
    "one that the program rolled back. The red lines are kill -9; pale red is how long it took until one was "
    "committed again."
)
MEANT = (
    "What a killed program had begun was ended when the next one came with the same transactional id: it was rolled "
    "back, and its orders were billed by the next. What lies in the log of such transactions no reader of committed "
    "data is ever given."
)


class Facts(NamedTuple):
    """What the report tells beside the chart."""

    rows: int
    seconds: float
    committed: int
    rolled_back: int
    unseen: int


Moment = tuple[float, str, int]
"""Seconds since the beginning, what the program noted, and of how many orders."""


def write(
    path: Path,
    facts: Facts,
    moments: Sequence[Moment],
    kills: Sequence[tuple[str, float, float]],
    findings: Sequence[Finding],
) -> None:
    """The whole report into one file that needs nothing else. kills: who, when, and until when nothing was billed."""
    holds = sum(found.holds for found in findings)
    shown = [
        (f"{facts.rows:,}", "orders, each billed once"),
        (f"{facts.committed}", "transactions committed"),
        (f"{facts.rolled_back}", "rolled back on purpose"),
        (f"{facts.unseen:,}", "records in the log that no one sees"),
        (f"{holds} of {len(findings)}", "claims proved from the input"),
    ]
    parts = [
        "<h1>Every order counts once, whoever dies</h1>",
        f'<p class="soft">Told by the demo of Duramen in {facts.seconds:.0f} seconds.</p>',
        '<div class="facts">',
        *(f'<div class="fact"><b>{number}</b>{what}</div>' for number, what in shown),
        "</div>",
        "<h2>The program and the node while they were killed</h2>",
        f"<p>{STORY}</p>",
        f"<figure>{timeline(moments, kills)}</figure>",
        f"<p>{MEANT}</p>",
        "<h2>Proof</h2>",
        "<p>From the input and from what was read back, not from any counter of node or program.</p><ul>",
        *(f"<li{'' if f.holds else ' class=bad'}>{html.escape(f.claim)}</li>" for f in findings),
        "</ul>",
    ]
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Duramen: exactly once</title><style>{STYLE}</style>"
    )
    path.write_text(f"{page}<main>{''.join(parts)}</main></html>\n", encoding="utf-8")


def timeline(moments: Sequence[Moment], kills: Sequence[tuple[str, float, float]]) -> str:
    """Transactions along time, and the kills."""
    width, height, left = 900, 180, 20
    last = max([at for at, _, _ in moments] + [1.0])
    most = max([count for _, what, count in moments if what == "committed"] + [1])

    def x(seconds: float) -> float:
        return left + (width - left - 20) * seconds / last

    parts = [box(x(at), 14, x(again) - x(at), height - 14, AWAY, f"{again - at:.1f} s") for _, at, again in kills]
    parts.append(box(left, height, width - left - 20, 1, PALE))
    for at, what, count in moments:
        if what == "committed":
            tall = (height - 30) * count / most
            parts.append(box(x(at) - 1, height - tall, 2, tall, NEW, f"{count} orders"))
        elif what == "rolled-back":
            parts.append(box(x(at) - 1, height + 4, 2, 8, OLD, "rolled back"))
    for who, at, _ in kills:
        parts += [box(x(at), 14, 1.5, height - 14, KILL), text(x(at), 10, f"{who} killed", "middle", KILL)]
    tick = max(1, round(last / 12))
    parts += [text(x(t), height + 26, f"{t} s", "middle", SOFT) for t in range(0, int(last) + 1, tick)]
    parts.append(text(width - 20, height + 26, "committed: green, rolled back: yellow", "end", INK))
    return drawing(width, height + 32, "transactions along time, and the kills", parts)
