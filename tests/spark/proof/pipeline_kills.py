"""The three pipelines under SIGKILL of driver, Python workers and node, as `arrow_kills` does it to another one.

What they come to in the end is compared with the plain computation of their input; see `comparison`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from arrow_kills import DRIVER, LOCAL, LOCAL_VICTIMS, NODE, WORKER, Program, Round, Torture
from arrow_pipeline import BATCH_APPLIED, BATCH_COMPUTED, BATCH_PLANNED
from held_node import COMMITTED, PARTLY_MOVED
from proof.comparison import MADE, check, checkpoint_of, fill
from proof.made_records import BOUGHT, CLICKS, CUSTOMERS, ORDERS, PAYMENTS
from proof.three_pipelines import PIPELINES
from sink_lab import BEFORE_PLAN

from duramen.spark.sink.sink_points import AFTER_COMMIT, BEFORE_COMMIT, BEFORE_STAGE

ROWS: Final = 12
"""The most that a batch has of a topic."""
RECORDS_PER_ROUND: Final = 150
"""Of each topic: so many that they do not run out before the last kill."""
TABLE: Final = {BATCH_PLANNED: DRIVER, BATCH_COMPUTED: DRIVER, BATCH_APPLIED: DRIVER}
SINK: Final = {
    BEFORE_STAGE: WORKER,
    BEFORE_COMMIT: DRIVER,
    COMMITTED: NODE,
    PARTLY_MOVED: NODE,
    AFTER_COMMIT: DRIVER,
}
POINTS: Final[dict[str, dict[str, str]]] = {
    "shop": {**TABLE, **SINK, BEFORE_PLAN + ORDERS: DRIVER, BEFORE_PLAN + CUSTOMERS: DRIVER},
    "clicks": {**TABLE, BEFORE_PLAN + CLICKS: DRIVER},
    "joins": {**TABLE, BEFORE_PLAN + BOUGHT: DRIVER, BEFORE_PLAN + PAYMENTS: DRIVER},
}
"""Of each pipeline the arrows, and whose process stands there."""


class PipelineJudge:
    """Knows what a pipeline's input comes to. seed: of the input."""

    def __init__(self, name: str, seed: int, folder: Path, bootstrap: str) -> None:
        self.pipeline = PIPELINES[name](folder / "pipeline", bootstrap, ROWS)
        self._name = name
        self._seed = seed

    def fill(self, count: int) -> None:
        """See Judging. The same seed and count are the same input."""
        self._records = MADE[self._name](self._seed, count)
        fill(self.pipeline.bootstrap, self._records)

    def batches(self) -> int:
        """See Judging."""
        places = (checkpoint_of(self.pipeline, step) / "commits" for step in self.pipeline.steps)
        return sum(len(list(place.glob("[0-9]*"))) for place in places)

    def is_on(self, arrow: str, point: str) -> bool:
        """See Judging: which of the steps stands there is nobody's concern here."""
        return True

    def look(self, after: str) -> None:
        """See Judging: what is wrong stays so to the end."""

    def end(self) -> str:
        """See Judging."""
        return f"{len(self._records):,} records in; {check(self.pipeline, self._records)}"


def kills(name: str, count: int) -> list[Round]:
    """So many of a pipeline, at each point whoever stands there first, then the others."""
    points = POINTS[name]

    def victims() -> Iterator[Round]:
        for more in cycle(range(len(LOCAL_VICTIMS))):
            for point, stands in points.items():
                victim = LOCAL_VICTIMS[(LOCAL_VICTIMS.index(stands) + more) % len(LOCAL_VICTIMS)]
                yield Round(f"{name}: {point}", point, victim)

    return list(islice(victims(), count))


def torture(folder: Path, name: str, count: int, seed: int) -> Torture:
    """Ready to run."""
    program = Program(("proof.pipeline_driver", name), ROWS)
    rounds = kills(name, count)
    return Torture(
        folder,
        seed,
        rounds,
        LOCAL,
        program,
        lambda place, bootstrap: PipelineJudge(name, seed, place, bootstrap),
        records=RECORDS_PER_ROUND * len(rounds),
    )
