"""A stream's swap that was cut off before the node knew of it, where another pipeline's swap of the topic came first.

The pointer has moved then, and the node refuses the cut for ever. Nothing was written behind it, for a version writes
when its cuts are told: so the swap never came about, and the pointer goes back.
"""

from __future__ import annotations

from duramen.pipelines.model.folders import Current, StepFolder
from duramen.pipelines.run.cluster import PipelineNode


def take_back(folder: StepFolder, bootstrap: str) -> str | None:
    """Make the version before the current one again, and name it; the caller holds the step, and the current version.

    None, and nothing changes, where that would not be the whole truth: there were swaps before, which the node does
    not know any more, or something was written behind the cut. Then it is the node that has lost what it knew.
    """
    current = folder.current()
    if current.previous is None or len(current.cuts) != 1:
        return None
    (cut,) = current.cuts
    if {partition: at for (_, partition), at in PipelineNode(bootstrap).ends(cut.new)} != cut.start:
        return None
    folder.point(Current(current.previous))
    return current.previous
