"""Named points on the sink's way, at which a test may stop, fail or kill; in production nothing happens there."""

from __future__ import annotations

from typing import Final

CLAIMED: Final = "claimed"
"""Driver: the run owns the sink, no task has begun."""
BEFORE_STAGE: Final = "before-stage"
AFTER_STAGE: Final = "after-stage"
"""Task: records are staged (or, at least once, appended), the answer came."""
TASK_DONE: Final = "task-done"
"""Task: everything is staged, Spark does not know yet."""
BEFORE_COMMIT: Final = "before-commit"
"""Driver: all tasks are done, the commit was not sent."""
AFTER_COMMIT: Final = "after-commit"
"""Driver: the commit's answer came, Spark's own commit log does not know yet."""
BEFORE_ABORT: Final = "before-abort"

ALL: Final = (CLAIMED, BEFORE_STAGE, AFTER_STAGE, TASK_DONE, BEFORE_COMMIT, AFTER_COMMIT, BEFORE_ABORT)


class Points:
    """Passes every point. It travels to the tasks with the writer; a test hands in one of its own."""

    def reach(self, point: str) -> None:
        """Called when the sink gets to `point`."""
