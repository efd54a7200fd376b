"""`make torture-spark`: kills and injected failures of the way from topic to topic to table, and the figures of them.

    PYTHONPATH=.:tests/spark python -m spark_torture --rounds 3 --seed 1

Histories without Spark, a pipeline on local[2,4], one on a local cluster, the three pipelines of `proof`, then two
drivers and speculation. Each part has inputs of its own and ends with the comparison of what was written with them.
What happened is counted and printed at the end; the exit code is 1 when a part fails, or a count is below its figure.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from arrow_kills import ARROWS, CLUSTER, JVM, LOCAL, LOCAL_VICTIMS, VICTIMS, Round, Torture, failures, rounds_of
from proof import pipeline_kills
from proof.three_pipelines import PIPELINES
from tests.torture import sink_kills

from duramen.errors import DuramenError

KILLS_MIN, KILLS_EACH_MIN = 40, 3
"""In all; of each victim at each arrow."""
PROOF_KILLS_MIN = 20
"""Of each of the three pipelines."""
FAILURES_MIN = 260
SPARK, PLAYED = "real Spark", "Spark played"
"""A failure in a task or driver of Spark; one in the sink's code while `sink_histories` plays Spark's part. The node
is a real one in both."""
KINDS = (SPARK, PLAYED)
PARTS = ("histories", "local", "cluster", "shop", "clicks", "joins", "tests")
LONG_TESTS = ("two_drivers.py", "speculation.py")


@dataclass
class Figures:
    """What was done, what was compared, and what went wrong."""

    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By arrow and victim; each died while its pipeline stood on that arrow."""
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By point, and SPARK or PLAYED."""
    proof: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Kills by pipeline and victim."""
    node_kills: int = 0
    """In histories; some between two points, so they count for no arrow."""
    compared: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def missing(self) -> list[str]:
        """The counts that are below their figures."""
        found = []
        for arrow in ARROWS:
            few = [victim for victim in VICTIMS if self.kills[(arrow, victim)] < KILLS_EACH_MIN]
            told = ", ".join(f"{victim} {self.kills[(arrow, victim)]} of {KILLS_EACH_MIN}" for victim in few)
            found += [f"kills at {arrow}: {told}"] if few else []
        totals: tuple[tuple[str, int, int], ...] = (
            ("kills", self.kills.total(), KILLS_MIN),
            ("failures", self.failures.total(), FAILURES_MIN),
        )
        for name in PIPELINES:
            done = sum(count for (pipeline, _), count in self.proof.items() if pipeline == name)
            totals += ((f"kills of {name}", done, PROOF_KILLS_MIN),)
        return found + [f"{what}: {count} of {least}" for what, count, least in totals if count < least]

    def summary(self) -> str:
        points = [point for points in ARROWS.values() for point in points]
        points = list(dict.fromkeys([*points, *(point for point, _ in self.failures)]))
        lines = [
            f"kill -9 of who stood on the arrow, or of others while somebody did (at least {KILLS_EACH_MIN} each):",
            *table(ARROWS, VICTIMS, self.kills),
            f"kill -9 of the three pipelines (at least {PROOF_KILLS_MIN} each):",
            *table(PIPELINES, LOCAL_VICTIMS, self.proof),
            f"and {self.node_kills} kill -9 of the node anywhere in histories without Spark",
            f"failures injected at named points (at least {FAILURES_MIN}):",
            *table([p for p in points if self.failures[(p, SPARK)] + self.failures[(p, PLAYED)]], KINDS, self.failures),
            "compared:",
            *(f"  {told}" for told in self.compared),
            *(f"WRONG: {told}" for told in self.wrong),
            *(f"TOO FEW {told}" for told in self.missing()),
        ]
        return "\n".join(lines)


