"""kill -9 at random moments under load, clean stops between, and everything checked after each restart.

    python -m tests.torture.kills --kills 200

The node has two log directories and is started with other settings each time.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.torture.ledger import Audit, Ledger, verdict
from tests.torture.load import Load
from tests.worlds.served_node import Served

# Small, so that rolls, checkpoints and laps of the journal happen between any two kills.
SETTINGS = {
    "log.segment.bytes": str(1 << 20),
    "duramen.journal.max.bytes": str(4 << 20),
    "duramen.journal.part.bytes": str(1 << 20),
    "duramen.journal.bypass.bytes": str(64 << 10),
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "log.retention.ms": "-1",
    "log.segment.delete.delay.ms": "200",
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "300",
}
VARIED = {
    "duramen.journal.max.bytes": ("1048576", "4194304"),
    "duramen.journal.part.bytes": ("65536", "524288"),
    "duramen.journal.bypass.bytes": ("4096", "65536", "1048576"),
    "duramen.hot.window.bytes": ("-1", "0"),
    "duramen.open.files.max": ("-1", "16"),
    "log.flush.offset.checkpoint.interval.ms": ("300", "60000"),
    "log.index.interval.bytes": ("0", "500", "4096"),
    "log.cleaner.dedupe.buffer.size": ("480", "134217728"),
    "metadata.log.max.record.bytes.between.snapshots": ("2000", "20971520"),
}
"""Settings that a node may be started with otherwise each time, and some of their values."""
CLEAN_STOPS = 0.15
"""How often the node is stopped cleanly and not killed."""
KILLS_PER_GENERATION = 10
"""After so many kills new topics are used and the old ones deleted, so that checking everything stays quick."""


class Torture:
    """One node, its clients and what was found."""

    def __init__(self, folder: Path, seed: int, *, others: bool = False) -> None:
        """others: see Load."""
        self.others = others
        self.random = random.Random(seed)
        self.seed = seed
        self.node = Served(folder, SETTINGS | {"log.dirs": f"{folder}/one,{folder}/two"})
        self.ledger = Ledger()
        self.kills = 0
        self.stops = 0
        self.kills_at_start = 0
        self.records = 0
        self.acknowledged = 0
        self.starts: list[float] = []
        self.broken: list[str] = []
        self.generation = 0
        self.load: Load | None = None

    def run(self, kills: int, seconds_max: float, show: bool, acknowledged_min: int = 0) -> None:
        """So many kills, and more while fewer records than that were acknowledged."""
        self.node.start()
        began = time.monotonic()
        try:
            while not self.broken and time.monotonic() - began < seconds_max:
                if self.kills >= kills and self.acknowledged_now() >= acknowledged_min:
                    break
                if self.load is None or self.kills % KILLS_PER_GENERATION == 0:
                    self._next_generation()
                self._one_kill()
                if show:
                    print(f"\r{self.line()}", end="", flush=True)
        finally:
            try:
                if self.load is not None:
                    self.load.stop()
            finally:
                self.node.kill()
                if show:
                    print()

    def line(self) -> str:
        return (
            f"{self.kills} kills ({self.kills_at_start} while starting), {self.stops} clean stops, "
            f"{self.acknowledged_now():,} records acknowledged, {self.records:,} read back, "
            f"{len(self.broken)} promises broken"
        )

    def acknowledged_now(self) -> int:
        return self.acknowledged + self.ledger.acknowledged()

    def _next_generation(self) -> None:
        if self.load is not None:
            self.load.pause()
            self.load.stop()
            self.acknowledged += self.ledger.acknowledged()
            self.load.remove()
            self.generation += 1
        self.load = Load(self.node.bootstrap, self.ledger, self.generation, self.seed, others=self.others)
        self.load.start()

    def _one_kill(self) -> None:
        assert self.load is not None
        time.sleep(self.random.uniform(0.02, 1.2))
        if self.random.random() < CLEAN_STOPS:
            status = self.node.stop()
            if status:
                self.broken.append(f"a clean stop ended with {status}:\n{self.node.log()}")
            self.stops += 1
        else:
            self.node.kill()
            self.kills += 1
        self.node.settings |= {name: self.random.choice(values) for name, values in VARIED.items()}
        while self.random.random() < 0.2:
            self.node.launch()
            time.sleep(self.random.uniform(0.05, 0.6))
            self.node.kill()
            self.kills += 1
            self.kills_at_start += 1
        self.starts.append(self.node.start())
        self.load.pause()
        audit = Audit(self.node.bootstrap, self.ledger)
        self.broken += audit.run()
        self.records += audit.records
        self.load.go_on()


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.torture.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60, help="stop after this time, whatever was reached")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="duramen-torture-"))
    torture = Torture(folder, options.seed, others=True)
    try:
        torture.run(options.kills, options.minutes * 60, show=True)
    except KeyboardInterrupt:
        print("ended by hand", file=sys.stderr)
        return 130
    print(f"ready again after {median(torture.starts):.2f} s (median), {max(torture.starts):.2f} s (most)")
    return verdict(torture.broken, folder)


if __name__ == "__main__":
    sys.exit(main())
