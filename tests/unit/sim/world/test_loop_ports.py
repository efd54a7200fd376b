"""Virtual time, lanes, connections and a node's deaths behave as the ports promise, and repeat under their seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from duramen.ports import FileSpan, Transport, World
from duramen.sim.world.disk import CrashDisk
from duramen.sim.world.executor import SimExecutor
from duramen.sim.world.loop import Process, SimClock, SimLoop
from duramen.sim.world.network import Conditions, SimNetwork, SimPort
from duramen.sim.world.node import SimNode


def drain(loop: SimLoop, seconds: float = 1000.0) -> None:
    loop.run(lambda: False, loop.now + seconds)


class TestLoop:
    def test_time_orders_and_the_seed_breaks_ties(self) -> None:
        def run(seed: int) -> list[str]:
            loop, process, seen = SimLoop(Random(seed)), Process("p"), []
            for name in "abcdef":
                loop.at(1.0, process, lambda name=name: seen.append(name))
            loop.at(0.5, process, lambda: seen.append("first"))
            drain(loop)
            return seen

        assert run(1) == run(1)
        assert run(1)[0] == "first"
        assert len({tuple(run(seed)) for seed in range(10)}) > 5

    def test_call_soon_keeps_the_order_and_comes_before_what_is_due(self) -> None:
        loop, process, seen = SimLoop(Random(3)), Process("p"), []
        clock = SimClock(loop, process, 1000)

        def first() -> None:
            for number in range(5):
                clock.call_soon(lambda number=number: seen.append(number))

        loop.at(0.0, process, first)
        loop.at(0.0, process, lambda: seen.append(-1))
        drain(loop)
        assert [number for number in seen if number >= 0] == [0, 1, 2, 3, 4]
        assert seen[0] == -1 or seen[-1] == -1

    def test_who_wakes_from_a_pause_looks_at_its_sockets_before_its_timers(self) -> None:
        loop, server, client = ports(1)
        seen: list[str] = []
        accepted: list[Transport] = []
        server.listen("h", 9092, accepted.append)
        caller = client.connect("h", 9092)
        drain(loop)

        def read() -> None:
            seen.append("socket")
            accepted[0].set_reader(None)

        accepted[0].set_reader(read)
        SimClock(loop, server.process, 0).call_later(1.0, lambda: seen.append("timer"))
        server.process.pause(loop.now + 5.0)
        loop.at(loop.now + 3.0, client.process, lambda: caller.send([b"x"]) and None)
        loop.run(lambda: False, loop.now + 4.9)
        assert seen == []
        drain(loop)
        assert seen == ["socket", "timer"]

    def test_call_last_comes_behind_all_that_is_soon(self) -> None:
        loop, process, seen = SimLoop(Random(3)), Process("p"), []
        clock = SimClock(loop, process, 1000)

        def first() -> None:
            clock.call_last(lambda: seen.append("last"))
            clock.call_soon(lambda: clock.call_soon(lambda: seen.append("soon")))

        loop.at(0.0, process, first)
        loop.at(0.0, process, lambda: seen.append("due"))
        drain(loop)
        assert [what for what in seen if what != "due"] == ["soon", "last"]
        assert "due" in (seen[0], seen[-1])

    def test_clocks(self) -> None:
        loop, process, seen = SimLoop(Random(3)), Process("p"), []
        clock = SimClock(loop, process, 5000)
        clock.call_later(2.5, lambda: seen.append((clock.monotonic(), clock.wall_ms())))
        clock.call_later(1.0, lambda: seen.append("cancelled")).cancel()
        drain(loop)
        assert seen == [(2.5, 7500)]

    def test_a_slow_disk_call_holds_back_later_events_in_order(self) -> None:
        loop, seen = SimLoop(Random(3)), []
        delays = [4.0]
        process = Process("p", cost=lambda: delays.pop() if delays else 0.0)
        other = Process("other")
        loop.at(1.0, process, lambda: seen.append((loop.now, "slow")))
        for number in range(5):
            loop.at(2.0 + number / 10, process, lambda number=number: seen.append((loop.now, number)))
        loop.at(2.0, other, lambda: seen.append((loop.now, "other")))
        drain(loop)
        assert seen == [(1.0, "slow"), (2.0, "other")] + [(5.0, number) for number in range(5)]

    def test_a_dead_process_does_nothing_more(self) -> None:
        loop, seen = SimLoop(Random(3)), []
        process = Process("p")
        loop.at(1.0, process, lambda: loop.forget(process))
        loop.at(2.0, process, lambda: seen.append("ghost"))
        drain(loop)
        loop.at(3.0, process, lambda: seen.append("ghost"))
        drain(loop)
        assert seen == []

    def test_run_stops_at_the_deadline(self) -> None:
        loop, process = SimLoop(Random(3)), Process("p")
        loop.at(10.0, process, lambda: None)
        assert loop.run(lambda: False, 5.0) is False
        assert loop.now == 5.0


class TestExecutor:
    def test_lanes_are_in_order_and_report_errors(self) -> None:
        loop, seen = SimLoop(Random(3)), []
        executor = SimExecutor(loop, Process("p"), Random(4))

        def fail() -> None:
            raise ValueError("no")

        executor.submit("a", lambda: seen.append("work") or 1, lambda result, error: seen.append((result, error)))
        executor.submit("a", fail, lambda result, error: seen.append((result, str(error))))
        assert seen == []
        drain(loop)
        assert seen == ["work", (1, None), (None, "no")]

    def test_lanes_run_side_by_side(self) -> None:
        orders = set()
        for seed in range(20):
            loop, seen = SimLoop(Random(seed)), []
            executor = SimExecutor(loop, Process("p"), Random(seed))
            for lane in ("a", "b"):
                for number in range(2):
                    executor.submit(lane, lambda: None, lambda *_, seen=seen, at=(lane, number): seen.append(at))
            drain(loop)
            assert seen.index(("a", 0)) < seen.index(("a", 1))
            assert seen.index(("b", 0)) < seen.index(("b", 1))
            orders.add(tuple(seen))
        assert len(orders) > 2

    def test_a_slow_disk_call_keeps_the_lane_but_not_the_loop(self) -> None:
        disk = CrashDisk()
        disk.latency = lambda call: 3.0
        loop, seen = SimLoop(Random(3)), []
        process = Process("p", cost=disk.take_delay)
        executor = SimExecutor(loop, process, Random(4), start_s=(1.0, 1.0))
        executor.submit("a", lambda: disk.exists("/"), lambda *_: seen.append(loop.now))
        loop.at(2.0, process, lambda: seen.append(loop.now))
        drain(loop)
        assert seen == [2.0, 4.0]


class Echo:
    """Sends back what it reads."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.waiting = bytearray()
        transport.set_reader(self.read)

    def read(self) -> None:
        buffer = bytearray(1000)
        count = self.transport.recv_into(memoryview(buffer))
        if count == 0:
            self.transport.close()
            return
        if count > 0:
            self.waiting += buffer[:count]
            self.write()

    def write(self) -> None:
        del self.waiting[: self.transport.send([bytes(self.waiting)])]
        self.transport.set_writer(self.write if self.waiting else None)


