"""Nodes, gateways, writers and readers of streams killed, paused and stopped under load; their ledgers outside.

    python -m tests.torture.streams --kills 200 --nodes 3 --seed 7

Two gateways stand in front of the nodes. Named writers send again until they are answered, writers without a name
append where they expect the end, others write keyed records to a topic; readers follow by server-sent events and by
long-polls, from positions that they keep themselves. At the end the streams are closed and everything is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic
from tests.torture.kills import SETTINGS, VARIED
from tests.torture.ledger import verdict
from tests.torture.stream_clients import JSON
from tests.torture.stream_ledgers import StoredRecord, StreamAudit, read_log
from tests.worlds.controller_trio import ControllerTrio, ServedController
from tests.worlds.served_gateway import HttpAnswer, ServedGateway
from tests.worlds.served_node import finding_tests

from duramen.client.blocking.connection import MAX_FRAME_BYTES, BlockingConnection
from duramen.client.protocol import metadata
from duramen.errors import DuramenError
from duramen.wire.messages import API

GATEWAYS = 2
STREAMS = ("torture/a", "torture/b", "torture/raced", "torture/owned")
RACED, OWNED = STREAMS[2:]
RECORDS, PARTITIONS = "torture.records", 3
GATEWAY_SETTINGS = {"gateway.request.timeout.ms": "8000", "gateway.long.poll.ms": "5000", "gateway.sse.ms": "20000"}
ENDED = (0, -signal.SIGTERM)
"""How a process ends that is asked to: the second, where it has not begun to listen for that."""
END_SECONDS = 180.0
"""By then all that was begun is over, behind the last fault."""
LOOK_SECONDS = 2.0
METADATA = 3
OUTAGE_SECONDS = 60.0

WEIGHTS = {
    "kill a leader": 8,
    "kill a node": 3,
    "pause a leader": 4,
    "pause a node": 2,
    "stop a leader": 4,
    "kill a gateway": 6,
    "pause a gateway": 4,
    "stop a gateway": 3,
    "kill writers": 5,
    "pause writers": 2,
    "kill readers": 5,
    "pause readers": 2,
    "kill all nodes": 1,
}
"""Kinds of faults and how often each is drawn."""


class StreamFault(NamedTuple):
    """What was done, and when."""

    kind: str
    at: float


class ClientProcess:
    """Some clients in a process, which can be started again."""

    def __init__(self, name: str, folder: Path, ports: list[int], actors: list[dict[str, Any]]) -> None:
        self.name = name
        self.folder = folder
        self.ports = ports
        self.actors = actors
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, seed: int) -> None:
        spec = {"folder": str(self.folder), "gateways": self.ports, "seed": seed, "actors": self.actors}
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.torture.stream_clients", json.dumps(spec)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=finding_tests(),
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def ends(self, until: float) -> str | None:
        """By itself; what is wrong if it does not."""
        assert self.process is not None
        try:
            status = self.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            return f"{self.name} do not end"
        log = (self.folder / f"{self.name}.log").read_text(errors="replace")
        return f"{self.name} ended with {status}:\n{log[-2000:]}" if status not in ENDED or log else None


class StreamTorture:
    """All processes of one run, and what was found. few: less load and fewer clients."""

    def __init__(self, folder: Path, seed: int, nodes: int = 3, *, few: bool = False) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        copies = str(min(3, nodes))
        settings = SETTINGS | {
            "default.replication.factor": copies,
            "min.insync.replicas": "2" if nodes > 2 else "1",
            "offsets.topic.replication.factor": copies,
        }
        self.settings = settings
        self.copies = int(copies)
        self.cluster = ControllerTrio(folder, settings, nodes=nodes)
        self.gateways: list[ServedGateway] = []
        for number in range(GATEWAYS):
            place = folder / f"gateway{number}"
            place.mkdir()
            self.gateways.append(ServedGateway(place, self.cluster.bootstrap, GATEWAY_SETTINGS))
        self.specs = _specs(few)
        ports = [gateway.port for gateway in self.gateways]
        self.clients = {
            name: ClientProcess(name, folder, ports, [each for each in self.specs if each["home"] == name])
            for name in (*WRITERS, *READERS)
        }
        self.faults: list[StreamFault] = []
        self.broken: list[str] = []
        self.audit: StreamAudit | None = None
        self.began = time.monotonic()
        self._said = 0.0
        self._away: set[int] = set()
        """Nodes that are down, paused, or not long back."""
        self._starting: set[int] = set()
        """Gateways that are down, by port."""
        self._paused: set[int] = set()
        """By process id."""
        self._back: list[tuple[float, Callable[[], None]]] = []
        """What comes to an end when."""

    # ---- one run -----------------------------------------------------------------------------------------------

    def run(self, kinds: Sequence[str], seconds_max: float, *, show: bool = True, is_calm: bool = False) -> None:
        """These faults, then the checks. is_calm: each when all is well again."""
        self.show = show
        try:
            self._begin()
            for kind in kinds:
                if self.broken or time.monotonic() - self.began > seconds_max:
                    break
                self._pass(self.random.uniform(0.3, 3.5) if show else 0.5)
                if is_calm:
                    while self._back:
                        self._pass(0.2)
                    self.cluster.whole()
                    self._pass(2.0)
                while not self._inflict(kind):
                    self._pass(0.2)
                self._look_at_processes()
            self._end()
        finally:
            for client in self.clients.values():
                if client.process is not None:
                    client.kill()
            for gateway in self.gateways:
                gateway.kill()
            self.cluster.kill()

    def _begin(self) -> None:
        self.cluster.form()
        self.cluster.launch()
        self.cluster.whole()
        for gateway in self.gateways:
            gateway.start()
        for stream in STREAMS:
            exclusive = {"stream_exclusive": "true"} if stream == OWNED else {}
            self._ask("PUT", f"/v1/stream/{stream}", content_type=JSON, **exclusive)
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        config = {"duramen.ack.durability": "page-cache"}
        made = admin.create_topics([NewTopic(RECORDS, PARTITIONS, self.copies, config=config)])
        made[RECORDS].result(60)
        for client in self.clients.values():
            client.start(self.random.getrandbits(32))
        self.began = time.monotonic()
        self._pass(1.0)

    def _end(self) -> None:
        """Everything goes on; writers end, streams are closed, readers come to the end of them."""
        while self._back or self._starting:
            self._pass(0.2)
        until = time.monotonic() + END_SECONDS
        for name in WRITERS:
            process = self.clients[name].process
            assert process is not None
            process.terminate()
        for name in WRITERS:
            self._note(self.clients[name].ends(until))
        self.say("writers have ended")
        for stream in STREAMS:
            writer = {}
            if stream == OWNED:
                told = self._ask("PUT", f"/v1/stream/{stream}/.writer").json()
                writer = {"stream_writer": str(told["writer"])}
            self._ask("POST", f"/v1/stream/{stream}", content_type=JSON, stream_closed="true", **writer)
        for name in READERS:
            self._note(self.clients[name].ends(until))
        self.say("readers have ended")
        self.cluster.whole()
        logs: dict[tuple[str, int], list[StoredRecord]] = {}
        for topic, partitions in [(stream.replace("/", "."), 1) for stream in STREAMS] + [(RECORDS, PARTITIONS)]:
            for partition in range(partitions):
                logs[topic, partition] = read_log(self.cluster.bootstrap, topic, partition)
        self.audit = StreamAudit(self.folder, self.specs)
        self.broken += self.audit.check(logs)

    def _note(self, wrong: str | None) -> None:
        if wrong:
            self.broken.append(wrong)

    def _ask(self, method: str, path: str, **headers: str) -> HttpAnswer:
        """By some gateway, until it is done."""
        until = time.monotonic() + END_SECONDS
        while True:
            try:
                answer = self.random.choice(self.gateways).ask(method, path, **headers)
            except (OSError, AssertionError):
                answer = HttpAnswer(503, {}, b"")
            if answer.status < 300:
                return answer
            assert answer.status in (503, 504), answer
            assert time.monotonic() < until, answer
            time.sleep(0.2)

    # ---- faults ------------------------------------------------------------------------------------------------

    def draw(self, count: int) -> list[str]:
        """Kinds of faults."""
        return self.random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count)

    def _inflict(self, kind: str) -> bool:
        """Whether it was done: who is away is hit when he is back, and of three nodes two go on, mostly."""
        verb, _, what = kind.partition(" ")
        at = time.monotonic()
        if what == "all nodes":
            done = self._kill_all()
        elif what in ("a leader", "a node"):
            done = not self._away and self._hit_node(verb, self._leading() if what == "a leader" else self._any_node())
        elif what == "a gateway":
            done = self._hit_gateway(verb, self.random.choice(self.gateways))
        else:
            done = self._hit_clients(verb, self.clients[self.random.choice(WRITERS if what == "writers" else READERS)])
        if done:
            self.faults.append(StreamFault(kind, at))
        return done

    def _any_node(self) -> ServedController:
        return self.random.choice(self.cluster.nodes)

    def _kill_all(self) -> bool:
        if self._away:
            return False
        for node in self.cluster.nodes:
            node.kill()
        for node in self.cluster.nodes:
            self._launch(node)
        return True

    def _hit_node(self, verb: str, node: ServedController) -> bool:
        self._away.add(node.id)
        if verb == "pause":
            self._pause(node.process, self.random.choice((1.0, 4.0, 14.0)), lambda: self._away.discard(node.id))
            return True
        if verb == "stop":
            status = node.stop()
            if status not in ENDED:
                self.broken.append(f"node {node.id}: a clean stop ended with {status}:\n{node.log()}")
        else:
            node.kill()
        self._later(self.random.uniform(0.0, 2.0), lambda: self._launch(node))
        return True

    def _launch(self, node: ServedController) -> None:
        changed = {name: self.random.choice(values) for name, values in VARIED.items()}
        node.configure(self.cluster.nodes, self.settings | changed)
        node.launch()
        self._later(self.random.uniform(0.5, 4.0), lambda: self._away.discard(node.id))

    def _hit_gateway(self, verb: str, gateway: ServedGateway) -> bool:
        if gateway.port in self._starting or gateway.process is None or gateway.process.pid in self._paused:
            return False
        if verb == "pause":
            self._pause(gateway.process, self.random.choice((1.0, 5.0, 12.0)))
            return True
        if verb == "stop":
            status = gateway.stop()
            if status not in ENDED:
                self.broken.append(f"a gateway's clean stop ended with {status}:\n{gateway.log()[-2000:]}")
        else:
            gateway.kill()
        self._starting.add(gateway.port)
        self._later(
            self.random.uniform(0.0, 2.0), lambda: threading.Thread(target=self._begin_anew, args=[gateway]).start()
        )
        return True

    def _begin_anew(self, gateway: ServedGateway) -> None:
        """In a thread: it waits for a node that may be down meanwhile."""
        try:
            gateway.start()
        except (OSError, AssertionError) as error:
            self.broken.append(f"a gateway does not start: {error}")
        self._starting.discard(gateway.port)

    def _hit_clients(self, verb: str, client: ClientProcess) -> bool:
        if verb == "pause":
            self._pause(client.process, self.random.choice((1.0, 5.0)))
            return True
        client.kill()
        client.start(self.random.getrandbits(32))
        return True

    def _pause(
        self, process: subprocess.Popen[bytes] | None, seconds: float, behind: Callable[[], None] = lambda: None
    ) -> None:
        if process is None:
            return
        process.send_signal(signal.SIGSTOP)
        self._paused.add(process.pid)

        def go_on() -> None:
            process.send_signal(signal.SIGCONT)
            self._paused.discard(process.pid)
            behind()

        self._later(seconds, go_on)

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        self._back.append((time.monotonic() + seconds, what))

    def _pass(self, seconds: float) -> None:
        """Let time pass, in which what was stopped goes on when its time has come."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            due = [each for each in self._back if each[0] <= now]
            self._back = [each for each in self._back if each[0] > now]
            for _, what in due:
                what()
            if now >= until:
                break
            time.sleep(min(0.05, until - now))
        if self.show and time.monotonic() - self._said > 5:
            self._said = time.monotonic()
            self.say(self.line())

    def _look_at_processes(self) -> None:
        """Nobody ends by itself."""
        for node in self.cluster.nodes:
            if node.process is not None and node.process.poll() is not None:
                self.broken.append(f"node {node.id} ended by itself:\n{node.log()}")
        for gateway in self.gateways:
            if gateway.process is not None and gateway.process.poll() is not None:
                self.broken.append(f"a gateway ended by itself:\n{gateway.log()[-2000:]}")
        for client in self.clients.values():
            if client.process is not None and client.process.poll() is not None:
                self._note(client.ends(time.monotonic()) or f"{client.name} ended before their time")

    def _leading(self) -> ServedController:
        """The node that leads most of what is written to."""
        for node in self.random.sample(self.cluster.nodes, len(self.cluster.nodes)):
            if node.process is None:
                continue
            until = time.monotonic() + LOOK_SECONDS
            try:
                connection = BlockingConnection("127.0.0.1", node.port, "torture", until, MAX_FRAME_BYTES)
                try:
                    answer = connection.call(METADATA, metadata.request(API[METADATA].request, None), until)
                finally:
                    connection.close()
            except (DuramenError, OSError):
                continue
            leaders = Counter(part.leader_id for topic in answer.topics for part in topic.partitions)
            leaders.pop(-1, None)
            if leaders:
                return self.cluster.node(leaders.most_common(1)[0][0])
        return self.random.choice(self.cluster.nodes)

    # ---- what is said ------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        if self.show:
            print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    def line(self) -> str:
        sizes = sum(path.stat().st_size for path in self.folder.glob("*.jsonl"))
        last = self.faults[-1].kind if self.faults else "none"
        return f"{len(self.faults)} faults, the last one: {last}; {sizes / 1e6:.1f} MB of ledgers"

    def outages(self) -> dict[str, list[float]]:
        """By kind of fault: for how long the named writer that waited longest heard nothing, around each."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        assert self.audit is not None
        named = [self.audit.acks[spec["name"]] for spec in self.specs if spec["kind"] == "named"]
        for fault in self.faults:
            longest = 0.0
            for acks in named:
                before = max((at for at in acks if at <= fault.at), default=fault.at)
                after = min((at for at in acks if at > fault.at), default=fault.at)
                longest = max(longest, min(after - before, OUTAGE_SECONDS))
            found[fault.kind].append(longest)
        return found

    def table(self) -> None:
        assert self.audit is not None
        print(f"{'fault':20} {'times':>5}  silence for the named writer that waits longest: median, most")
        for kind, seconds in sorted(self.outages().items()):
            print(f"{kind:20} {len(seconds):5}  {median(seconds):6.2f} s {max(seconds):6.2f} s")
        for what, count in sorted(self.audit.acknowledged.items()):
            print(f"{count:9,} records acknowledged {what}")
        print(
            f"{self.audit.delivered:9,} records delivered to readers; {self.audit.open} appends left open; "
            f"{self.audit.opened} openings"
        )
        print(f"{len(self.broken)} promises broken in {time.monotonic() - self.began:.0f} s")


WRITERS = ("writers", "other writers")
READERS = ("event readers", "polling readers")
HOMES = {
    "named": WRITERS[:1],
    "records": WRITERS[:1],
    "expecting": WRITERS[1:],
    "exclusive": WRITERS,
    "sse": READERS[:1],
    "poll": READERS[1:],
}
"""In which processes they live."""


def _specs(few: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def add(kind: str, stream: str, count: int, path: str = "") -> None:
        for number in range(1 if few and kind != "exclusive" else count):
            name, topic = f"{kind}-{stream.rpartition('/')[2]}-{number}", stream.replace("/", ".")
            home = HOMES[kind][number % len(HOMES[kind])]
            path = path or f"/v1/stream/{stream}"
            found.append({"kind": kind, "name": name, "path": path, "topic": topic, "home": home})

    for stream in STREAMS:
        kind, count = {RACED: ("expecting", 3), OWNED: ("exclusive", 2)}.get(stream, ("named", 3))
        add(kind, stream, count)
        add("sse", stream, 3)
        add("poll", stream, 2)
    add("records", RECORDS, 2, f"/v1/topics/{RECORDS}/records")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.torture.streams", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2), "big"))
    parser.add_argument("--only", choices=list(WEIGHTS), help="faults of this kind, on a cluster that is whole again")
    parser.add_argument("--minutes", type=float, default=30, help="no further faults after this time")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="duramen-torture-streams-"))
    print(f"seed {options.seed}, {options.nodes} nodes, {options.kills} faults, in {folder}", flush=True)
    torture = StreamTorture(folder, options.seed, options.nodes)
    try:
        kinds = torture.draw(options.kills) if options.only is None else [options.only] * options.kills
        torture.run(kinds, options.minutes * 60, is_calm=options.only is not None)
    except KeyboardInterrupt:
        print("ended by hand", file=sys.stderr)
        return 130
    torture.table()
    return verdict(torture.broken, folder)


if __name__ == "__main__":
    sys.exit(main())
