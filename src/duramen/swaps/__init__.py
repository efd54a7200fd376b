"""Topics that another topic has taken over from: where, told by the node, and consumer groups that go on behind it.

A stream that is reprocessed writes a topic of its own; the swap publishes a *cut* for each partition. Whoever reads by
`GroupReader`, or a pipeline, finishes the old topic up to the cut and goes on in the new one. Needs no Spark.
"""

from duramen.swaps.cut_overs import CutOver, Position, positions
from duramen.swaps.group_commits import PendingCommitsError
from duramen.swaps.group_reader import CutLostError, GroupReader, Handover
from duramen.swaps.swap_log import SwapConflictError, SwapLog

__all__ = [
    "CutLostError",
    "CutOver",
    "GroupReader",
    "Handover",
    "PendingCommitsError",
    "Position",
    "SwapConflictError",
    "SwapLog",
    "positions",
]
