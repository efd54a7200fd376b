"""A broker, and a log embedded in a program, with one failing disk call."""

from __future__ import annotations

import gc
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast
from unittest.mock import patch

from tests.crash.call_sites import Site
from tests.crash.node_run import NodeRun, check_node
from tests.crash.node_sink import SinkRun
from tests.crash.promises import PromiseBrokenError, require
from tests.crash.states import final_states
from tests.crash.watched import Fault, WatchedDisk

from duramen.embedded import Record, open_log
from duramen.embedded import log as embedded_log
from duramen.embedded import world as embedded_world
from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.ports import FileSpan
from duramen.server.net.os_ports import SendQuantum, SocketTransport
from duramen.storage.read.tail_cache import LARGEST_BYTES

PATIENCE_MS = 40_000
"""By then every request is answered, whatever its own time-out."""
SECONDS = 60.0


def everything(run: NodeRun, seed: int) -> None:
    """A broker's life: topics, records, groups, producer ids, look-ups, a clean stop and another start."""
    run.create("a")
    run.settle()
    run.produce("a", b"one", b"two")
    run.find_coordinator("readers")
    run.settle()
    run.commit("readers", "a", 1)
    run.producer_id()
    run.settle()
    run.server.pass_ms(61_000)
    run.create("b", duramen_ack_durability="page-cache", flush_messages="1")
    run.settle()
    run.produce("b", b"three")
    run.delete_records("a", 1)
    run.settle()
    run.ask(35, 4, lambda reply: None, topics=None)
    run.settle()
    for number in range(6):
        run.create(f"more{number}")
        run.settle()
    run.server.pass_ms(5000)
    run.delete("b")
    run.settle()
    run.server.pass_ms(70_000)
    run.server.broker.stop(lambda: None)
    run.settle()
    run.disk.end_process()
    unfinished = f"/data/__cluster_metadata-0/{1:020}-{1:010}.checkpoint.part"
    run.disk.inner.open(unfinished, create=True, write=True).close()  # type: ignore[attr-defined]
    run.start()
    run.produce("a", b"four")
    run.commit("readers", "a", 2)
    run.settle()
    run.server.broker.groups.unload(KafkaError(ErrorCode.NOT_COORDINATOR, "unloaded"))
    run.server.broker.groups.load_all()  # it replays what is in memory now
    run.settle()
    run.commit("readers", "a", 3)
    run.settle()


def sinks(run: NodeRun, seed: int) -> None:
    """A sink stages and commits, also what it staged before a restart: from files, from memory, and from the disk."""
    run.create("a")
    run.settle()
    sink = SinkRun(run, "a")
    sink.claim("first run")
    if not sink.claimed:
        return
    sink.stage(0, b"one", b"two")
    sink.stage(0, b"three")
    sink.commit(0)
    run.server.pass_ms(3000)
    sink.stage(1, b"four")
    run.server.broker.stop(lambda: None)
    run.settle()
    run.disk.end_process()
    run.start()
    run.disk.cold = True  # type: ignore[attr-defined]
    sink.commit(1)
    run.server.pass_ms(3000)
    run.disk.cold = False  # type: ignore[attr-defined]


def node_trial(path: Callable[[NodeRun, int], None], fault: Fault | None = None) -> Counter[Site]:
    """Run a broker's write path; returns the sites it came through."""
    disk = WatchedDisk(fault=fault)
    run = NodeRun(disk)  # type: ignore[arg-type]
    run.may_refuse = fault is not None
    try:
        run.start()
        path(run, 1)
    except (OSError, DuramenError) as error:
        # A start that fails: the process says why and ends. Nothing else of a broker raises.
        told = f"{type(error).__name__}: {error}"
        require(fault is not None and fault.happened and not run.serving, f"the broker raised {told}")
    if run.serving:
        run.server.pass_ms(PATIENCE_MS)
        run.settle()
        require(run.unanswered == 0 or run.line.closed, f"{run.unanswered} requests were never answered")
        _reads_go_on(run, fault)
    hits = disk.watch.hits.copy()
    disk.watch.fault = None
    promise = run.promise
    del run
    gc.collect()
    for state in final_states(disk.tape, promise):
        check_node(state)
    return hits


def _reads_go_on(run: NodeRun, fault: Fault | None) -> None:
    """What was acknowledged is served, whether or not its directory takes writes; not what could not be loaded."""
    broker = run.server.broker
    for name, lives in run.promise.topics.items():
        topic = broker.image.topic(name)
        life = lives[-1]
        if topic is None or broker.store.offline_log(topic.id, 0) is not None:
            continue
        if life.stored and life.id == topic.id and not run.line.closed:
            found = _read_patiently(run, name, fault)
            for offset, value in life.stored.items():
                require(offset < life.start_asked or found.get(offset) == value, f"{name}: {offset} cannot be read")


def _read_patiently(run: NodeRun, name: str, fault: Fault | None) -> dict[int, bytes]:
    """Every record of a topic; once more when this very reading met the error."""
    earlier = fault is None or fault.happened
    try:
        return run.records(name)
    except PromiseBrokenError:
        if earlier:
            raise
        return run.records(name)


def transport_trial(fault: Fault | None = None) -> Counter[Site]:
    """A reply whose few stored bytes are read into it; the connection's loop is told of an error."""
    disk = WatchedDisk({"f": b"stored bytes"}, fault)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = SocketTransport(cast(Any, None), ours, "peer", SendQuantum())
        span = FileSpan(disk.open("/f"), 7, 5)
        try:
            sent = transport.send([b"reply:", span])
            require(theirs.recv(100) == b"reply:bytes" and sent == 11, "not what was stored")
        except OSError:
            require(fault is not None and fault.happened, "an error that nobody planned")
    return disk.watch.hits


def embedded_trial(fault: Fault | None = None) -> Counter[Site]:
    """A program's own log: written, read, truncated, closed and opened again."""
    disk = WatchedDisk(fault=fault)
    stored: dict[int, bytes] = {}
    start = [0]
    with patch.object(embedded_world, "RealDisk", lambda: disk), patch.object(embedded_log, "RealDisk", lambda: disk):
        for _ in range(2):
            try:
                _use(stored, start)
            except DuramenError as error:
                told = f"{type(error).__name__}: {error}"
                require(fault is not None and fault.happened, f"an error that nobody planned: {told}")
            gc.collect()
            disk.end_process()
        hits = disk.watch.hits.copy()
        disk.watch.fault = None
        with open_log("/data") as log:
            found = {record.offset: record.value for record in log.topic("t").read(0)} if stored else {}
        for offset, value in stored.items():
            require(offset < start[0] or found.get(offset) == value, f"the record at {offset} is lost")
    return hits


def _use(stored: dict[int, bytes], start: list[int]) -> None:
    log = open_log("/data", {"log.segment.bytes": str(1 << 20), "duramen.journal.part.bytes": str(1 << 16)})
    try:
        topic = log.topic("t")
        for number in range(3):
            value = b"%d" % (len(stored) + number)
            if number == 0:
                value += bytes(LARGEST_BYTES)  # is read from the file
            future: Future[list[int]] = topic.append_async([Record(value)], 0)
            stored[future.result(SECONDS)[0]] = value
        list(topic.read(0))
        start[0] = max(start[0], topic.end_offset(0) - 2)
        topic.truncate(0, start[0])
    finally:
        log.close()
