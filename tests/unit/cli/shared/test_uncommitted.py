"""What `duramen consume --group` says of records whose commit was not answered."""

from __future__ import annotations

from duramen.cli.shared.outlet import Line
from duramen.cli.shared.uncommitted import Uncommitted


def test_what_was_printed_behind_the_last_commit_is_told() -> None:
    left = Uncommitted()
    left.put([Line(("t", 0), offset, b"") for offset in (3, 4, 5)] + [Line(("u", 1), 7, b"")])
    assert left.told({}) is None, "nothing of it was printed"
    told = left.told({("t", 0): 5, ("u", 1): 8})
    assert told is not None
    assert "t-0 offsets 3 to 4, u-1 offsets 7 to 7;" in told
    left.commit({("t", 0): 5, ("u", 1): 8})
    assert left.told({("t", 0): 5, ("u", 1): 8}) is None
    assert "t-0 offsets 5 to 5;" in (left.told({("t", 0): 6, ("u", 1): 8}) or "")


def test_records_that_come_again_are_uncommitted_again() -> None:
    left = Uncommitted()
    left.commit({("t", 0): 9})
    left.put([Line(("t", 0), 4, b"")])
    assert "t-0 offsets 4 to 4;" in (left.told({("t", 0): 5}) or "")


def test_of_many_partitions_some_are_named() -> None:
    left = Uncommitted()
    left.put([Line(("t", number), 0, b"") for number in range(9)])
    told = left.told({("t", number): 1 for number in range(9)}) or ""
    assert told.count("offsets") == 4
    assert ", …;" in told
