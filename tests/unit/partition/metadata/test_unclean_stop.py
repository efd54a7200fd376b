"""What directories say together of the last stop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from duramen.partition.metadata.unclean_stop import UNCLEAN, previous_epoch


@pytest.mark.parametrize(
    ("told", "expected"), [([7], 7), ([7, 7], 7), ([7, 8], UNCLEAN), ([7, UNCLEAN], UNCLEAN), ([UNCLEAN], UNCLEAN)]
)
def test_all_directories_have_to_name_one_epoch(told: list[int], expected: int) -> None:
    directories: list[Any] = [SimpleNamespace(stopped_epoch=epoch) for epoch in told]
    assert previous_epoch(directories) == expected