class Caller:
    """Sends bytes and collects what comes back."""

    def __init__(self, transport: Transport, data: bytes) -> None:
        self.transport = transport
        self.data = data
        self.got = bytearray()
        self.reads = 0
        self.error: OSError | None = None
        self.ended = False
        transport.set_writer(self.write)
        transport.set_reader(self.read)

    def write(self) -> None:
        try:
            self.data = self.data[self.transport.send([self.data[:10], self.data[10:]]) :]
        except OSError as error:
            self.error = error
            self.transport.set_writer(None)
        if not self.data:
            self.transport.set_writer(None)

    def read(self) -> None:
        buffer = bytearray(5000)
        try:
            count = self.transport.recv_into(memoryview(buffer))
        except OSError as error:
            self.error = error
            count = 0
        self.reads += 1
        if count == 0:
            self.ended = True
            self.transport.set_reader(None)
        else:
            self.got += buffer[: max(0, count)]


def ports(seed: int, **conditions: object) -> tuple[SimLoop, SimPort, SimPort]:
    loop = SimLoop(Random(seed))
    network = SimNetwork(loop, Random(seed), Conditions(**conditions))  # type: ignore[arg-type]
    return loop, SimPort(network, Process("server")), SimPort(network, Process("client"))


class TestNetwork:
    def test_bytes_arrive_complete_and_in_order_through_small_pipes(self) -> None:
        data = Random(1).randbytes(100_000)
        reads = set()
        for seed in range(10):
            loop, server, client = ports(seed, pipe_bytes=(500, 5000), partial=0.3)
            server.listen("h", 9092, Echo)
            caller = Caller(client.connect("h", 9092), data)
            drain(loop, 10000.0)
            assert bytes(caller.got) == data
            reads.add(caller.reads)
        assert len(reads) > 5

    def test_a_pipe_is_bounded(self) -> None:
        loop, server, client = ports(1, pipe_bytes=(1000, 1000), partial=0.0)
        server.listen("h", 9092, lambda transport: None)
        transport = client.connect("h", 9092)
        assert transport.send([b"x"]) == 0
        drain(loop)
        assert transport.send([b"x" * 700, b"y" * 700]) == 1000
        assert transport.send([b"x"]) == 0
        drain(loop)
        assert transport.send([b"x"]) == 0

    def test_every_other_system_keeps_a_pace(self) -> None:
        took = {}
        for capacity in (100_000, 100_001):
            loop, server, client = ports(1, pipe_bytes=(capacity, capacity), partial=0.0)
            accepted: list[Transport] = []
            server.listen("h", 9092, accepted.append)
            caller = Caller(client.connect("h", 9092), b"")
            drain(loop)
            can = accepted[0].pace(10_000)
            assert can == (capacity == 100_000)
            accepted[0].send([bytes(50_000)])
            began = loop.now
            while len(caller.got) < 50_000:
                loop.step()
            took[can] = loop.now - began
            assert accepted[0].pace(0) == can
            accepted[0].close()
            assert not accepted[0].pace(1), "as a closed socket's"
        assert took[True] > 4.9
        assert took[False] < 0.1

    def test_a_span_is_read_from_its_file(self) -> None:
        disk = CrashDisk()
        file = disk.open("/f", create=True, write=True)
        file.pwritev([b"0123456789"], 0)
        loop, server, client = ports(1)
        server.listen("h", 9092, lambda transport: transport.send([b"<", FileSpan(file, 2, 5), b">"]) and None)
        caller = Caller(client.connect("h", 9092), b"")
        drain(loop)
        assert bytes(caller.got) in b"<23456>"
        assert caller.got

    def test_refused_taken_and_closed(self) -> None:
        loop, server, client = ports(1)
        caller = Caller(client.connect("h", 9092), b"x")
        drain(loop)
        assert isinstance(caller.error, ConnectionRefusedError)
        listener = server.listen("h", 9092, Echo)
        with pytest.raises(OSError, match="in use"):
            server.listen("h", 9092, Echo)
        listener.close()
        server.listen("h", 9092, lambda transport: transport.close())
        caller = Caller(client.connect("h", 9092), b"")
        drain(loop)
        assert caller.ended
        assert caller.error is None
        assert server.listen("h", 0, Echo).port != server.listen("h", 0, Echo).port

    def test_a_reset_fails_both_ends(self) -> None:
        loop, server, client = ports(1)
        accepted: list[Transport] = []
        server.listen("h", 9092, accepted.append)
        transport = client.connect("h", 9092)
        drain(loop)
        transport.reset()
        for end in (transport, accepted[0]):
            with pytest.raises(ConnectionResetError):
                end.recv_into(memoryview(bytearray(10)))
            with pytest.raises(ConnectionResetError):
                end.send([b"x"])

    def test_a_muted_reader_is_not_called(self) -> None:
        loop, server, client = ports(1)
        accepted: list[Transport] = []
        server.listen("h", 9092, accepted.append)
        Caller(client.connect("h", 9092), b"hello")
        drain(loop)
        calls: list[int] = []
        accepted[0].set_reader(lambda: calls.append(1))
        accepted[0].set_reader(None)
        drain(loop)
        assert calls == []
        loop.run(lambda: len(calls) > 3, loop.now)
        accepted[0].set_reader(lambda: calls.append(1) or (len(calls) == 3 and accepted[0].set_reader(None)))
        drain(loop)
        assert len(calls) == 3, "level-triggered until muted"


