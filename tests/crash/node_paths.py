"""Write paths that begin at a client's request: topics, group offsets, producer ids, idempotent batches, sinks."""

from __future__ import annotations

from collections.abc import Callable

from tests.crash.node_run import NodeRun
from tests.crash.node_sink import SinkRun


def topics(run: NodeRun, seed: int) -> None:
    """Topics are created, written to, deleted and created again."""
    run.begin()
    run.create("a")
    run.settle()
    run.produce("a", b"one", b"two")
    run.create("b")
    run.settle()
    run.produce("b", b"three")
    run.delete("a")
    run.settle()
    run.create("a")
    run.settle()
    run.produce("a", b"four %d" % seed)
    run.settle()
    run.server.pass_ms(70_000)
    run.delete("b")
    run.settle()


def group_offsets(run: NodeRun, seed: int) -> None:
    """A group's positions, first ones and later ones, two groups at once."""
    run.create("a")
    run.settle()
    run.begin()
    run.produce("a", *[b"%d" % number for number in range(5)])
    run.find_coordinator("readers")
    run.settle()
    run.commit("readers", "a", 1)
    run.settle()
    run.commit("readers", "a", 2)
    run.commit("others", "a", 3)
    run.settle()
    run.server.pass_ms(61_000)
    run.commit("readers", "a", 4)
    run.produce("a", b"5 %d" % seed)
    run.settle()
    run.commit("readers", "a", 5)
    run.settle()


def producer_id_blocks(run: NodeRun, seed: int) -> None:
    """Producer ids are handed out across the end of a block and across a restart."""
    run.create("a")
    run.settle()
    run.begin()
    for _ in range(3):
        run.producer_id()
    run.settle()
    source = run.server.broker.producer_ids
    source._next = source._end - 1  # the rest of the block is handed out to others
    run.producer_id()
    run.producer_id()
    run.settle()
    run.produce("a", b"one %d" % seed, producer=(1, 0))
    run.settle()
    run.server.broker.store.close(clean=False)
    run.disk.end_process()
    run.start()
    run.producer_id()
    run.settle()


def idempotent_batches(run: NodeRun, seed: int) -> None:
    """Five batches in flight of one producer, records deleted in between."""
    run.create("a")
    run.settle()
    run.begin()
    for number in range(5):
        run.produce("a", b"%d" % number + bytes(100 + seed % 50), producer=(7, number))
    run.settle()
    run.delete_records("a", 3)
    run.settle()
    for number in range(5, 8):
        run.produce("a", b"%d" % number, producer=(7, number))
    run.settle()


def clean_stop_of_a_node(run: NodeRun, seed: int) -> None:
    """A broker stops cleanly and starts again."""
    run.create("a")
    run.settle()
    run.produce("a", b"one %d" % seed)
    run.find_coordinator("readers")
    run.settle()
    run.commit("readers", "a", 1)
    run.begin()
    run.server.broker.stop(lambda: None)
    run.settle()
    run.disk.end_process()
    run.start()
    run.produce("a", b"two")
    run.settle()


def sink_batches(run: NodeRun, seed: int) -> None:
    """A sink stages, commits, and is taken over by its next run; its records are moved and its staging is let go."""
    run.create("a")
    run.settle()
    sink = SinkRun(run, "a")
    sink.claim("first run")
    run.begin()
    sink.stage(0, b"one", b"two")
    sink.stage(0, b"not meant", meant=False)
    sink.stage(0, b"three")
    sink.commit(0)
    run.produce("a", b"somebody else's %d" % seed)
    run.settle()
    sink.stage(1, b"four" + bytes(100 + seed % 50))
    sink.commit(1)
    run.server.pass_ms(3000)
    sink.stage(2, b"lost with its run", meant=False)
    sink.claim("second run")
    sink.stage(2, b"five", b"six")
    sink.commit(2)
    run.server.pass_ms(61_000)
    sink.stage(3, b"seven")
    sink.commit(3)


NODE_PATHS: dict[str, Callable[[NodeRun, int], None]] = {
    path.__name__: path
    for path in (topics, group_offsets, producer_id_blocks, idempotent_batches, sink_batches, clean_stop_of_a_node)
}
