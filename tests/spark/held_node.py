"""`duramen serve` that can be held between a commit and the moving of its records: held_node.py FOLDER serve ...

The whole process stands still at such a point: what it has not done by then is not done when it is killed there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from fault_points import FaultPoints
from tests.worlds.served_node import Served, finding_tests

from duramen.cli.main import main
from duramen.partition.sinks.commit_applier import CommitApplier

COMMITTED: Final = "node-committed"
"""The commit's record is committed; no record of the batch was moved."""
PARTLY_MOVED: Final = "node-partly-moved"
"""One partition has its share of a batch, others have not."""


class HeldNode(Served):
    """A node whose points are in `folder/points`."""

    def command(self) -> list[str]:
        _, *rest = super().command()
        return [sys.executable, __file__, str(self.folder / "points"), *rest]

    def environment(self) -> dict[str, str]:
        return finding_tests()


def _hold_at(points: FaultPoints) -> None:
    start, moved = CommitApplier.start, CommitApplier.moved

    def held_start(self: CommitApplier, sink_id: str, commit: Any, staging: Any) -> None:
        if commit.shares and (sink_id, commit.batch_id) not in self._jobs:
            points.reach(COMMITTED)
        start(self, sink_id, commit, staging)

    def held_moved(self: CommitApplier, move: Any, sink_id: str) -> None:
        if move._job._unread:
            points.reach(PARTLY_MOVED)
        moved(self, move, sink_id)

    CommitApplier.start = held_start  # type: ignore[method-assign]
    CommitApplier.moved = held_moved  # type: ignore[method-assign]


if __name__ == "__main__":
    _hold_at(FaultPoints(Path(sys.argv[1])))
    sys.exit(main(sys.argv[2:]))
