"""The driver of one of the three pipelines, as a process that is killed.

    PYTHONPATH=.:tests/spark python -m proof.pipeline_driver FOLDER BOOTSTRAP MASTER ROWS NAME

With ROWS 0 it works off what is there, in batches of DRAINED.
"""

from __future__ import annotations

import sys
from pathlib import Path

from arrow_pipeline import drive
from proof.three_pipelines import PIPELINES

DRAINED = 40

if __name__ == "__main__":
    folder, bootstrap, master, rows, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]
    drive(folder, master, lambda _: PIPELINES[name](folder / "pipeline", bootstrap, rows or DRAINED), endless=rows > 0)
