"""Puts this folder on the import path, for `files`; a node with its log in the test's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.served_node import Served


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    """Ends with status 0 when the test has passed."""
    served = Served(tmp_path)
    served.start()
    try:
        yield served
        assert served.stop() == 0, served.log()
    finally:
        served.kill()
