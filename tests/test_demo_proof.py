"""The demo's proof can fail: for each thing it claims, evidence with exactly that flaw is found out."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from demo import proof
from demo.trace import ENTRY, Seen, count, entries

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
