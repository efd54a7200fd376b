"""Plans the steps of a pipeline for who looks at its code: nothing is read or written."""

from __future__ import annotations

from duramen.errors import DeadlineError, NetworkError
from duramen.pipelines.model.declaration import Step
from duramen.pipelines.model.folders import VersionFolder
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.swap_chain import Reading, of_source
from duramen.pipelines.run.runner import Runner


class DryRunner(Runner):
    """Plans for who looks at the code: where reading would begin is not asked, and the node may be away.

    Then a step counts as reading what it read last.
    """

    def readings(self, step: Step, version: VersionFolder) -> tuple[Reading, ...]:
        """See Queries."""
        try:
            return tuple(reading._replace(start=Offsets()) for reading in super().readings(step, version))
        except (NetworkError, DeadlineError):
            about = version.about() or {}
            told = [(source.name, of_source(about, source.name)) for source in step.sources]
            return tuple(
                Reading(each.get("generation", 0), each.get("reads", name), Offsets(), None) for name, each in told
            )
