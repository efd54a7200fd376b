"""Plans the steps of a pipeline for who looks at its code: nothing is read or written."""

from __future__ import annotations

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from duramen.errors import DeadlineError, NetworkError
from duramen.pipelines.model.declaration import Lookup, Step
from duramen.pipelines.model.folders import VersionFolder
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.swap_chain import Reading, of_source
from duramen.pipelines.run.lookups import columns, own
from duramen.pipelines.run.runner import Runner


class DryRunner(Runner):
    """Plans for who looks at the code: where reading would begin is not asked, and the node may be away.

    Then a step counts as reading what it read last.
    """

    def looked_up(self, lookup: Lookup) -> StructType:
        """See Queries. The columns of the code where the table has never run."""
        found = columns(lookup)
        if found is None:
            rows = DryRunner(lookup.pipeline, self.spark, self.connector).plan(lookup.table).rows
            kept = own(to_arrow_schema(rows.schema, timezone="UTC"))
            found = StructType([field for field in rows.schema.fields if field.name in kept.names])
        return found

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
