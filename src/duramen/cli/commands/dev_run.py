"""One run of `duramen dev`: its nodes as processes, what they say, who leads them, and their end."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import click

from duramen.cli.commands.dev_cluster import DevCluster, DevNode
from duramen.cli.commands.quorum_status import without_leader
from duramen.cli.shared.quorum_look import QuorumAnswer, look_at_quorum, serves_clients, shown
from duramen.cli.shared.signals import ending_signals
from duramen.errors import DirectoryLockedError
from duramen.server.net.log_writer import LogWriter
from duramen.storage import RealDisk

STOP_SECONDS: Final = 3.5
"""For a node to stop by itself, of the five that are promised for all; what stays is killed."""
LAST_WORDS_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 1.0
_BETWEEN_LOOKS_SECONDS: Final = 0.2
_TELL_SECONDS: Final = 10.0
"""Without a leader: then it is said who answered."""
_CLIENTS_SECONDS: Final = 2.0
"""For brokers to answer, once there is a leader."""
_TURN_SECONDS: Final = 0.2
_READ_BYTES: Final = 1 << 16
_LINE_BYTES_MAX: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1
NEXT: Final = (
    "duramen topic create numbers --partitions 6",
    "seq 1 100000 | duramen produce numbers",
    "duramen consume numbers --from earliest --count 3",
    "duramen status --once",
)
"""What to try with a cluster that serves."""


def is_used(folder: str) -> bool:
    """Whether a process has one of the directories in it: somebody has started a node by hand."""
    disk = RealDisk()
    for path in glob.glob(os.path.join(glob.escape(folder), "node-*", "*", ".lock")):
        try:
            disk.lock(path).release()
        except DirectoryLockedError:
            return True
        except OSError:
            continue
    return False


class DevProcess:
    """The process of one node, and what it has said that is no whole line yet."""

    def __init__(self, node: DevNode, prepare: Callable[[], None] | None) -> None:
        self.node = node
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "duramen", "serve", "--config", node.settings_file],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C of the terminal is ours alone: a second signal would mean haste
            preexec_fn=prepare,  # which is sound because no thread has been started yet
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout
        os.set_blocking(self.output.fileno(), False)
        self.ended = False
        self._rest = b""

    def lines(self) -> Iterator[str]:
        """The lines that have come; at the end also one that is not whole."""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.output.fileno(), _READ_BYTES):
                *whole, self._rest = (self._rest + piece).split(b"\n")
                if len(self._rest) > _LINE_BYTES_MAX:
                    whole, self._rest = [*whole, self._rest], b""
                yield from (line.decode(errors="replace") for line in whole)
            self.ended = True
            if self._rest:
                yield self._rest.decode(errors="replace")

    def send(self, number: int) -> None:
        """A signal, to nobody else: the process has not been waited for."""
        if self.process.returncode is None:
            self.process.send_signal(number)

    def stop(self) -> None:
        """Have the node stop without handing over: all stop, so nobody could take over what it leads.

        That is what a second signal says. It is another one than the first: two of a kind that come together are one.
        SIGTERM goes first, for it ends also a process that has got no further than to load.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT):  # the last one where somebody has paused it
            self.send(number)


