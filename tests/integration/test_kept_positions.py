"""The stores of positions against a node and a directory, and the part of the page that shows them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.worlds.served_node import ROOT, Served

ADDRESS = "127.0.0.1:9092"


def test_the_page_keeps_its_position(served: Served, tmp_path: Path) -> None:
    """Its blocks of Python, as one program."""
    page = (ROOT / "docs/streams.md").read_text()
    section = page.partition("\n## Keep your position\n")[2].partition("\n## ")[0]
    program = "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL)).replace(ADDRESS, served.bootstrap)
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stderr, ran.stdout) == ("", "42\n(42, 2)\n")
