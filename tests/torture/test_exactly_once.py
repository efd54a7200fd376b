"""Short versions of `make torture-exactly-once` and `make torture-histories`, and the proof that both would notice."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.torture.committed import Content, Stored
from tests.torture.copier import ABORTED
from tests.torture.exactly_once import ExactlyOnce, copying_faults
from tests.torture.histories import AppendRun
from tests.worlds.served_node import only_duramen

pytestmark = [only_duramen, pytest.mark.slow, pytest.mark.timeout(300)]

QUICK_FAULTS = ("node killed", "copier killed", "node and copier killed", "power cut")


def test_copiers_and_the_node_below_them_die_and_each_record_counts_once(tmp_path: Path) -> None:
    torture = ExactlyOnce(tmp_path, seed=6, kinds=QUICK_FAULTS)
    torture.run(3, 120, per_check=3, pause=(0.3, 1.0))
    assert torture.broken == []
    assert torture.copied > 300
    assert torture.aborted > 0


def test_clients_die_and_their_history_has_no_anomaly(tmp_path: Path) -> None:
    run = AppendRun(tmp_path, 3, nodes=1, alone=True, java=False)
    run.run(4)
    assert run.broken == []
    assert run.history is not None
    assert sum(len(list(each.appends())) for each in run.history.transactions) > 20


def partition(*values: bytes) -> list[Content]:
    return [Content([Stored(at, b"key", value) for at, value in enumerate(values)], len(values))]


@pytest.mark.parametrize(
    ("copied", "sign"),
    [
        ((b"1", b"3"), "1 lost [b'2']"),
        ((b"1", b"2", b"3", b"2"), "1 doubled [(b'2', 2)]"),
        ((b"1", ABORTED + b"2", b"2", b"3"), "1 of aborted transactions"),
        ((b"2", b"1", b"3"), "record 0 is"),
    ],
)
def test_what_is_not_a_copy_is_noticed(copied: tuple[bytes, ...], sign: str) -> None:
    wanted = partition(b"1", b"2", b"3")
    assert copying_faults("first", wanted, "second", partition(b"1", b"2", b"3")) == []
    found = copying_faults("first", wanted, "second", partition(*copied))
    assert len(found) == 1
    assert sign in found[0]
