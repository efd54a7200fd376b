"""`duramen serve` on a disk that writes down its syncs: python recorded_node.py NOTEBOOK BASE serve ..."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import duramen.server.net.os_ports as world
from duramen.cli.main import main
from torture.shadow import Notebook, RecordingDisk

if __name__ == "__main__":
    notebook = Notebook(Path(sys.argv[1]), Path(sys.argv[2]))
    world.RealDisk = lambda: RecordingDisk(notebook)  # type: ignore[assignment,misc]
    sys.exit(main(sys.argv[3:]))
