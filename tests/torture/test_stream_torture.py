"""A short version of `make torture-streams`, and the proof that its audit would notice a broken promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.torture.stream_clients import LedgerFile, read_lines
from tests.torture.stream_ledgers import StoredRecord, StreamAudit
from tests.torture.streams import StreamTorture
from tests.worlds.served_node import only_duramen

pytestmark = [only_duramen, pytest.mark.slow, pytest.mark.timeout(240)]


def test_streams_outlive_the_death_of_everybody(tmp_path: Path) -> None:
    torture = StreamTorture(tmp_path, seed=1, nodes=1, few=True)
    torture.run(["kill a gateway", "kill a leader", "kill writers", "kill readers"], 60, show=False)
    assert torture.broken == []
    assert torture.audit is not None
    assert sum(torture.audit.acknowledged.values()) > 100
    assert torture.audit.delivered > 100


def audited(folder: Path, kind: str, lines: list[dict[str, Any]], log: list[StoredRecord]) -> list[str]:
    ledger = LedgerFile(folder / "w.jsonl")
    for line in lines:
        ledger.add(**line)
    return StreamAudit(folder, [{"name": "w", "kind": kind, "topic": "t"}]).check({("t", 0): log})


SENT = [{"t": "send", "e": 0, "s": s, "v": f'[{{"n": {s}}}]', "next": s + 1} for s in range(2)]
OPENED = [{"t": "opened", "s": "1", "offset": -2}, {"t": "opened", "s": "2", "offset": -1}]
ACKED = [{"t": "ack", "e": 0, "s": s, "offset": s, "again": False} for s in range(2)]


@pytest.mark.parametrize(
    ("kind", "lines", "numbers", "sign"),
    [
        ("named", SENT + ACKED, [0], "is lost"),
        ("named", SENT + ACKED, [1, 0], "out of order"),
        ("named", SENT + ACKED, [0, 1, 1], "twice"),
        ("named", [{"t": "bad", "what": "w 0 1", "status": 409, "body": ""}], [], "409"),
        ("named", [{"t": "send", "e": 0, "s": 0, "v": '[{"n": 0}, {"n": 1}]', "next": 2}], [0], "in part"),
        ("expecting", [{"t": "ack", "n": 0, "offset": 1}], [0], "is at 0"),
        ("expecting", [{"t": "never", "n": 0}], [0], "was refused"),
        ("exclusive", [*OPENED, {"t": "send", "n": 0, "s": "1"}, {"t": "ack", "n": 0, "offset": 0}], [0], "had opened"),
        ("records", [{"t": "ack", "n": 0, "partition": 0, "offset": 0}], [], "is at None"),
        ("sse", [{"t": "got", "p": "", "r": [["w", 0], ["w", 0]]}], [0], "2 of 1"),
        ("poll", [{"t": "got", "p": "", "r": [["w", 1]]}], [0, 1], "1 of 2"),
    ],
)
def test_the_audit_believes_no_log(
    tmp_path: Path, kind: str, lines: list[dict[str, Any]], numbers: list[int], sign: str
) -> None:
    log = [StoredRecord(offset, "w", number) for offset, number in enumerate(numbers)]
    broken = audited(tmp_path, kind, lines, log)
    assert any(sign in line for line in broken), broken


def test_the_audit_finds_nothing_wrong_where_nothing_is(tmp_path: Path) -> None:
    log = [StoredRecord(offset, "w", offset) for offset in range(2)]
    assert audited(tmp_path, "named", SENT + ACKED, log) == []


def test_a_line_that_was_cut_short_is_none(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_bytes(b'{"t": "got"}\n{"t": "g')
    LedgerFile(path).add(t="send")
    assert [line["t"] for line in read_lines(path)] == ["got", "send"]
