"""What a live `duramen status` shows in a terminal of some size: what needs attention first, the rest by pages."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from duramen.cli.commands import damage
from duramen.cli.commands.status_look import Status, TopicStatus, attention, headline
from duramen.cli.shared.output import cell, human_bytes
from duramen.cli.shared.quorum_look import replicas_of, shown

_NAME_WIDTH_MIN = 20
_NO_BREAK = "\xa0"
_BEHIND_NUMBER = re.compile(r"(?<=\d) (?=[A-Za-z])")
ORDERS: dict[str, Callable[[TopicStatus], float]] = {
    "bytes": lambda topic: -(topic.bytes or 0),
    "rate": lambda topic: -(topic.rate or 0),
    "lag": lambda topic: -(topic.lag or 0),
    "records": lambda topic: -topic.records,
    "name": lambda _topic: 0,
}
"""How topics can be sorted: the most first, then by name."""

KEYS = {"b": "bytes", "r": "rate", "l": "lag", "a": "name"}
"""Keys that sort."""

TOPIC_HEADINGS = ("topic", "records/s", "bytes", "lag", "records", "partitions", "offline")
_COLUMNS = {"bytes": "bytes", "rate": "records/s", "lag": "lag", "records": "records"}
"""The column of an order: the last to be left out."""
NODE_HEADINGS = ("node", "state", "quorum", "lag", "leads", "replicas", "in sync", "address")
GROUP_HEADINGS = ("group", "lag", "members", "state")


class ScreenLine(NamedTuple):
    """A line of the screen and its style."""

    text: str
    style: str = ""


class View(NamedTuple):
    """What the person at the terminal chose."""

    order: str
    page: int = 0

    def after(self, key: str) -> View:
        """The view when this key was pressed."""
        if key in KEYS:
            return View(KEYS[key])
        return self._replace(page=max(0, self.page + {"n": 1, "p": -1}.get(key, 0)))


class _Section(NamedTuple):
    """Lines that belong together. share: of the first page, where not all fit."""

    heading: str | None
    lines: list[str]
    share: float
    style: str = ""

    @property
    def height(self) -> int:
        return len(self.lines) + (self.heading is not None) if self.lines else 0

    def part(self, begin: int, height: int) -> list[ScreenLine]:
        """From this line on, as many as fit below the heading."""
        head = [] if self.heading is None else [ScreenLine(self.heading, "bold")]
        return head + [ScreenLine(text, self.style) for text in self.lines[begin : begin + height - len(head)]]


def damage_of(status: Status) -> list[damage.NodeDamage]:
    """Of the nodes that answer: of the others it is said already that they do not."""
    silent = {node.id for node in status.nodes if node.trouble is not None}
    return [each for each in status.damage if each.node not in silent]


def node_rows(status: Status) -> list[tuple[object, ...]]:
    """The nodes, brokers first, by `NODE_HEADINGS`; lag: what a replica of the quorum has not fetched."""
    quorum = status.quorum
    replicas = {} if quorum is None else replicas_of(quorum)
    partitions = [part for topic in status.topics for part in topic.partitions]
    rows: list[tuple[object, ...]] = []
    for node in status.nodes:
        state = "no answer" if node.trouble is not None else "fenced" if node.fenced else "active"
        replica, votes = replicas.get(node.id, (None, False))
        role = None if replica is None else "voter" if votes else "observer"
        if quorum is not None and node.id == quorum.leader_id:
            role = "leader"
        lag = None if replica is None else replica.lag
        leads = sum(part.leader == node.id for part in partitions)
        copies = sum(node.id in part.replicas for part in partitions)
        in_sync = sum(node.id in part.isr for part in partitions)
        rows.append((str(node.id), state, role, lag, leads, copies, in_sync, shown(node.address)))
    return rows


def topic_rows(topics: Iterable[TopicStatus], order: str) -> list[tuple[object, ...]]:
    """The topics in this order, by `TOPIC_HEADINGS`."""
    return [
        (
            each.topic,
            None if each.rate is None else round(each.rate),
            None if each.bytes is None else human_bytes(each.bytes),
            each.lag,
            each.records,
            len(each.partitions),
            each.offline,
        )
        for each in sorted(topics, key=lambda topic: (ORDERS[order](topic), topic.topic))
    ]


def group_rows(status: Status) -> list[tuple[object, ...]]:
    """The groups, the one with the most lag first, by `GROUP_HEADINGS`."""
    groups = sorted(status.groups, key=lambda each: (-(each.lag or 0), each.group))
    return [(each.group, each.lag, each.members, each.state) for each in groups]


def screen(
    status: Status, view: View, width: int, height: int, away: str | None = None, *, keys: bool = True
) -> tuple[list[ScreenLine], View]:
    """The lines, not more than fit, and the view with the page that there is.

    away: why nothing newer is known. keys: whether some can be pressed.
    """
    head = [ScreenLine(text) for text in wrapped(headline(status), width)]
    if away is not None:
        head = [*(ScreenLine(text, "bold red") for text in wrapped(away, width)), *head]
    head = head[: max(1, height - 4)]
    room = max(2, height - len(head) - 1)
    pages = _pages(_sections(status, view.order, width), room)
    view = view._replace(page=min(view.page, len(pages) - 1))
    foot = ScreenLine(_foot(view, len(pages), width, keys), "dim")
    return [*head, *pages[view.page], foot], view


def wrapped(text: str, width: int) -> list[str]:
    """Lines that break between words only, and not behind a number."""
    lines = []
    for paragraph in text.splitlines():
        whole = _BEHIND_NUMBER.sub(_NO_BREAK, paragraph)
        lines += textwrap.wrap(whole, width, break_on_hyphens=False, subsequent_indent="  ")
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _sections(status: Status, order: str, width: int) -> list[_Section]:
    wrong, sound = damage.wrong_and_sound(damage_of(status))
    wrong += attention(status)
    nodes = _table(NODE_HEADINGS, node_rows(status), width) if len(status.nodes) > 1 else [""]
    groups = _table(GROUP_HEADINGS, group_rows(status), width)
    sorted_by = next((index for index, heading in enumerate(TOPIC_HEADINGS) if heading == _COLUMNS.get(order)), 1)
    columns = [0, sorted_by, *(index for index in range(1, len(TOPIC_HEADINGS)) if index != sorted_by)]
    rows = [[row[index] for index in columns] for row in topic_rows(status.topics, order)]
    topics = _table([TOPIC_HEADINGS[index] for index in columns], rows, width)
    return [
        _Section(None, [part for line in wrong for part in wrapped(line, width)], 1 / 3, "red"),
        _Section(nodes[0], nodes[1:], 1 / 3),
        _Section(groups[0], groups[1:], 1 / 3),
        _Section(topics[0], topics[1:], 1),
        _Section(None, [part for line in sound for part in wrapped(line, width)], 0),
    ]


def _table(headings: Sequence[str], rows: Sequence[Sequence[object]], width: int) -> list[str]:
    """Heading and rows. Columns that do not fit are left out, long names lose their middle; numbers are whole."""
    texts = [[cell(value) for value in row] for row in rows]
    titled = [[heading.upper() for heading in headings], *texts]
    widths = [max(len(row[index]) for row in titled) for index in range(len(headings))]
    name = min(widths[0], max(_NAME_WIDTH_MIN, width - sum(widths[1:]) - 2 * len(widths[1:])))
    used, shown = name, 0
    while shown < len(widths) - 1 and used + 2 + widths[shown + 1] <= width:
        used += 2 + widths[shown + 1]
        shown += 1
    name = min(widths[0], name + width - used)
    lines = []
    for first, *cells in titled:
        label = first if len(first) <= name else f"{first[: name // 2]}…{first[1 + name // 2 - name :]}"
        columns = (text.rjust(size) for text, size in zip(cells[:shown], widths[1:], strict=False))
        lines.append("  ".join([label.ljust(name), *columns]).rstrip())
    return lines


def _pages(sections: list[_Section], room: int) -> list[list[ScreenLine]]:
    given = _shares(sections, room)
    first: list[ScreenLine] = []
    further: list[list[ScreenLine]] = []
    for section, height in zip(sections, given, strict=True):
        if height:
            first += section.part(0, height)
    # Topics are what is looked for on the next pages, then groups.
    for section, height in sorted(zip(sections, given, strict=True), key=lambda each: -each[0].share):
        heading = section.heading is not None
        begin = max(0, height - heading)
        while begin < len(section.lines):
            further.append(section.part(begin, room))
            begin += max(1, room - heading)
    return [first, *further]


def _shares(sections: list[_Section], room: int) -> list[int]:
    """Lines of each section on the first page."""
    given = [0] * len(sections)
    left = room
    for limit in (lambda section: int(room * section.share), lambda section: section.height):
        for index, section in enumerate(sections):
            most = min(section.height, limit(section), given[index] + left)
            if most > given[index] and most > (section.heading is not None):
                left -= most - given[index]
                given[index] = most
    return given


def _foot(view: View, pages: int, width: int, keys: bool) -> str:
    if not keys:
        return "Ctrl-C ends"
    letters = ", ".join(f"{key} {order}" for key, order in KEYS.items())
    paging = f"page {view.page + 1}/{pages}: n next, p back; " if pages > 1 else ""
    short = f"{view.page + 1}/{pages} n p | " if pages > 1 else ""
    texts = (
        f"{paging}sorted by {view.order}: {letters}; q ends",
        f"{short}by {view.order}: {letters} | q ends",
        f"{short}{view.order}: {' '.join(KEYS)} | q ends",
    )
    return next((text for text in texts if len(text) <= width), "q ends")
