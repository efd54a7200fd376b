"""Runs of transactional list-append: clients of both generations and nodes are killed, and the history is searched.

    python -m tests.torture.histories --runs 15 --seconds 60 --nodes 1 --seed 7

Two clients are confluent-kafka's (first generation of transactions) and two Kafka's own (second, where the nodes have
it), from Java where there is a compiler. In every other run the clients keep each other off a partition until its
transaction has ended; see `append_history` for what that lets one ask.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.kafka_peer import ROOT, PeerUnavailableError, jars, java_command
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.torture.append_history import (
    Append,
    Found,
    History,
    Life,
    Moved,
    Operation,
    Outcome,
    Read,
    Transaction,
    find,
)
from tests.torture.committed import content
from tests.torture.copier import QUIET
from tests.torture.exactly_once import QUICK, TRIO
from tests.torture.kills import SETTINGS
from tests.torture.ledger import SECONDS, verdict
from tests.torture.nodes import CLUSTER
from tests.torture.programs import Program
from tests.worlds.controller_trio import ControllerTrio
from tests.worlds.served_node import Served

KEYS = 5
SOURCE = Path(__file__).with_name("AppendClient.java")
CLASSES = ROOT / ".cache" / "append-client"
STOP_SECONDS = 60.0
STABLE_SECONDS = 60.0


def java_words() -> list[str] | None:
    """The command of the Java client without its arguments, compiled where it has changed; None without a compiler."""
    compiler = shutil.which("javac")
    if compiler is None:
        return None
    try:
        libraries = f"{jars()}{os.sep}*"
        words = java_command("AppendClient", flags=("-Xmx128M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"))
    except PeerUnavailableError:
        return None
    stamp = CLASSES / "AppendClient.class"
    if not stamp.exists() or stamp.stat().st_mtime < SOURCE.stat().st_mtime:
        CLASSES.mkdir(parents=True, exist_ok=True)
        subprocess.run([compiler, "-cp", libraries, "-d", str(CLASSES), str(SOURCE)], check=True, timeout=120)
    words[words.index("-cp") + 1] += f"{os.pathsep}{CLASSES}"
    return words


class AppendProgram(Program):
    """One producer, life after life."""

    def __init__(
        self, number: int, words: list[str], folder: Path, given: Callable[[str, int, Path], list[str]]
    ) -> None:
        super().__init__(f"producer-{number}", folder)
        self.words = words
        self.folder = folder
        self.given = given
        self.life = 0

    def notes(self, life: int) -> Path:
        return self.folder / f"{self.name}.{life}.notes"

    def command(self) -> list[str]:
        self.life += 1
        return [*self.words, *self.given(self.name, self.life, self.notes(self.life))]


class AppendRun:
    """One run: nodes, clients, faults, and the history that is left."""

    def __init__(self, folder: Path, seed: int, *, nodes: int, alone: bool, java: bool = True) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.alone = alone
        self.trio: ControllerTrio | None = None
        if nodes == 1:
            (folder / "node").mkdir()
            self.nodes = [Served(folder / "node", SETTINGS | QUICK)]
        else:
            self.trio = ControllerTrio(folder, SETTINGS | CLUSTER | QUICK | TRIO, nodes=nodes)
            self.nodes = list(self.trio.nodes)
        self.bootstrap = ",".join(node.bootstrap for node in self.nodes)
        self.topic = "lists"
        (folder / "locks").mkdir()
        locks = str(folder / "locks") if alone else "-"
        python = [sys.executable, "-m", "tests.torture.append_client"]
        second = (java_words() if java else None) or python

        def given(name: str, life: int, notes: Path) -> list[str]:
            return [self.bootstrap, self.topic, str(KEYS), name, str(life), str(notes), locks, str(seed)]

        kinds = [python, second, python, second]
        self.clients = [AppendProgram(number, words, folder, given) for number, words in enumerate(kinds, 1)]
        self.zombies: list[subprocess.Popen[bytes]] = []
        self.faults: Counter[str] = Counter()
        self.broken: list[str] = []
        self.history: History | None = None

    def run(self, seconds: float) -> None:
        if self.trio is not None:
            self.trio.form()
            self.trio.whole()
        else:
            self.nodes[0].start()
        try:
            admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
            topic = NewTopic(self.topic, KEYS, min(3, len(self.nodes)))
            admin.create_topics([topic])[self.topic].result(60)
            for client in self.clients:
                client.start()
            until = time.monotonic() + seconds
            while time.monotonic() < until and not self.broken:
                time.sleep(self.random.uniform(0.5, 4.0))
                self._fault()
                self._look()
            self._stop()
            if not self.broken:
                self.history = self._history()
                found = find(self.history, alone=self.alone, steady=self.trio is None)
                self.broken += [f"{each.kind}: {each.said}" for each in found]
        except (AssertionError, KafkaException) as error:
            self.broken.append(str(error))
        finally:
            for client in self.clients:
                client.kill()
            for zombie in self.zombies:
                zombie.kill()
                zombie.wait()
            for node in self.nodes:
                node.kill()

    def line(self) -> str:
        if self.history is None:
            return "no history"
        outcomes = Counter(each.outcome.value for each in self.history.transactions)
        values = sum(len(list(each.appends())) for each in self.history.transactions)
        reads = sum(len(list(each.reads())) for each in self.history.transactions)
        told = ", ".join(f"{count} {what}" for what, count in [*sorted(outcomes.items()), *sorted(self.faults.items())])
        fenced, stuck = sum(each.fenced for each in self.clients), sum(each.stuck for each in self.clients)
        ended = f"{fenced} times a client was fenced, {stuck} times its library stuck"
        return f"{told}; {values} appends, {reads} reads; {ended}; {len(self.broken)} anomalies"

    # -- faults

    def _fault(self) -> None:
        kind = self.random.choice(("client killed", "client replaced", "node killed", "node paused"))
        self.faults[kind] += 1
        client, node = self.random.choice(self.clients), self.random.choice(self.nodes)
        if kind == "client killed":
            client.kill()
            client.start()
        elif kind == "client replaced":
            assert client.process is not None
            client.process.send_signal(signal.SIGSTOP)
            zombie = client.process
            client.start()
            # In its sleep it holds what locks it has: nobody else is to wait for long.
            time.sleep(self.random.uniform(0.2, 3.0))
            zombie.send_signal(signal.SIGCONT)
            self.zombies.append(zombie)
        elif kind == "node killed":
            node.kill()
            time.sleep(self.random.choice((0.0, self.random.uniform(0.0, 2.0))))
            node.launch()
        else:
            assert node.process is not None
            node.process.send_signal(signal.SIGSTOP)
            time.sleep(self.random.uniform(0.2, 3.0))
            node.process.send_signal(signal.SIGCONT)

    def _look(self) -> None:
        for node in self.nodes:
            if node.process is not None and node.process.poll() is not None:
                self.broken.append(f"a node ended by itself:\n{node.log()}")
        self.broken += [said for client in self.clients if (said := client.look())]

    # -- the end

    def _stop(self) -> None:
        """Each client ends its transaction; what dead ones left open is aborted by a last life of each id."""
        if self.trio is not None:
            self.trio.whole()
        for zombie in self.zombies:
            zombie.kill()
            zombie.wait()
        for client in self.clients:
            assert client.process is not None
            client.process.terminate()
        for client in self.clients:
            assert client.process is not None
            try:
                client.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.broken.append(f"{client.name} does not come to an end")
            client.kill()
            last = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": client.name, **QUIET})
            last.init_transactions(SECONDS)

    def _history(self) -> History:
        committed, written, until = {}, {}, time.monotonic() + STABLE_SECONDS
        for key in range(KEYS):
            while True:
                stable = content(self.bootstrap, self.topic, key)
                everything = content(self.bootstrap, self.topic, key, committed=False)
                if stable.end == everything.end:
                    break
                assert time.monotonic() < until, f"a transaction hangs in {key}: {stable.end} of {everything.end}"
                time.sleep(0.2)
            committed[str(key)] = tuple((each.offset, int(each.value)) for each in stable.records)
            written[str(key)] = tuple((each.offset, int(each.value)) for each in everything.records)
        transactions: list[Transaction] = []
        lives: dict[tuple[str, int], Life] = {}
        positions: dict[str, int] = {}
        for client in self.clients:
            for life in range(1, client.life + 1):
                path = client.notes(life)
                lines = path.read_text().splitlines() if path.exists() else []
                began, those = transactions_of(client.name, life, map(json.loads, lines))
                transactions += those
                if began is not None:
                    lives[client.name, life] = began
            group = f"g-{client.name}"
            asking = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, **QUIET})
            for place in _positions(asking, self.topic):
                positions[f"{group}/{place.partition}"] = max(place.offset, -1)
            asking.close()
        return History(transactions, committed, written, lives, positions)


def _positions(asking: Consumer, topic: str) -> list[TopicPartition]:
    """What the group has committed. A coordinator that loads, or waits for markers, is asked again."""
    deadline = time.monotonic() + SECONDS
    while True:
        places: list[TopicPartition] = asking.committed([TopicPartition(topic, key) for key in range(KEYS)], SECONDS)
        failed = next((place.error for place in places if place.error is not None), None)
        if failed is None:
            return places
        if time.monotonic() > deadline:
            raise KafkaException(failed)
        time.sleep(0.05)


def transactions_of(name: str, life: int, notes: Iterable[dict[str, Any]]) -> tuple[Life | None, list[Transaction]]:
    """The life, if InitProducerId was answered, and what its notes tell."""
    began: Life | None = None
    inits = 0
    waiting: list[Operation] = []
    appended: dict[int, tuple[str, int]] = {}
    offsets: dict[int, int] = {}
    open_: dict[str, dict[str, Any]] = {}
    for note in notes:
        event, at = note["e"], note["at"]
        key = str(note.get("key", ""))
        if event == "init":
            inits = at
        elif event == "life":
            began = Life(inits, at)
        elif event == "found":
            waiting.append(Found(f"g-{name}/{key}", note["offset"], note["asked"], at))
        elif event == "begin":
            open_[note["txn"]] = {"began": at, "asked": 0, "ended": 0, "commit": False, "said": None, "do": waiting}
            waiting = []
        elif event == "acked":
            offsets[note["value"]] = note["offset"]
        elif event in ("append", "read", "moved", "ask", "end"):
            into = open_[note["txn"]]
            if event == "append":
                into["do"].append(note["value"])
                appended[note["value"]] = (key, at)
            elif event == "read":
                records = tuple((offset, value) for offset, value in note["records"])
                into["do"].append(Read(key, note["start"], note["end"], records, note["asked"], at))
            elif event == "moved":
                into["do"].append(Moved(f"g-{name}/{key}", note["offset"]))
            elif event == "ask":
                into |= {"asked": at, "commit": note["commit"]}
            else:
                into |= {"ended": at, "said": Outcome(note["outcome"])}
    found = []
    for transaction, told in open_.items():
        outcome = told["said"] or (Outcome.UNKNOWN if told["commit"] else Outcome.ABORTED)
        operations: list[Operation] = []
        for each in told["do"]:
            if isinstance(each, int):
                at_key, sent = appended[each]
                each = Append(at_key, each, offsets.get(each, -1), sent)
            operations.append(each)
        found.append(
            Transaction(
                transaction, name, life, told["began"], told["asked"], told["ended"], outcome, tuple(operations)
            )
        )
    return began, found


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.torture.histories", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2), "big"))
    options = parser.parse_args()
    status = 0
    for number in range(options.seed, options.seed + options.runs):
        folder = Path(tempfile.mkdtemp(prefix="duramen-histories-"))
        run = AppendRun(folder, number, nodes=options.nodes, alone=number % 2 == 1)
        run.run(options.seconds)
        print(
            f"seed {number}, {options.nodes} nodes, {'alone' if run.alone else 'side by side'}: {run.line()}",
            flush=True,
        )
        status = max(status, verdict(run.broken, folder))
    return status


if __name__ == "__main__":
    sys.exit(main())
