"""The proof: what the groups read back, held against what was written. Nothing here trusts a counter of the node."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from demo.trace import Seen, entries
from demo.writer import UNKNOWN_OFFSET, Writer


class Finding(NamedTuple):
    """One thing that was checked: what it claims, whether it holds, and the first counter-examples when it does not."""

    claim: str
    holds: bool
    examples: list[str]


class Read(NamedTuple):
    """Everything one group processed, member by member."""

    group: str
    by_member: dict[str, list[Seen]]

    @property
    def records(self) -> list[Seen]:
        """All members' records, in no order across members."""
        return [seen for read in self.by_member.values() for seen in read]

    @property
    def size(self) -> int:
        """Bytes of values read."""
        return sum(seen.size for seen in self.records)


def load(group: str, traces: Iterable[Path]) -> Read:
    """The traces of one group's members."""
    return Read(group, {path.stem: list(entries(path)) for path in traces})


def finding(claim: str, wrong: list[str]) -> Finding:
    return Finding(claim, not wrong, wrong[:5])


def processed_once(read: Read) -> Finding:
    """No (partition, offset) was processed twice by the group, whoever held the partition."""
    seen: dict[tuple[int, int], str] = {}
    wrong = []
    for member, records in read.by_member.items():
        for record in records:
            place = (record.partition, record.offset)
            if place in seen:
                wrong.append(f"partition {place[0]} offset {place[1]}: by {seen[place]} and by {member}")
            seen[place] = member
    return finding(f"{read.group}: no offset was processed twice", wrong)


def rows_once(read: Read, rows: int) -> Finding:
    """Every row of the input is in the log exactly once."""
    times = [0] * (rows + 1)
    wrong = []
    for record in read.records:
        if 1 <= record.row <= rows:
            times[record.row] += 1
        else:
            wrong.append(f"row {record.row} was never written")
    wrong += [f"row {row} was read {found} times" for row, found in enumerate(times) if row and found != 1]
    return finding(f"{read.group}: each of the {rows:,} rows was read exactly once", wrong)


def unchanged(read: Read, writer: Writer) -> Finding:
    """Key and value are byte for byte what was written."""
    wrong = []
    for record in read.records:
        if record.row >= len(writer.keys):
            continue
        key = writer.keys[record.row] or b""
        if record.key.rstrip(b"\0") != key or record.checksum != writer.checksums[record.row]:
            wrong.append(f"row {record.row}: key {record.key!r}, wrote {key!r}, or another value")
    return finding(f"{read.group}: every key and value is what was written", wrong)


def keys_in_order(read: Read) -> Finding:
    """Rows of one tail number lie in one partition, and their offsets ascend in the order of the input."""
    last: dict[bytes, Seen] = {}
    wrong = []
    for record in sorted(read.records):
        key = record.key.rstrip(b"\0")
        if not key:
            continue
        before = last.get(key)
        if before and (before.partition != record.partition or before.row >= record.row):
            wrong.append(f"{key.decode()}: row {before.row} in {before.partition}, then row {record.row}")
        last[key] = record
    return finding(f"{read.group}: the flights of each of {len(last):,} aeroplanes are in order", wrong)


def at_their_offsets(read: Read, writer: Writer) -> Finding:
    """A row that was acknowledged with an offset is found at that offset, those from before the kill too."""
    wrong = []
    for record in read.records:
        if record.row >= len(writer.offsets) or writer.offsets[record.row] == UNKNOWN_OFFSET:
            continue
        told = (writer.partitions[record.row], writer.offsets[record.row])
        if told != (record.partition, record.offset):
            wrong.append(f"row {record.row}: acknowledged at {told}, found at {(record.partition, record.offset)}")
    return finding(f"{read.group}: every acknowledged row lies where the acknowledgement said", wrong)


def keyless(read: Read, expected: int) -> Finding:
    """As many records without a key as the input has flights without a tail number."""
    found = sum(not record.key.rstrip(b"\0") for record in read.records)
    wrong = [] if found == expected else [f"{found:,} have none"]
    return finding(f"{read.group}: {expected:,} flights have no key", wrong)


def members_took_part(read: Read, members: Iterable[str]) -> Finding:
    """The group really was shared: each member, the guest included, processed something."""
    wrong = [f"{member} processed nothing" for member in members if not read.by_member.get(member)]
    shares = ", ".join(f"{member} {len(records):,}" for member, records in sorted(read.by_member.items()))
    return finding(f"{read.group}: every member had a share ({shares})", wrong)


def prove(writer: Writer, shared: Read, late: Read, members: Iterable[str], rows: int) -> list[Finding]:
    """Everything the demo claims, as findings in reading order."""
    findings = [finding(f"every one of {rows:,} rows was acknowledged", writer.failures[:])]
    if writer.acknowledged != rows:
        findings[0] = finding(findings[0].claim, [*writer.failures, f"{writer.acknowledged} acknowledgements"])
    for read in (shared, late):
        findings += [rows_once(read, rows), unchanged(read, writer), keys_in_order(read)]
        findings += [at_their_offsets(read, writer), processed_once(read)]
    return [*findings, members_took_part(shared, members)]
