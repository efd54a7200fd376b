"""A short version of `make torture-positions`."""

from __future__ import annotations

from pathlib import Path

from tests.torture.ledger_kills import LEDGERS, torture
from tests.worlds.served_node import only_duramen


@only_duramen
def test_a_ledger_that_is_killed_applies_each_payment_once(tmp_path: Path) -> None:
    outcomes = torture(tmp_path, kills=2, seed=3, ledgers=LEDGERS)
    assert [each.way for each in outcomes] == [each.way for each in LEDGERS]
    for each in outcomes:
        assert each.ledger == each.log, each.way
    assert sum(each.positions[-1] != "None" for each in outcomes) >= 3, "they were killed before they had done anything"
