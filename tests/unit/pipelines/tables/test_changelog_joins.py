"""Rows of a join, each of two records: the table is the same however its batches were cut, and again by a replay."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from duramen.pipelines.model.offsets import Cause, Offsets
from duramen.pipelines.model.table_shape import ALSO, TIMESTAMP, TableShape
from duramen.pipelines.tables.changelog import ChangelogError, came_of, fresh, other_causes, refuse_held_back
from duramen.pipelines.tables.delta_store import DeltaStore
from duramen.pipelines.tables.difference import compare_histories
from duramen.pipelines.tables.parquet_store import ParquetStore
from duramen.pipelines.tables.store import TableStore

STORES: dict[str, type[TableStore]] = {"parquet": ParquetStore, "delta": DeltaStore}
OWN = pa.schema([("k", pa.int64()), ("n", pa.string()), (TIMESTAMP, pa.timestamp("us", "UTC")), (ALSO, pa.string())])
Place = tuple[int, Cause]
Row = dict[str, Any]


def joined(*places: Place, deleted: bool = False, k: int = 0) -> Row:
    """A row of these records, with their times, as `joined_cause` has it."""
    (time, main), *others = sorted(places, reverse=True)
    also = " ".join(sorted(cause.ordered for _, cause in others))
    place = {"_topic": main.topic, "_partition": main.partition, "_offset": main.offset, "_deleted": deleted}
    return {"k": k, "n": f"{main} {also}", TIMESTAMP: time * 1_000_000, ALSO: also, **place}


def rows_of(*rows: Row) -> pa.Table:
    trace = [("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64()), ("_deleted", pa.bool_())]
    return pa.Table.from_pylist([*rows], schema=pa.schema([*OWN, *trace]))


ORDER, PAYMENT = (3, Cause("orders", 1, 9)), (5, Cause("payments-2", 0, 10))


def test_a_row_is_new_where_one_of_its_records_is() -> None:
    rows = rows_of(joined(ORDER, PAYMENT), joined(ORDER), joined(PAYMENT))

    def kept(orders: int, payments: int) -> list[str]:
        contained = Offsets({("orders", 1): orders, ("payments-2", 0): payments})
        return fresh(rows, contained)["n"].to_pylist()

    every = rows["n"].to_pylist()
    assert kept(0, 0) == kept(9, 10) == every
    assert kept(10, 10) == [every[0], every[2]]
    assert kept(9, 11) == [every[0], every[1]]
    assert kept(10, 11) == []


def test_a_row_is_held_back_where_all_of_its_records_are_of_earlier_batches() -> None:
    before = Offsets({("orders", 1): 10})
    refuse_held_back(rows_of(joined(ORDER, PAYMENT)), before)
    with pytest.raises(ChangelogError, match=r"orders-1@9, a record of an earlier batch.*joined_cause"):
        refuse_held_back(rows_of(joined(PAYMENT), joined(ORDER)), before)


def test_a_row_came_of_each_of_its_records() -> None:
    rows = rows_of(joined(ORDER, PAYMENT), joined((5, Cause("my-payments-2", 0, 10)), (1, Cause("orders", 1, 90))))
    assert other_causes(rows, 0) == [ORDER[1]]
    hits = [came_of(rows, cause).to_pylist() for cause in (ORDER[1], PAYMENT[1], Cause("orders", 1, 90))]
    assert hits == [[True, False], [True, False], [False, True]]


class Shop:
    """Two topics, the pairs that a join makes of them, and batches that may end anywhere."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.topics: dict[str, list[tuple[int, int, bool]]] = {}
        for topic in ("orders", "payments"):
            count = self.choose.randint(1, 12)
            times = sorted(self.choose.randint(0, 9) for _ in range(count))
            self.topics[topic] = [(time, self.choose.randint(0, 2), self.choose.random() < 0.2) for time in times]

    def pairs(self, begin: dict[str, int], end: dict[str, int]) -> list[Row]:
        """What a batch gives: pairs of which one record at least is of the batch."""
        found = []
        for o, (time, k, gone) in enumerate(self.topics["orders"][: end["orders"]]):
            for p, (later, of, left) in enumerate(self.topics["payments"][: end["payments"]]):
                if k == of and (o >= begin["orders"] or p >= begin["payments"]):
                    places = (time, Cause("orders", 0, o)), (later, Cause("payments", 0, p))
                    found.append(joined(*places, deleted=gone or left, k=k))
        self.choose.shuffle(found)
        return found

    def replay(self, store: TableStore, sink: str) -> None:
        """All of both topics, as a query with a new checkpoint."""
        at, number = dict.fromkeys(self.topics, 0), 0
        while any(at[topic] < len(records) for topic, records in self.topics.items()):
            ends = {topic: self.choose.randint(at[topic], len(records)) for topic, records in self.topics.items()}
            batch = rows_of(*self.pairs(at, ends))
            refuse_held_back(batch, Offsets({(topic, 0): end for topic, end in at.items()}))
            offsets = Offsets({(topic, 0): end for topic, end in ends.items() if end})
            for _ in range(self.choose.randint(1, 2)):  # cut off behind the commit, it comes again
                store.apply(batch, sink, number, offsets)
            at, number = ends, number + 1


