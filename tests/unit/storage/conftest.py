"""The log that many tests of the storage begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.log_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Segments of a few batches, on the real disk."""
    made = Bench(tmp_path, segment_bytes=5000, index_interval_bytes=300)
    yield made
    made.close()
