"""Which records a reader wants, by key and headers. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from duramen.gateway.edge.problem import bad_request
from duramen.gateway.streams.stream_page import StreamPage
from duramen.gateway.tails.page_forms import PageForm
from duramen.wire.batch import Header, Record

HEADER_PREFIX: Final = "header."


class RecordMatch(NamedTuple):
    """The key, where one is wanted, and headers, all of which a record has to have."""

    key: bytes | None
    headers: tuple[Header, ...]

    def of(self, page: StreamPage) -> StreamPage:
        """The page with the records alone that are wanted; its position is that after all of them."""
        kept = [index for index, record in enumerate(page.records) if self._wants(record)]
        if len(kept) == len(page.records):
            return page
        return page._replace(records=[page.records[n] for n in kept], places=[page.places[n] for n in kept])

    def _wants(self, record: Record) -> bool:
        if self.key is not None and record.key != self.key:
            return False
        return all(header in record.headers for header in self.headers)


class MatchForm(NamedTuple):
    """A form of those records alone that are wanted. What it makes is not kept: there may be any number of wishes."""

    form: PageForm
    match: RecordMatch

    @property
    def name(self) -> str:
        wish = hashlib.sha256(repr(self.match).encode()).hexdigest()
        return f"{self.form.name}-{wish[:16]}"

    @property
    def media_type(self) -> str:
        return self.form.media_type

    @property
    def is_text(self) -> bool:
        return self.form.is_text

    @property
    def is_lines(self) -> bool:
        return self.form.is_lines

    @property
    def is_kept(self) -> bool:
        return False

    def body(self, page: StreamPage) -> bytes:
        """Of the records that are wanted."""
        return self.form.body(self.match.of(page))

    def events(self, page: StreamPage) -> bytes:
        """Of the records that are wanted."""
        return self.form.events(self.match.of(page))


def record_match(query: Iterable[tuple[str, str]]) -> RecordMatch | None:
    """What the parameters of a request ask for, `key` and `header.NAME`; None where that is all. Problem 400."""
    keys: list[bytes] = []
    headers: list[Header] = []
    for name, value in query:
        if name == "key":
            keys.append(value.encode())
        elif name.startswith(HEADER_PREFIX):
            if len(name) == len(HEADER_PREFIX):
                raise bad_request(HEADER_PREFIX, "the name of the header is missing: header.NAME=value")
            headers.append((name.removeprefix(HEADER_PREFIX).encode(), value.encode()))
    if len(keys) > 1:
        raise bad_request("key", "it is given twice")
    return RecordMatch(keys[0] if keys else None, tuple(headers)) if keys or headers else None
