"""Dead letters as commands know them: what their headers say, which are asked for, which were put back. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from duramen.cli.shared.records import Headers, Incoming
from duramen.pipelines.model import dead_letter

_SPAN = re.compile(r"(?P<partition>\d+):(?P<first>\d+)(?:-(?P<last>\d+))?")


class Letter(NamedTuple):
    """A record of a dead-letter topic. source: the record that it is of, as `topic-partition@offset`."""

    record: Incoming
    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    step: str
    version: str | None
    reason: str
    message: str
    headers: Headers
    """Of the record itself."""

    @property
    def source(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


class OffsetSpan(NamedTuple):
    """Dead letters by their own places: offsets from `first` to `last` of a partition."""

    partition: int
    first: int
    last: int


def letter_of(record: Incoming) -> Letter | None:
    """None for what does not say which record it is of."""
    said = {name: value.decode("utf-8", "replace") for name, value in record.headers if value is not None}
    topic = said.get(dead_letter.TOPIC)
    partition, offset = (_number(said.get(name)) for name in (dead_letter.PARTITION, dead_letter.OFFSET))
    if topic is None or partition is None or offset is None:
        return None
    return Letter(
        record,
        topic,
        partition,
        offset,
        _number(said.get(dead_letter.TIMESTAMP)),
        said.get(dead_letter.GROUP, ""),
        said.get(dead_letter.VERSION),
        said.get(dead_letter.REASON, ""),
        said.get(dead_letter.MESSAGE, ""),
        [(name, value) for name, value in record.headers if not name.startswith(dead_letter.PREFIXES)],
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and text.isascii() else None


def is_note(record: Incoming) -> bool:
    """Whether it says which records were put back, instead of being a dead letter."""
    return any(name == dead_letter.REPLAYED for name, _ in record.headers)


def noted(records: Iterable[Incoming]) -> set[str]:
    """The sources that the notes among these records say were put back."""
    found: set[str] = set()
    for record in records:
        if is_note(record):
            found.update(json.loads(record.value or b"[]"))
    return found


def note_of(sources: Sequence[str]) -> tuple[bytes, Headers]:
    """Value and headers of the note that these were put back."""
    return json.dumps(list(sources)).encode(), [(dead_letter.REPLAYED, str(len(sources)).encode())]


def span(text: str) -> OffsetSpan:
    """`0:17` or `0:17-20`. ValueError for anything else."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text}: expected PARTITION:OFFSET or PARTITION:FIRST-LAST, such as 0:17-20")
    first = int(match["first"])
    return OffsetSpan(int(match["partition"]), first, int(match["last"] or first))


def chosen(
    letters: Iterable[Letter], reasons: Collection[str], steps: Collection[str], spans: Sequence[OffsetSpan]
) -> list[Letter]:
    """Those of one of the reasons, steps and spans; nothing given is all. A letter may have several reasons."""

    def asked(letter: Letter) -> bool:
        at = letter.record
        return (
            (not reasons or bool(set(letter.reason.split(", ")) & set(reasons)))
            and (not steps or letter.step in steps or letter.step.rpartition(".")[2] in steps)
            and (not spans or any(p == at.partition and first <= at.offset <= last for p, first, last in spans))
        )

    return [letter for letter in letters if asked(letter)]


def kinds(letters: Iterable[Letter]) -> str:
    """The reasons and steps that there are, for who asked for others."""
    found = list(letters)
    reasons = sorted({each for letter in found for each in letter.reason.split(", ")})
    steps = sorted({letter.step for letter in found})
    return f"there are the reasons {', '.join(reasons)} and the steps {', '.join(steps)}" if found else ""


def once_each(letters: Iterable[Letter], replayed: Collection[str]) -> list[Letter]:
    """One letter of each record that was not put back: two steps, or versions, have one each of it."""
    first: dict[str, Letter] = {}
    for letter in letters:
        if letter.source not in replayed:
            first.setdefault(letter.source, letter)
    return list(first.values())
