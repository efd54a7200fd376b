"""Histories of a streaming query against a real node that is killed at the arrows of the staged commit.

    python -m tests.torture.sink_kills --kills 200 --seed 1

Spark's part is played by `sink_histories`; the sink, the protocol and the node are the real ones. At every point a
failure may be injected, and the node may be killed: at once, or a few milliseconds later, which before a commit means
anywhere between the request, the commit point and the moving of records. At the end of each history the log holds each
row once.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.worlds.served_node import Served
from tests.worlds.sink_histories import Faults, History

from duramen.client import CONTROLLER, EARLIEST, LATEST, Cluster
from duramen.model import TopicPartition
from duramen.spark.sink.sink_points import ALL, BEFORE_COMMIT
from duramen.wire.batch import batches, records
from duramen.wire.messages import API

CREATE_TOPICS = 19
BATCHES = 12
DELAYS_MS = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)


class Keeper:
    """A node that is started again whenever it dies."""

    def __init__(self, node: Served) -> None:
        self.node = node
        self._stopping = False
        self._thread = threading.Thread(target=self._watch)
        node.start()
        self._up = threading.Lock()
        """Free while the node is up: whoever holds it kills it, or has to start it."""
        self._thread.start()

    def kill(self) -> bool:
        """SIGKILL, now; False while it is down or starting, which `Served.start` could not tell from a failure."""
        if not self._up.acquire(blocking=False):
            return False
        try:
            process = self.node.process
            if process is None or process.poll() is not None:
                return False
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            return True
        finally:
            self._up.release()

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        self.node.kill()

    def _watch(self) -> None:
        while not self._stopping:
            with self._up:
                process = self.node.process
                if process is not None and process.poll() is not None:
                    self.node.process = None
                    self.node.start()
            time.sleep(0.005)


@dataclass
class Killer:
    """Kills the node at points, by chance."""

    keeper: Keeper
    random: random.Random
    chance: float
    kills: Counter[str] = field(default_factory=Counter)

    def __call__(self, point: str) -> None:
        chance = self.chance * (4 if point == BEFORE_COMMIT else 1)
        if self.random.random() >= chance:
            return
        delay_ms = self.random.choice(DELAYS_MS)
        if delay_ms:
            threading.Timer(delay_ms / 1000, self._kill, [f"{point} + some ms"]).start()
        else:
            self._kill(point)

    def _kill(self, point: str) -> None:
        if self.keeper.kill():
            self.kills[point] += 1


@dataclass
class Outcome:
    """What a run did and found."""

    histories: int = 0
    rows: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    fenced: int = 0
    wrong: list[str] = field(default_factory=list)

    def report(self) -> str:
        done = (
            f"{self.histories} histories, {self.rows} rows, {sum(self.kills.values())} kill -9 of the node, "
            f"{sum(self.injected.values())} injected failures, {self.fenced} times a superseded driver was refused"
        )
        lines = [done, f"{'point':16}{'kill -9':>9}{'some ms later':>15}{'failure':>9}"]
        for point in ALL:
            at_once, later = self.kills[point], self.kills[f"{point} + some ms"]
            lines.append(f"{point:16}{at_once:9}{later:15}{self.injected[point]:9}")
        return "\n".join([*lines, *(self.wrong or ["every row is in the log exactly once"])])


def create(bootstrap: str, topic: str, partitions: int) -> None:
    message = API[CREATE_TOPICS].request
    wanted = message.CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
    with Cluster(bootstrap) as cluster:
        answer = cluster.call(CONTROLLER, CREATE_TOPICS, message.new(topics=[wanted], timeout_ms=30_000))
    assert answer.topics[0].error_code in (0, 36), answer.topics[0].error_message  # 36: an answer was lost


def values(bootstrap: str, topic: str) -> Counter[bytes]:
    """Values of all records a reader sees."""
    found: Counter[bytes] = Counter()
    with Cluster(bootstrap) as cluster:
        for number in cluster.partitions(topic):
            tp = TopicPartition(topic, number)
            position = cluster.list_offsets({tp: EARLIEST})[tp].offset
            end = cluster.list_offsets({tp: LATEST}, 1)[tp].offset
            while position < end:
                data = cluster.fetch(tp, position, 1 << 20, 1).data
                for at, header in batches(data):
                    found.update(r.value or b"" for r in records(data[at:], header, max_bytes=1 << 24))
                    position = header.next_offset
    return found


def torture(folder: Path, kills: int, failures: int, seed: int, chance: float = 0.01) -> Outcome:
    """Histories until both numbers are reached or one goes wrong."""
    outcome = Outcome()
    keeper = Keeper(Served(folder))
    try:
        while not outcome.wrong and (sum(outcome.kills.values()) < kills or sum(outcome.injected.values()) < failures):
            number = seed * 100_000 + outcome.histories
            topic = f"history-{number}"
            create(keeper.node.bootstrap, topic, 3)
            killer = Killer(keeper, random.Random(number), chance if kills else 0.0)
            Faults.begin(number, 0.05, killer)
            options = {"kafka.bootstrap.servers": keeper.node.bootstrap, "topic": topic}
            options["kafka.request.timeout.ms"] = "5000"
            history = History(folder / topic, "torture", options, number)
            history.run(BATCHES)
            found = values(keeper.node.bootstrap, topic)
            if found != history.written:
                lost, doubled = history.written - found, found - history.written
                outcome.wrong.append(f"seed {number}: lost {dict(lost)}, doubled {dict(doubled)}")
            outcome.histories += 1
            outcome.rows += sum(found.values())
            outcome.injected += Faults.fired
            outcome.kills += killer.kills
            outcome.fenced += history.fenced
    finally:
        keeper.close()
    return outcome


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--failures", type=int, default=1000)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # cleans up as Ctrl-C does
    with tempfile.TemporaryDirectory() as folder:
        outcome = torture(Path(folder), given.kills, given.failures, given.seed)
    print(outcome.report())
    raise SystemExit(bool(outcome.wrong))


if __name__ == "__main__":
    main()
