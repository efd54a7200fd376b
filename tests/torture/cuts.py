"""Power cuts on real files: python -m tests.torture.cuts --rounds 20.

A node runs under load on a disk that writes down its syncs, and is killed. From what was synced up to some moment, and
nothing else, a directory is built; a node started on it must have everything that was acknowledged by then.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.torture.kills import SETTINGS
from tests.torture.ledger import Audit, Ledger, verdict
from tests.torture.load import Load
from tests.torture.shadow import Sync, apply, first_cut, read
from tests.worlds.served_node import Served, finding_tests


class RecordedNode(Served):
    """A node whose disk writes its syncs into `notebook`."""

    @property
    def notebook(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.syncs")

    def command(self) -> list[str]:
        program = [sys.executable, "-m", "tests.torture.recorded_node"]
        return [*program, str(self.notebook), str(self.folder), *super().command()[1:]]

    def environment(self) -> dict[str, str]:
        return finding_tests()

    def launch(self) -> None:
        self.notebook.unlink(missing_ok=True)
        super().launch()


class PowerCuts:
    """Rounds of load, kill, and directories built from syncs alone."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.folder = folder
        (folder / "node").mkdir()
        self.node = RecordedNode(folder / "node", SETTINGS)
        self.ledger = Ledger()
        self.cuts = 0
        self.syncs = 0
        self.records = 0
        self.broken: list[str] = []

    def run(self, rounds: int, cuts_per_round: int, seconds_max: float, show: bool) -> None:
        began = time.monotonic()
        load: Load | None = None
        try:
            self.node.start()
            load = Load(self.node.bootstrap, self.ledger, 0, self.seed, power=True)
            load.start()
            for number in range(rounds):
                time.sleep(self.random.uniform(0.3, 1.5))
                self.node.kill()
                syncs = read(self.node.notebook)
                self.syncs += len(syncs)
                for _ in range(cuts_per_round):
                    self._early_cut(syncs)
                self._full_cut(syncs, load)
                if show:
                    print(f"\rround {number + 1}: {self.line()}", end="", flush=True)
                if self.broken or time.monotonic() - began > seconds_max:
                    break
        finally:
            try:
                if load is not None:
                    load.stop()
            finally:
                self.node.kill()
                if show:
                    print()

    def line(self) -> str:
        return (
            f"{self.cuts} power cuts in {self.syncs:,} syncs, {self.ledger.acknowledged():,} records acknowledged, "
            f"{self.records:,} read back, {len(self.broken)} promises broken"
        )

    def _early_cut(self, syncs: list[Sync]) -> None:
        """The power fails between two syncs: promises heard before the second are owed."""
        cut = self.random.randrange(first_cut(syncs), len(syncs))
        folder = self.folder / "early"
        apply(syncs[:cut], folder)
        node = Served(folder, SETTINGS)
        node.start()
        try:
            self._audit(Audit(node.bootstrap, self.ledger, syncs[cut].at, remember=False))
        finally:
            node.kill()

    def _full_cut(self, syncs: list[Sync], load: Load) -> None:
        """The power fails with the kill; the clients go on against what is left."""
        self.node.folder.rename(self.folder / "before")
        apply(syncs, self.node.folder)
        self.node.start()
        load.pause()
        self._audit(Audit(self.node.bootstrap, self.ledger))
        load.go_on()
        if not self.broken:
            shutil.rmtree(self.folder / "before")

    def _audit(self, audit: Audit) -> None:
        self.broken += audit.run()
        self.records += audit.records
        self.cuts += 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.torture.cuts", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cuts", type=int, default=3, help="further cuts per round, at random syncs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60, help="stop after this time, whatever was reached")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="duramen-cuts-"))
    cuts = PowerCuts(folder, options.seed)
    cuts.run(options.rounds, options.cuts, options.minutes * 60, show=True)
    return verdict(cuts.broken, folder)


if __name__ == "__main__":
    sys.exit(main())
