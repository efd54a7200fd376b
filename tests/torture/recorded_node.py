"""`duramen serve` on a disk that notes its syncs: python -m tests.torture.recorded_node NOTEBOOK BASE serve ..."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.torture.shadow import Notebook, RecordingDisk

import duramen.server.net.os_ports as world
from duramen.cli.main import main

if __name__ == "__main__":
    notebook = Notebook(Path(sys.argv[1]), Path(sys.argv[2]))
    world.RealDisk = lambda: RecordingDisk(notebook)  # type: ignore[assignment,misc]
    sys.exit(main(sys.argv[3:]))