class TinyServer:
    """Counts its starts in a synced file and answers with the number."""

    def __init__(self, world: World) -> None:
        self.world = world

    def start(self, on_ready: Callable[[], None]) -> None:
        disk = self.world.disk
        file = disk.open("/count", create=True, write=True)
        disk.sync_directory("/")
        number = len(file.pread(100, 0)) + 1
        file.pwritev([b"x"], number - 1)
        self.world.executor.submit("journal", file.sync, lambda *_: on_ready())
        self.world.network.listen("h", 9092, lambda transport: transport.send([str(number).encode()]) and None)

    def stop(self, on_stopped: Callable[[], None]) -> None:
        self.world.clock.call_later(1.0, on_stopped)


def make_node(seed: int = 1) -> tuple[SimLoop, SimNode, SimPort, list[str]]:
    loop, _, client = ports(seed)
    notes: list[str] = []
    node = SimNode(1, loop, client.network, Random(seed), CrashDisk(Random(seed)), TinyServer, notes.append)
    return loop, node, client, notes


class TestNode:
    def test_start_stop_kill_cut_and_restart(self) -> None:
        loop, node, client, notes = make_node()
        for end in (node.kill, node.power_cut, node.stop):
            node.start()
            assert loop.run(lambda: node.ready, loop.now + 10)
            caller = Caller(client.connect("h", 9092), b"")
            assert loop.run(lambda caller=caller: bool(caller.got), loop.now + 10)
            end()
            assert loop.run(lambda: not node.running, loop.now + 10)
            drain(loop, 10.0)
            assert isinstance(caller.error, ConnectionResetError)
            refused = Caller(client.connect("h", 9092), b"")
            drain(loop, 10.0)
            assert isinstance(refused.error, ConnectionRefusedError)
        assert node.disk.contents()["/count"] == b"xxx"
        assert (node.starts, node.deaths) == (3, 2)
        assert [note.split(" at ")[0] for note in notes if "ready" not in note] == [
            "n1#1 start",
            "n1#1 killed",
            "n1#2 start",
            "n1#2 power cut",
            "n1#3 start",
            "n1#3 stop",
            "n1#3 stopped",
        ]

    def test_a_cut_in_a_disk_call_ends_the_process_wherever_it_happens(self) -> None:
        for call in range(1, 6):
            loop, node, _, _ = make_node()
            node.start()
            node.disk.cut_at = call
            drain(loop, 10.0)
            assert not node.running
            assert not node.ready
            node.start()
            assert loop.run(lambda node=node: node.ready, 20.0)
            assert len(node.disk.contents()["/count"]) <= 2