@pytest.mark.parametrize("kind", STORES)
def test_the_table_of_a_join_is_the_same_however_batches_are_cut(kind: str, tmp_path: Path) -> None:
    for seed in range(6):
        shop = Shop(seed)
        every = shop.pairs(dict.fromkeys(shop.topics, 0), {topic: len(all_) for topic, all_ in shop.topics.items()})
        store = STORES[kind](tmp_path / f"{seed}", TableShape(("k",), TIMESTAMP), OWN)
        history = STORES[kind](tmp_path / f"{seed}-history", TableShape(), OWN)
        for sink in ("q", "q2"):  # the second has lost the first one's checkpoint
            shop.replay(store, sink)
            shop.replay(history, sink)
        order = (TIMESTAMP, "_topic", "_offset", ALSO)
        latest = {row["k"]: row for row in sorted(every, key=lambda row: [row[name] for name in order])}
        wanted = {k: row["n"] for k, row in latest.items() if not row["_deleted"]}
        assert {row["k"]: row["n"] for row in store.rows().to_pylist()} == wanted, f"seed {seed}"
        assert sorted(history.rows()["n"].to_pylist()) == sorted(row["n"] for row in every), f"seed {seed}"
        again = STORES[kind](tmp_path / f"{seed}-again", TableShape(), OWN)
        shop.replay(again, "q")
        found = compare_histories(history.rows(), again.rows())
        assert (found.same, found.only_old, found.only_new) == (len(every), 0, 0)
        for row in every:
            for cause in (Cause(row["_topic"], 0, row["_offset"]), *map(Cause.parse, row[ALSO].split())):
                assert row["n"] in [n for _, rows in history.caused_by(cause) for n in rows["n"].to_pylist()]


@pytest.mark.parametrize("kind", STORES)
def test_a_record_of_a_join_is_superseded_by_what_is_later(kind: str, tmp_path: Path) -> None:
    store = STORES[kind](tmp_path, TableShape(("k",), TIMESTAMP), OWN)
    store.apply(rows_of(joined(ORDER, PAYMENT)), "q", 0, Offsets({("orders", 1): 10, ("payments-2", 0): 11}))
    newer = (4, Cause("orders", 1, 10))
    store.apply(rows_of(joined(newer, PAYMENT)), "q", 1, Offsets({("orders", 1): 11}))
    assert [row["n"] for row in store.rows().to_pylist()] == [joined(newer, PAYMENT)["n"]]
    found = store.superseded(ORDER[1], {"k": 0})
    assert found is not None
    assert (found[0].version, found[1]) == (1, PAYMENT[1])
    assert store.superseded(PAYMENT[1], {"k": 0}) is None, "it is in the later row, too"
    first = store.first_with(ORDER[1], newer[1])
    assert first is not None
    assert first.version == 1
