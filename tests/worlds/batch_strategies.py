"""Partitions as Hypothesis draws them: batches of every codec and kind in a row, with their gaps and markers."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from duramen.wire.batch import (
    ABORT,
    COMMIT,
    NewRecord,
    Record,
    batches,
    build_batch,
    build_marker,
    parse_header,
    records,
    stamp_append_time,
)
from duramen.wire.batch_filter import filtered_batch, spans
from duramen.wire.compression import decompress

LIMIT = 1 << 24
NULLABLE = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.builds(lambda b, n: b * n, st.binary(min_size=1, max_size=3), st.integers(0, 400)),
)
HEADERS = st.lists(
    st.tuples(st.text(max_size=6).map(str.encode), st.one_of(st.none(), st.binary(max_size=8))), max_size=4
)
TIMESTAMPS = st.one_of(st.integers(0, 2**41), st.integers(1_700_000_000_000, 1_700_000_100_000), st.just(-1))


def new_records(with_headers: bool = True) -> st.SearchStrategy[list[NewRecord]]:
    """What goes into one batch."""
    one = st.tuples(NULLABLE, NULLABLE, HEADERS if with_headers else st.just([]), TIMESTAMPS)
    return st.lists(one, min_size=1, max_size=12)


@dataclass(repr=False)
class Partition:
    """Stored bytes and what a reader of them is told."""

    data: bytearray = field(default_factory=bytearray)
    next_offset: int = 0
    aborted: list[tuple[int, int]] = field(default_factory=list)
    hidden: set[int] = field(default_factory=set)
    """Offsets that a reader of committed records must not see."""

    def append(self, batch: bytearray) -> None:
        self.data += batch
        self.next_offset = parse_header(batch).next_offset


def thinned(batch: bytearray, keep: list[bool]) -> bytearray:
    """The batch as compaction leaves it: some of its records are gone."""
    header = parse_header(batch)
    payload = decompress(header.compression, memoryview(batch)[61:], LIMIT)
    kept = [span for span, stays in zip(spans(payload, header), keep * header.count, strict=False) if stays]
    return filtered_batch(header, payload, kept, None) if kept else batch


@st.composite
def partitions(draw: st.DrawFn, with_headers: bool = True) -> Partition:
    """A log of up to eight batches."""
    made = Partition(next_offset=draw(st.integers(0, 2**40)))
    open_transactions: dict[int, list[int]] = {}
    for _ in range(draw(st.integers(0, 8))):
        made.next_offset += draw(st.sampled_from([0, 0, 0, 1, 7]))  # what compaction took away whole
        kind = draw(st.sampled_from(["plain", "plain", "plain", "thin", "append-time", "transaction", "marker"]))
        base = made.next_offset
        if kind == "marker":
            producer = draw(st.sampled_from([1, 2]))
            end = draw(st.sampled_from([ABORT, COMMIT]))
            offsets = open_transactions.pop(producer, [])
            if end == ABORT and offsets:
                made.aborted.append((producer, offsets[0]))
                made.hidden.update(offsets)
            made.append(build_marker(producer, 0, end, 0, 5, base_offset=base))
            continue
        producer = draw(st.sampled_from([1, 2])) if kind == "transaction" else -1
        batch = build_batch(
            draw(new_records(with_headers)),
            base_offset=base,
            compression=draw(st.integers(0, 4)),
            producer_id=producer,
            producer_epoch=0 if producer > 0 else -1,
            base_sequence=0 if producer > 0 else -1,
            transactional=producer > 0,
        )
        if kind == "thin":
            batch = thinned(batch, draw(st.lists(st.booleans(), min_size=1, max_size=3)))
        if kind == "append-time":
            stamp_append_time(batch, 1_700_000_000_123)
        if producer > 0:
            header = parse_header(batch)
            open_transactions.setdefault(producer, []).extend(range(base, header.next_offset))
        made.append(batch)
    return made


def expected(made: Partition, committed: bool) -> list[tuple[Record, int]]:
    """Every record that a reader sees, and its timestamp type, by the plain reader of `wire`."""
    seen = []
    for at, header in batches(made.data):
        if header.is_control:
            continue
        for record in records(memoryview(made.data)[at:], header, max_bytes=LIMIT):
            if not committed or record.offset not in made.hidden:
                seen.append((record, header.timestamp_type))
    return seen
