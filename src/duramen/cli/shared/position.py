"""How a person writes a position in a log: an offset, an end of the log, or a time."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import click

from duramen.cli.shared.output import note, plural

_TOLD_MAX = 4
_AGO = re.compile(r"-?([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)(?: ago)?")
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d|w)", re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
LONG_MAX = 2**63 - 1


class StartPosition(NamedTuple):
    """kind: earliest, latest, offset, from-end (value: records before the end) or time (value: ms since 1970)."""

    kind: str
    value: int = 0


def parse_position(text: str, now_ms: int) -> StartPosition:
    """A position from text; ValueError says what is legal. Times without a zone are local."""
    word = text.strip()
    if word in ("earliest", "beginning"):
        return StartPosition("earliest")
    if word in ("latest", "end"):
        return StartPosition("latest")
    if re.fullmatch(r"-?[0-9]{1,19}", word, re.ASCII):
        number = int(word)
        if abs(number) > LONG_MAX:
            raise ValueError(f"{word} is larger than any offset")
        return StartPosition("offset", number) if not word.startswith("-") else StartPosition("from-end", -number)
    return StartPosition("time", parse_time(word, now_ms))


def parse_time(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 from `10m` (ago), `@1700000000000` or ISO 8601; ValueError says what is legal."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return max(0, now_ms - int(float(ago[1]) * _UNIT_MS[ago[2]]))
    if re.fullmatch(r"@[0-9]{1,18}", text, re.ASCII):
        return int(text[1:])
    try:
        moment = datetime.fromisoformat(text)
        return max(0, int(moment.timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{text!r} is neither an offset nor a time like 2026-05-01T12:00:00Z, 10m (ago) or @1767225600000"
        ) from None


def parse_duration(text: str) -> int:
    """Milliseconds from `5m`, `2h`, `1.5s`; ValueError says what is legal."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no duration like 30s, 5m or 2h")
    return int(float(found[1]) * _UNIT_MS[found[2]])


def iso(timestamp_ms: int) -> str:
    """A timestamp as ISO 8601 in UTC with milliseconds; the number itself where no calendar date exists for it."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def now_ms() -> int:
    """The time now, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def position_option(ctx: click.Context, param: click.Parameter, value: str | None) -> StartPosition | None:
    """The callback of an option whose value is a position."""
    try:
        return None if value is None else parse_position(value, now_ms())
    except ValueError as error:
        raise click.BadParameter(f"{error}.", ctx, param) from None


def time_option(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """The callback of an option whose value is a time; the command gets milliseconds since 1970."""
    try:
        return None if value is None else parse_time(value, now_ms())
    except ValueError as error:
        raise click.BadParameter(f"{error}.", ctx, param) from None


def duration_option(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """The callback of an option whose value is a duration; the command gets milliseconds."""
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", ctx, param) from None


def found_or_end(
    found: Mapping[tuple[str, int], int], last: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], int]:
    """Each offset that was found for a time; the end where none was, which is told when there is none anywhere."""
    if found and not any(offset >= 0 for offset in found.values()):
        note("no record is of that time or later; the end is taken")
    return {place: offset if offset >= 0 else last[place] for place, offset in found.items()}


def nearest(
    wanted: Mapping[tuple[str, int], int], first: Mapping[tuple[str, int], int], last: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], int]:
    """Each offset, or the end of the partition's log that is nearest to it, which is told."""
    kept = {place: min(max(offset, first[place]), last[place]) for place, offset in wanted.items()}
    moved = [place for place in sorted(kept) if kept[place] != wanted[place]]
    for topic, partition in moved[:_TOLD_MAX]:
        place = (topic, partition)
        note(
            f"{topic}-{partition}: offset {wanted[place]} lies outside of the log, "
            f"{first[place]} to {last[place]}; {kept[place]} is taken"
        )
    if len(moved) > _TOLD_MAX:
        note(f"so it is in {plural(len(moved) - _TOLD_MAX, 'partition')} more")
    return kept
