"""The proof of the demo with three nodes can fail: each flaw on a disk is found out, and only that."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from demo.cluster import HEADER, Copy, on_disks, stored

from duramen.wire.batch import build_batch, stamp
from duramen.wire.checksum import crc32c

ROWS = 6


def segment(*batches: tuple[int, int, int]) -> bytes:
    """(base offset, leader epoch, records) of each."""
    parts = []
    for base, epoch, count in batches:
        batch = bytearray(build_batch([(b"k", b"%d" % (base + n), (), 1) for n in range(count)]))
        stamp(batch, base, epoch)
        parts.append(bytes(batch))
    return b"".join(parts)


SOUND = segment((0, 1, 2), (2, 1, 1), (3, 4, 3))


def disks(tmp_path: Path, *contents: bytes) -> dict[int, dict[int, Copy]]:
    """One partition on as many nodes, each with what its segment holds."""
    copies = {}
    for node, content in enumerate(contents, 1):
        folder = tmp_path / f"node-{node}"
        folder.mkdir()
        (folder / "00000000000000000000.log").write_bytes(content)
        copies[node] = {0: stored(folder)}
    return copies


def writer(last: int = ROWS - 1) -> Any:
    """Rows 1 to 6 were acknowledged at offsets from 0 on, the last one at this one."""
    return SimpleNamespace(partitions=[-1] + [0] * ROWS, offsets=[-1, 0, 1, 2, 3, 4, last])


def failed(copies: dict[int, dict[int, Copy]], ledger: Any = None) -> list[str]:
    found = on_disks(copies, ledger or writer(), ROWS)
    return [each.claim.partition(": ")[2].split()[0] for each in found if not each.holds]


def test_three_equal_disks_are_believed(tmp_path: Path) -> None:
    copies = disks(tmp_path, SOUND, SOUND, SOUND)
    assert failed(copies) == []
    assert [each.leader_epoch for each in copies[1][0].batches] == [1, 1, 4]
    assert crc32c(SOUND[21 : copies[1][0].size]) != 0


def flipped() -> bytes:
    data = bytearray(SOUND)
    data[-1] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("content", "flaws"),
    [
        (flipped(), ["every", "the"]),
        (SOUND + segment((6, 4, 1)), ["the"]),
        (segment((0, 1, 2), (2, 1, 1), (3, 5, 3)), ["the"]),  # of another leader
        (segment((0, 1, 2), (2, 1, 1)), ["the"]),
    ],
)
def test_a_disk_that_differs_is_found_out(tmp_path: Path, content: bytes, flaws: list[str]) -> None:
    assert failed(disks(tmp_path, SOUND, SOUND, content)) == flaws


@pytest.mark.parametrize(
    ("content", "flaws"),
    [
        (segment((0, 1, 2), (3, 4, 3)), ["no", "6"]),
        (segment((0, 4, 3), (3, 1, 3)), ["no"]),
        (SOUND + segment((6, 4, 1)), ["6"]),
        (segment((0, 1, 2), (2, 1, 1)), ["6", "every"]),
    ],
)
def test_what_all_disks_lack_or_have_too_much_is_found_out(tmp_path: Path, content: bytes, flaws: list[str]) -> None:
    assert failed(disks(tmp_path, content, content, content)) == flaws


def test_an_acknowledged_row_behind_the_end_is_lost(tmp_path: Path) -> None:
    assert failed(disks(tmp_path, SOUND, SOUND, SOUND), writer(last=6)) == ["every"]


def test_the_header_is_that_of_kafka() -> None:
    assert HEADER.unpack_from(SOUND, 0)[0::3] == (0, 2, 1), "base offset, magic, last offset delta"
