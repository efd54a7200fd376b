"""What the batches of a query tell the run, also from Spark's server, whose memory is another one."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path

from duramen.pipelines.model.late_rows import LateRows
from duramen.pipelines.model.progress import Written


class QueryReport:
    """What a query's batches tell the run. written, late: of each batch; troubles: what does not end it.

    Over Spark Connect the server has a copy, which leaves what it knows in a file (`leave`), and the run fetches it.
    """

    def __init__(self, file: Path | None = None) -> None:
        """file: of what Spark's server tells; None where the batches are taken in this process."""
        self.written: dict[int, Written] = {}
        self.late: dict[int, LateRows] = {}
        self.troubles: deque[str] = deque()
        self._once = False
        self._file = file
        self._fetched = 0
        if file is not None:
            file.unlink(missing_ok=True)

    def once(self, trouble: str | None) -> None:
        """A trouble that a run tells the first time."""
        if trouble is not None and not self._once:
            self._once = True
            self.troubles.append(trouble)

    def leave(self) -> None:
        """On Spark's server: add what is known to the file, a line of JSON, and forget it."""
        if self._file is None:
            return
        told = json.dumps({"written": list(self.written.items()), "troubles": list(self.troubles)})
        with self._file.open("a", encoding="utf-8") as out:
            out.write(told + "\n")
        self.written.clear()
        self.troubles.clear()

    def fetch(self) -> None:
        """In the run: take what the server has left since the last call."""
        if self._file is None or not self._file.exists():
            return
        with self._file.open("rb") as left:
            left.seek(self._fetched)
            lines = left.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                return  # it is being written
            self._fetched += len(line)
            told = json.loads(line)
            self.written |= {batch: Written(*found) for batch, found in told["written"]}
            self.troubles.extend(told["troubles"])
