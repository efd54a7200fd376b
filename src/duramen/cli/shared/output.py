"""What commands print: tables for people, JSON for machines, and progress when something takes longer."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import click

PROGRESS_AFTER_SECONDS = 1.0
_PROGRESS_EVERY_SECONDS = 0.2
_BETWEEN_COLUMNS = 3
_TEXT_WIDTH_MIN = 16
"""Columns that a text in a table wraps to at least."""


def print_json(value: Any) -> None:
    """One JSON document on one line; in a locale that has not every character, with the others escaped."""
    every = (sys.stdout.encoding or "").lower().startswith("utf")
    click.echo(json.dumps(value, ensure_ascii=not every, separators=(",", ":")))


def print_names(names: Sequence[str], *, as_json: bool) -> None:
    """A name a line, or one list."""
    if as_json:
        print_json(names)
    else:
        for name in names:
            click.echo(name)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()) -> None:
    """A table: with rich's styling on a terminal, plain aligned columns elsewhere.

    right: headings of the columns that hold numbers and are set flush right.
    """
    texts = [[cell(value) for value in row] for row in rows]
    numbers = set(right)
    if sys.stdout.isatty():
        _print_rich(headings, texts, numbers)
    else:
        for line in plain_table(headings, texts, numbers):
            click.echo(line)


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: set[str]) -> list[str]:
    """The lines of a table in plain text."""
    titles = [heading.upper() for heading in headings]
    widths = [max(len(row[index]) for row in [titles, *rows]) for index in range(len(headings))]
    lines = []
    for row in [titles, *rows]:
        cells = [
            text.rjust(width) if heading in right else text.ljust(width)
            for text, width, heading in zip(row, widths, headings, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _print_rich(headings: Sequence[str], rows: Sequence[Sequence[str]], right: set[str]) -> None:
    # rich costs tens of milliseconds to load and is of no use in a pipe.
    from rich.console import Console

    console = Console(highlight=False)
    if is_too_wide(headings, rows, right, console.width):
        for line in stacked(headings, rows, right, console.width):
            console.print(line, markup=False, soft_wrap=True)
    else:
        console.print(rich_table(headings, rows, right))


def is_too_wide(headings: Sequence[str], rows: Sequence[Sequence[str]], right: set[str], width: int) -> bool:
    """Whether a table would have to break names or numbers to fit."""
    needed = 2 - _BETWEEN_COLUMNS  # and one at each edge
    for index, heading in enumerate(headings):
        longest = max(len(row[index]) for row in [headings, *rows])
        needed += _BETWEEN_COLUMNS + (longest if index == 0 or heading in right else min(longest, _TEXT_WIDTH_MIN))
    return needed > width


def stacked(headings: Sequence[str], rows: Sequence[Sequence[str]], right: set[str], width: int) -> list[str]:
    """What a table holds where it is too wide: below each name its cells, with their headings, none broken in two."""
    lines = []
    for name, *cells in rows:
        lines.append(f"{headings[0]} {name}" if headings[0] in right else name)
        line = ""
        for heading, text in zip(headings[1:], cells, strict=True):
            part = f"{heading} {text}"
            if line and len(line) + 2 + len(part) >= width:
                lines.append(f"{line},")
                line = ""
            line += f", {part}" if line else f"  {part}"
        lines.append(line)
    return lines


def rich_table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: set[str]) -> Any:
    """The table as something rich can print; long texts wrap rather than being cut, names and numbers stay whole."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for index, heading in enumerate(headings):
        whole = index == 0 or heading in right
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def print_field(name: str, text: str) -> None:
    """A name and what it is, indented; wrapped between words to the width of the terminal, 80 where there is none."""
    # Brings every kind of archive with it: nothing for a node that starts.
    import shutil

    width = max(40, shutil.get_terminal_size().columns)
    for line in textwrap.wrap(
        text,
        width,
        initial_indent=f"  {name:<9} ",
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    ):
        click.echo(line)


def shorter(path: str) -> str:
    """A path as it can be typed here: relative, where that is below this folder."""
    try:
        here = os.getcwd() + os.sep
    except FileNotFoundError:  # the folder was deleted
        return path
    return path.removeprefix(here) if path != here else path


def cell(value: object) -> str:
    """A value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


def printable(text: str) -> str:
    """The text with what moves the cursor or ends the line escaped: clients choose their names, and those of groups."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def reason(error: OSError) -> str:
    """What the operating system says, behind the file that it is about."""
    if isinstance(error, IsADirectoryError) and error.filename:
        return f"{error.filename} is a directory where a file belongs: move it away"
    said = ": ".join(str(part) for part in (error.filename, error.strerror) if part) or str(error)
    return said or type(error).__name__


def note(message: str) -> None:
    """A line for the person at the terminal, on stderr so that it never mixes with data."""
    click.echo(message, err=True)


def human_bytes(size: float) -> str:
    """A size in binary units: 0 B, 1.5 KiB, 2.0 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def plural(count: int, noun: str) -> str:
    """`1 record`, `2,000 records`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


class ProgressLine:
    """A single line on stderr that starts to move after one second; silent where stderr is no terminal, and in threads
    beside the one that draws."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._next = time.monotonic() + PROGRESS_AFTER_SECONDS
        self._shown = 0
        self._visible = sys.stderr.isatty() and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        return self

    def show(self, detail: str = "") -> None:
        """Say how far things are; cheap enough to be called for every record."""
        now = time.monotonic()
        if not self._visible or now < self._next:
            return
        self._next = now + _PROGRESS_EVERY_SECONDS
        line = f"{self._doing} {detail}".rstrip()[:79]
        sys.stderr.write("\r" + line.ljust(self._shown))
        sys.stderr.flush()
        self._shown = len(line)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()


def pairs(option: str, given: Iterable[str]) -> dict[str, str]:
    """`key=value` options as a mapping; a usage error names the one without `=`."""
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"{option} {text}: expected key=value.")
        found[key.strip()] = value
    return found
