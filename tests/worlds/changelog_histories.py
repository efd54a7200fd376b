"""Random histories of a changelog, the batches a restless query cuts them into, and the plain fold to compare with."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.table_shape import TableShape
from duramen.pipelines.tables.store import TableStore

SCHEMA = pa.schema([("tail", pa.string()), ("leg", pa.int32()), ("miles", pa.int64()), ("seen", pa.int64())])
ROWS = pa.schema(
    [*SCHEMA, ("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64()), ("_deleted", pa.bool_())]
)
Row = dict[str, Any]


class Delivery(NamedTuple):
    """One batch as a query hands it to the store: who, which number, the rows in any order, where it ends."""

    sink: str
    number: int
    rows: list[Row]
    ends: Offsets

    @property
    def table(self) -> pa.Table:
        return pa.Table.from_pylist(self.rows, schema=ROWS)


class History:
    """A log of up to four partitions, and its deliveries.

    versioned: a key's records lie in any partition and `seen` orders them; else each key has its one partition.
    """

    def __init__(self, seed: int, versioned: bool) -> None:
        self.choose = random.Random(seed)
        self.keys = ("tail", "leg") if seed % 3 == 0 else ("tail",)
        self.shape = TableShape(self.keys, "seen" if versioned else None)
        partitions = self.choose.randint(1, 4)
        self.log: list[list[Row]] = [[] for _ in range(partitions)]
        for _ in range(self.choose.randint(1, 60)):
            tail, leg = f"N{self.choose.randint(1, 9)}", self.choose.randint(1, 2)
            home = (int(tail[1]) * 7 + (leg if len(self.keys) == 2 else 0)) % partitions
            partition = self.choose.randrange(partitions) if versioned else home
            deleted = self.choose.random() < 0.25
            self.log[partition].append(
                {
                    "tail": tail,
                    "leg": leg,
                    "miles": None if deleted else self.choose.randint(0, 5000),
                    "seen": self.choose.choice([None, 1, 2, 3, 4, 5, 6]),
                    "_topic": "flights",
                    "_partition": partition,
                    "_offset": len(self.log[partition]),
                    "_deleted": deleted,
                }
            )

    def deliveries(self) -> Iterator[Delivery]:
        """Batches that cover the log: some come twice, some queries begin again from an earlier place."""
        sink, number = 0, 0
        reached = [0] * len(self.log)
        while any(at < len(records) for at, records in zip(reached, self.log, strict=True)):
            ends = [self.choose.randint(at, len(records)) for at, records in zip(reached, self.log, strict=True)]
            rows = [row for p, records in enumerate(self.log) for row in records[reached[p] : ends[p]]]
            self.choose.shuffle(rows)
            told = Offsets({("flights", p): end for p, end in enumerate(ends)})
            delivery = Delivery(f"query-{sink}", number, rows, told)
            yield delivery
            while self.choose.random() < 0.3:
                yield delivery
            reached, number = ends, number + 1
            if self.choose.random() < 0.15:
                sink, number = sink + 1, 0
                reached = [self.choose.randint(0, at) for at in reached]

    def expected(self) -> dict[tuple[Any, ...], Row]:
        """The plain fold: record after record into a dict."""
        latest: dict[tuple[Any, ...], Row] = {}
        for records in self.log:
            for row in records:
                key = tuple(row[name] for name in self.keys)
                if key not in latest or not self.shape.version or order(row) >= order(latest[key]):
                    latest[key] = row
        return {key: row for key, row in latest.items() if not row["_deleted"]}


def order(row: Row) -> tuple[Any, ...]:
    return (row["seen"] is not None, row["seen"] or 0, row["_topic"], row["_partition"], row["_offset"])


def by_key(rows: pa.Table, keys: tuple[str, ...]) -> dict[tuple[Any, ...], Row]:
    found = {tuple(row[name] for name in keys): row for row in rows.to_pylist()}
    assert len(found) == rows.num_rows, "a key has two rows"
    return found


def replayed(store: TableStore) -> dict[tuple[Any, ...], Row]:
    """The fold of the table's own changelog: what the table must be, by the duality of streams and tables."""
    found: dict[tuple[Any, ...], Row] = {}
    for rows in store.changes():
        for row in rows.to_pylist():
            key = tuple(row[name] for name in store.shape.keys)
            if store.shape.version and key in found and order(row) < order(found[key]):
                continue
            found[key] = {name: value for name, value in row.items() if name != "_version"}
    return {key: row for key, row in found.items() if not row["_deleted"]}