class QuorumWatch:
    """Looks who leads on a thread of its own, whenever that may have changed. tell: gets lines, on that thread.

    pids: of the nodes' processes.
    """

    def __init__(self, nodes: list[DevNode], pids: Mapping[int, int], tell: Callable[[str], None]) -> None:
        self._nodes = nodes
        self._pids = pids
        self._tell = tell
        self._wanted = threading.Event()
        self._epoch = -1
        self._gone: set[int] = set()
        threading.Thread(target=self._watch, name="quorum-watch", daemon=True).start()

    def look(self, gone: int | None = None) -> None:
        """Look until somebody leads. gone: a node that does not any more."""
        if gone is not None:
            self._gone.add(gone)
        self._wanted.set()

    def _watch(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            began = time.monotonic()
            leader = self._leader(began)
            if leader is None:
                continue
            is_first = self._epoch < 0
            if leader.leader_epoch > self._epoch:
                took = f", after {time.monotonic() - began:.1f} s" if is_first else ""
                many = f" of {len(leader.voters)}" if len(leader.voters) > 1 else ""
                self._tell(f"node {leader.leader_id} leads the quorum{many}, epoch {leader.leader_epoch}{took}")
                self._epoch = leader.leader_epoch
            if is_first:
                self._tell_addresses(leader.leader_id)

    def _leader(self, began: float) -> QuorumAnswer | None:
        """Who leads: nobody who is gone, unless somebody has started it by hand; None where nobody is left to ask."""
        told = False
        while alive := [node.controller for node in self._nodes if node.id not in self._gone]:
            look = look_at_quorum(alive, _LOOK_SECONDS)
            leader = look.leader
            if leader is not None and (leader.leader_id not in self._gone or leader.leader_epoch > self._epoch):
                return leader
            if not told and time.monotonic() - began > _TELL_SECONDS:
                told = True
                self._tell(without_leader(look))
            time.sleep(_BETWEEN_LOOKS_SECONDS)
        return None

    def _tell_addresses(self, leader: int) -> None:
        """Where what is served is: what answers, not what is to."""
        self._tell(f"controllers: --bootstrap-controller {_joined(node.controller for node in self._nodes)}")
        until = time.monotonic() + _CLIENTS_SECONDS
        served: list[DevNode] = []
        while len(served) < len(self._nodes) and time.monotonic() < until:
            served = [node for node in self._nodes if serves_clients(node.broker, _BETWEEN_LOOKS_SECONDS)]
        if not served:
            self._tell("clients: no node answers them")
            return
        addresses = _joined(node.broker for node in served)
        self._tell(f"clients: --bootstrap {addresses}")
        self._tell("try, in another terminal:")
        for line in (f"export DURAMEN_BOOTSTRAP={addresses}", *NEXT):
            self._tell(f"    {line}")
        if len(self._nodes) > 2 and leader in self._pids:
            self._tell(f"    kill -9 {self._pids[leader]}   # node {leader}; the others go on: duramen status")


def _joined(addresses: Iterator[tuple[str, int]]) -> str:
    return ",".join(map(shown, addresses))


class DevRun:
    """From the first process to the last."""

    def __init__(self, cluster: DevCluster) -> None:
        self._cluster = cluster
        self._children: list[DevProcess] = []
        self._signals = 0
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)

    def run(self) -> int:
        """Until a signal or the end of all nodes; the exit code."""
        before = [(number, signal.signal(number, self._came)) for number in (signal.SIGINT, *ending_signals())]
        wakeup = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        try:
            return self._run()
        finally:
            for child in self._children:  # none is left, but where something here has failed
                child.send(signal.SIGKILL)
                child.process.wait()
                child.output.close()
            signal.set_wakeup_fd(wakeup)
            for number, handler in before:
                signal.signal(number, handler)
            self._woken.close()
            self._waker.close()

    def _came(self, _number: int, _frame: object) -> None:
        self._signals += 1

    def _run(self) -> int:
        nodes = self._cluster.nodes
        many = f"{len(nodes)} nodes" if len(nodes) > 1 else "a node alone"
        click.echo(f"dev    | {'starting' if self._cluster.is_formed else 'forming'} {many}")
        self._cluster.form(lambda: self._signals > 0)
        sys.stdout.flush()
        prepare = _ending_with_its_parent()
        for node in nodes:
            if self._signals:
                break
            self._children.append(DevProcess(node, prepare))
        # From here on a reader who does not read keeps nobody waiting, least of all the end.
        output = LogWriter(sys.stdout)

        def say(text: str) -> None:
            output.write(f"dev    | {text}\n")

        for child in self._children:
            node = child.node
            places = f"clients {shown(node.broker)}, controller {shown(node.controller)}"
            say(f"node {node.id}: pid {child.process.pid}, {places}")
        watch = QuorumWatch(nodes, {each.node.id: each.process.pid for each in self._children}, say)
        if self._children:
            watch.look()
        try:
            return self._follow(output, say, watch)
        finally:
            output.finish(LAST_WORDS_SECONDS)

    def _follow(self, output: LogWriter, say: Callable[[str], None], watch: QuorumWatch) -> int:
        stopping: float | None = None
        killed = False
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for child in self._children:
                selector.register(child.output, selectors.EVENT_READ, child)
            alive = list(self._children)
            while alive:
                for key, _ in selector.select(_TURN_SECONDS):
                    if key.data is None:
                        with contextlib.suppress(BlockingIOError):
                            self._woken.recv(_READ_BYTES)
                    else:
                        self._read(key.data, output, selector)
                for child in [each for each in alive if each.process.poll() is not None]:
                    alive.remove(child)
                    if not child.ended:
                        self._read(child, output, selector)
                    if stopping is None:
                        say(f"node {child.node.id} {_end(child.process.returncode)} and is not started again; by hand:")
                        say(f"    duramen serve --config {child.node.settings_file}")
                        watch.look(child.node.id)
                    elif child.process.returncode != 0:
                        say(f"node {child.node.id} {_end(child.process.returncode)}")
                if self._signals and stopping is None:
                    stopping = time.monotonic()
                    say("stopping; once more kills")
                    for child in alive:
                        child.stop()
                is_late = stopping is not None and time.monotonic() > stopping + STOP_SECONDS
                if (is_late or self._signals > 1) and not killed:
                    killed = True
                    for child in alive:
                        child.send(signal.SIGKILL)
        if stopping is None and not self._signals:
            say("all nodes have ended")
            return 1
        say("stopped")
        return 0

    def _read(self, child: DevProcess, output: LogWriter, selector: selectors.BaseSelector) -> None:
        output.write("".join(f"node {child.node.id} | {line}\n" for line in child.lines()))
        if child.ended and child.output in selector.get_map():
            selector.unregister(child.output)


def _end(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    return f"was ended by {signal.Signals(-status).name}"


def _ending_with_its_parent() -> Callable[[], None] | None:
    """For a process to be told to stop when this one is killed; None where the system has no such thing."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it was killed before that
            os._exit(1)

    return prepare
