"""The demo's proof can fail: for each thing it claims, evidence with exactly that flaw is found out."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from demo import display, proof
from demo.__main__ import main
from demo.tables import Expected, Tables
from demo.tables import prove as prove_tables
from demo.trace import ENTRY, Seen, count, entries
from rich.console import Console

KEYS = [None, b"A", b"B", b"A", None, b"A"]  # of rows 1 to 5
ROWS = len(KEYS) - 1


def checksum(row: int) -> int:
    return zlib.crc32(b"%d" % row)


def written() -> Any:
    """What the writer remembers of five rows: rows 1, 3, 5 in partition 0, the others in partition 1."""
    return SimpleNamespace(
        failures=[],
        acknowledged=ROWS,
        keys=KEYS,
        checksums=[0, *map(checksum, range(1, ROWS + 1))],
        partitions=[-1, 0, 1, 0, 1, 0],
        offsets=[-1, 0, 0, 1, 1, 2],
    )


def seen(partition: int, offset: int, row: int) -> Seen:
    return Seen(partition, offset, row, (KEYS[row] or b"").ljust(8, b"\0"), checksum(row), 1)


def good() -> dict[str, list[Seen]]:
    return {"ann": [seen(0, 0, 1), seen(0, 1, 3), seen(0, 2, 5)], "ben": [seen(1, 0, 2), seen(1, 1, 4)]}


def failed(by_member: dict[str, list[Seen]], writer: Any = None) -> set[str]:
    """Which claims about the shared group do not hold, by their last words."""
    late = proof.Read("late", {"late": [record for records in good().values() for record in records]})
    findings = proof.prove(writer or written(), proof.Read("g", by_member), late, ["ann", "ben"], ROWS)
    return {found.claim for found in findings if not found.holds}


def test_sound_evidence_is_believed() -> None:
    assert failed(good()) == set()


def twice(by_member: dict[str, list[Seen]]) -> None:
    by_member["ben"].append(by_member["ann"][0])


def missing(by_member: dict[str, list[Seen]]) -> None:
    by_member["ann"].pop()


def stored_twice(by_member: dict[str, list[Seen]]) -> None:
    by_member["ann"].append(by_member["ann"][-1]._replace(offset=3))


def swapped(by_member: dict[str, list[Seen]]) -> None:
    first, second, third = by_member["ann"]
    by_member["ann"] = [first._replace(offset=1), second._replace(offset=0), third]


def other_value(by_member: dict[str, list[Seen]]) -> None:
    by_member["ann"][0] = by_member["ann"][0]._replace(checksum=1)


def other_key(by_member: dict[str, list[Seen]]) -> None:
    by_member["ann"][0] = by_member["ann"][0]._replace(key=b"Z")


def moved(by_member: dict[str, list[Seen]]) -> None:
    by_member["ben"][1] = by_member["ben"][1]._replace(offset=9)


def idle(by_member: dict[str, list[Seen]]) -> None:
    by_member["ann"] += by_member["ben"]
    by_member["ben"] = []


@pytest.mark.parametrize(
    ("spoil", "claim"),
    [
        (twice, "no offset was processed twice"),
        (missing, "rows was read exactly once"),
        (stored_twice, "rows was read exactly once"),
        (swapped, "are in order"),
        (other_value, "is what was written"),
        (other_key, "is what was written"),
        (moved, "where the acknowledgement said"),
        (idle, "every member had a share"),
    ],
)
def test_flawed_evidence_is_found_out(spoil: Callable[[dict[str, list[Seen]]], None], claim: str) -> None:
    by_member = good()
    spoil(by_member)
    assert any(claim in found for found in failed(by_member)), failed(by_member)


def test_a_row_that_nobody_acknowledged_is_found_out() -> None:
    writer = written()
    writer.acknowledged -= 1
    assert any("was acknowledged" in found for found in failed(good(), writer))


def test_keyless_rows_are_counted() -> None:
    read = proof.Read("g", good())
    assert proof.keyless(read, 1).holds
    assert not proof.keyless(read, 2).holds


def test_a_trace_keeps_every_entry_in_order(tmp_path: Path) -> None:
    path = tmp_path / "ann.trace"
    assert count(path) == 0
    records = [seen(0, 0, 1), seen(0, 0, 1), seen(1, 0, 2)]
    path.write_bytes(b"".join(ENTRY.pack(*record) for record in records) + b"half an entry")
    assert (count(path), list(entries(path))) == (3, records)
    assert proof.load("g", [path]).by_member == {"ann": records}


def a_table(rows: list[dict[str, Any]]) -> Any:
    return SimpleNamespace(rows=lambda: pa.Table.from_pylist(rows))


AIRCRAFT = [
    {"tailnum": "A", "row": 5, "_partition": 0, "_offset": 2},
    {"tailnum": "B", "row": 3, "_partition": 0, "_offset": 1},
]
OLD = [{"carrier": "UA", "month": 1, "day": 1, "landed": 5, "minutes": 9}]
NEW = [{"carrier": "UA", "month": 1, "day": 1, "landed": 4, "minutes": 9}]


GROUNDED = [
    {"flight_row": 7, "origin": "JFK", "at": datetime(2013, 1, 2, 9, tzinfo=UTC), "wind": 5.75, "visibility": None}
]


def failed_tables(
    aircraft: list[dict[str, Any]],
    old: list[dict[str, Any]],
    new: list[dict[str, Any]],
    joined: list[dict[str, Any]] = GROUNDED,
    **told: Any,
) -> list[str]:
    shown = {("aircraft", None): aircraft, ("grounded", None): joined, ("delays", "v1"): old, ("delays", "v2"): new}
    tables: Any = SimpleNamespace(table=lambda step, version=None: a_table(shown[step, version]))
    want = Expected(
        {"A": 5, "B": 3},
        {("UA", 1, 1): [5, 9]},
        {("UA", 1, 1): [4, 9]},
        {7: ("JFK", "2013-01-02T09:00:00Z", 5.75, None)},
        2,
    )
    story: Any = SimpleNamespace(**{"swap_seconds": 0.01, "seen": {5, 4}, "late": {"run": 2, "status": 2}, **told})
    return [found.claim for found in prove_tables(tables, story, want, written()) if not found.holds]


def test_sound_tables_are_believed() -> None:
    assert failed_tables(AIRCRAFT, OLD, NEW) == []


@pytest.mark.parametrize(
    ("flawed", "claim"),
    [
        ((AIRCRAFT[:1], OLD, NEW), "the last flight of each"),
        (([*AIRCRAFT, AIRCRAFT[0]], OLD, NEW), "the last flight of each"),
        (([{**AIRCRAFT[0], "row": 1}, AIRCRAFT[1]], OLD, NEW), "the last flight of each"),
        (([{**AIRCRAFT[0], "_offset": 3}, AIRCRAFT[1]], OLD, NEW), "traced to the offset"),
        ((AIRCRAFT, [{**OLD[0], "landed": 6}], NEW), "every flight counted once"),
        ((AIRCRAFT, OLD * 2, NEW), "every flight counted once"),
        ((AIRCRAFT, OLD, OLD), "mended by replay"),
        ((AIRCRAFT, OLD, NEW, []), "cancelled flights with their weather"),
        ((AIRCRAFT, OLD, NEW, GROUNDED * 2), "cancelled flights with their weather"),
        ((AIRCRAFT, OLD, NEW, [{**GROUNDED[0], "wind": 8.0}]), "cancelled flights with their weather"),
    ],
)
def test_flawed_tables_are_found_out(flawed: tuple[Any, ...], claim: str) -> None:
    found = failed_tables(*flawed)
    assert any(claim in name for name in found), found


def test_a_half_swapped_table_and_a_slow_swap_are_found_out() -> None:
    assert any("the swap took" in name for name in failed_tables(AIRCRAFT, OLD, NEW, seen={5, 4, 3}))
    assert any("the swap took" in name for name in failed_tables(AIRCRAFT, OLD, NEW, swap_seconds=1.2))


@pytest.mark.parametrize("late", [{"run": 2, "status": 1}, {"run": None, "status": 2}, {"run": 0, "status": 0}])
def test_late_rows_that_are_counted_wrongly_are_found_out(late: dict[str, int | None]) -> None:
    [found] = failed_tables(AIRCRAFT, OLD, NEW, late=late)
    assert "dropped by the watermark" in found


def test_what_spark_is_at_is_told_once_and_as_whole_lines(tmp_path: Path) -> None:
    """A minute went by with `rows into tables: 0`."""
    told: list[str] = []
    tables = Tables(SimpleNamespace(say=told.append), SimpleNamespace(), tmp_path)  # type: ignore[arg-type]
    tables.log.write_text(f"loading {tables.file} ...\nstarting Java ...\nWARN TaskSetManager: lost ...\nplanning del")
    tables._tell_phases()
    tables._tell_phases()
    assert [line.partition("[/dim] ")[2] for line in told] == ["loading pipeline.py ...", "starting Java ..."]
    with tables.log.open("a") as log:
        log.write("ays ...\nfirst batch ...\n")
    tables._tell_phases()
    assert [line.partition("[/dim] ")[2] for line in told[2:]] == ["planning delays ...", "first batch ..."]


def test_a_count_that_stands_still_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "PLAIN_SECONDS", 0)
    said = io.StringIO()
    with display.Display(Console(file=said)) as shown:
        shown.bar("rows", 9)
        for done in (0, 0, 4, 4, 4, 6, 9, 9):
            shown.update("rows", done)
    assert [line.partition("rows: ")[2] for line in said.getvalue().splitlines()] == ["4 of 9", "6 of 9", "9 of 9"]


@pytest.mark.parametrize("rows", ["0", "336777"])
def test_more_flights_than_there_are_are_not_waited_for(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--rows", rows])
    assert ended.value.code == 2
    assert "there are 1 to 336,776 flights" in capsys.readouterr().err