def table(rows: Iterable[str], columns: tuple[str, ...], counts: Counter[tuple[str, str]]) -> list[str]:
    """Lines of a table of counts, with its sums."""
    shown = list(rows)
    lines = [f"  {'':28}" + "".join(f"{column:>15}" for column in (*columns, "all"))]
    for row in shown:
        found = [counts[(row, column)] for column in columns]
        lines.append(f"  {row:28}" + "".join(f"{count:15}" for count in (*found, sum(found))))
    sums = [sum(counts[(row, column)] for row in shown) for column in columns]
    return [*lines, f"  {'all':28}" + "".join(f"{count:15}" for count in (*sums, sum(sums)))]


def histories(figures: Figures, kills: int, count: int, seed: int) -> None:
    """Without Spark: kills of the node and failures in the sink."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = sink_kills.torture(Path(folder), kills, count, seed)
    print(outcome.report(), flush=True)
    figures.node_kills += outcome.kills.total()
    figures.failures += Counter({(point, PLAYED): count for point, count in outcome.injected.items()})
    assert not outcome.wrong, outcome.wrong
    figures.compared.append(
        f"{outcome.histories} histories: {outcome.rows:,} rows in; the topics have each of them once"
    )


def pipeline(figures: Figures, rounds: list[Round], master: str, seed: int) -> None:
    """With Spark: kills and failures at every arrow."""
    with tempfile.TemporaryDirectory() as folder:
        torture = Torture(Path(folder), seed, rounds, master)
        try:
            figures.compared.append(f"pipeline on {master}: {torture.run()}")
        finally:
            torture.close()
            figures.kills += torture.done
            figures.failures += Counter({(point, SPARK): count for point, count in torture.failed.items()})


def proof(figures: Figures, name: str, kills: int, seed: int) -> None:
    """One of the three pipelines."""
    with tempfile.TemporaryDirectory() as folder:
        torture = pipeline_kills.torture(Path(folder), name, kills, seed)
        try:
            figures.compared.append(f"{name}: {torture.run()}")
        finally:
            torture.close()
            for (_, victim), count in torture.done.items():
                figures.proof[(name, victim)] += count


def long_tests(figures: Figures) -> None:
    """Two live drivers on one checkpoint; two attempts of one task."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *(str(here / name) for name in LONG_TESTS)], cwd=here.parents[1], check=False)
    assert done.returncode == 0, f"{' and '.join(LONG_TESTS)} ended with {done.returncode}"
    figures.compared.append("two drivers on one checkpoint, and speculation: the topic has each row once")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3, help="of each victim at each arrow")
    options.add_argument("--failures", type=int, default=3, help="at each point, with Spark")
    options.add_argument("--played-kills", type=int, default=40, help="of the node, without Spark")
    options.add_argument("--played-failures", type=int, default=300, help="without Spark")
    options.add_argument("--proof-kills", type=int, default=20, help="of each of the three pipelines")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts; then counts are missing")
    given = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # cleans up as Ctrl-C does
    figures = Figures()
    local = rounds_of(given.rounds, LOCAL_VICTIMS) + failures(given.failures)
    cluster = rounds_of(given.rounds, (JVM,))
    parts: dict[str, Callable[[], None]] = {
        "histories": lambda: histories(figures, given.played_kills, given.played_failures, given.seed),
        "local": lambda: pipeline(figures, local, LOCAL, given.seed),
        "cluster": lambda: pipeline(figures, cluster, CLUSTER, given.seed),
        **{name: lambda name=name: proof(figures, name, given.proof_kills, given.seed) for name in PIPELINES},
        "tests": lambda: long_tests(figures),
    }
    began = time.monotonic()
    try:
        for name in given.only:
            part_began = time.monotonic()
            try:
                parts[name]()
            except (AssertionError, DuramenError, OSError, subprocess.SubprocessError) as failure:
                figures.wrong.append(f"{name}: {failure}")
            print(f"{name}: {time.monotonic() - part_began:.0f} s", flush=True)
    finally:
        print(f"\n{figures.summary()}\nseed {given.seed}, {time.monotonic() - began:.0f} s", flush=True)
    raise SystemExit(bool(figures.wrong or figures.missing()))


if __name__ == "__main__":
    main()
