"""The server process: a loop, the real ports and one broker, from start to a clean stop."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, TextIO, cast

from duramen.config import BrokerConfig
from duramen.config.listeners import is_any_address, is_loopback
from duramen.errors import CorruptLogError, DirectoryLockedError, DuramenError
from duramen.partition.store.settings import cleaner_settings
from duramen.server.broker import Broker
from duramen.server.metrics.process_sampler import ProcessSampler
from duramen.server.net.bound_sockets import shown_address
from duramen.server.net.event_log import EventLog
from duramen.server.net.log_writer import LogWriter
from duramen.server.net.memory_limit import memory_limit, memory_shares
from duramen.server.net.os_ports import STACK_BYTES, real_world
from duramen.storage import DIRECTORY_IN_PLACE
from duramen.version import VERSION

GC_THRESHOLDS = (50_000, 5, 80)
SETTLED_SECONDS = 0.25
"""After the start; first those who waited for it are answered."""
LOCKED_SECONDS = 5.0
"""How long a start waits for a directory that another process has: a node with many partitions takes long to stop."""
LOOK_SECONDS = 0.1
LANES = 11
"""Of the executor, but for those of log directories and of compaction: `ports.Executor.submit` names them."""
LAST_WORDS_SECONDS = 1.0
"""How long the end of the process waits for a reader of its log that does not read."""
_NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)


class Companion(Protocol):
    """A process that runs as long as the node."""

    def start(self, bootstrap: str, say: Callable[[str, str, dict[str, Any]], None]) -> None:
        """The node is ready at this address. say: writes an event, from any thread."""

    def stop(self, then: Callable[[], None]) -> None:
        """End it in a bounded time; `then` may be called on another thread."""

    def kill(self) -> None:
        """End it at once."""


def run(config: BrokerConfig, log_json: bool = False, verbose: bool = False, companion: Companion | None = None) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP; returns the exit code.

    Problems at start and stop are one line on stderr and 1. DuramenError: there is no room for the node's threads.
    """
    threading.stack_size(STACK_BYTES)
    stdout, stderr = sys.stdout, sys.stderr
    errors = LogWriter(stderr)
    log = EventLog(log_json, errors)
    errors.notice = log.dropped
    # One for both where they are one file: lines there keep their order.
    output = errors if os.path.sameopenfile(stdout.fileno(), stderr.fileno()) else LogWriter(stdout)
    # Also what Python says itself (warnings, a thread's traceback) must not wait for a reader.
    sys.stdout, sys.stderr = cast(TextIO, output), cast(TextIO, errors)
    try:
        return _serve(config, log, errors, verbose, companion)
    finally:
        sys.stdout, sys.stderr = stdout, stderr
        for writer in (output, errors):
            writer.finish(LAST_WORDS_SECONDS)


def machine_name() -> str:
    """This machine's name if it can be looked up, else the loopback address."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "127.0.0.1"
    return name


def _serve(config: BrokerConfig, log: EventLog, errors: LogWriter, verbose: bool, companion: Companion | None) -> int:
    started = time.monotonic()
    gc.disable()
    raise_descriptor_limit()
    shares = memory_shares(memory_limit(), config.integer("queued.max.request.bytes"))
    loop, world, executor = real_world(config.integer("socket.send.buffer.bytes"), shares.socket_bytes)
    try:
        executor.reserve(LANES + len(config.directories) + cleaner_settings(config).threads)
    except DuramenError:  # for the caller to tell: the log has no thread either
        executor.close()
        loop.close()
        raise
    broker = Broker(world, config, log)
    errors.on_dropped = broker.metrics.log_dropped
    with contextlib.suppress(OSError):  # it was deleted: then only absolute paths can be opened
        broker.segments.working_directory = os.getcwd()
    told = (*config.advertised_listeners, *config.advertised_controller_listeners)
    if not all(listener.host for listener in told):
        broker.machine_name = machine_name()  # only then: looking a name up may take seconds
    broker.acceptor.bound_memory(shares)
    exit_code = 0

    def fail(error: BaseException) -> None:
        nonlocal exit_code
        sys.stderr.write(f"duramen: {explain(error, config)}\n")
        exit_code = 1
        loop.stop()

    def on_error(error: Exception) -> None:
        if not broker.ready and not broker.stopping:
            fail(error)
            return
        log("error", "unexpected", {"error": repr(error), "traceback": error})
        if broker.stopping:  # what was to follow may never be called; what was acknowledged is found by the next start
            log("error", "stop-failed", {"error": repr(error)})
            fail(error)

    def ready() -> None:
        loop.call_later(SETTLED_SECONDS, settle_memory)
        served = broker.advertised_addresses or broker.services.node.controller_endpoints  # of a controller alone
        addresses = ", ".join(shown_address(e.host, e.port) for e in served)
        if verbose:
            for key, reason in config.inert:
                log("info", "setting-without-meaning", {"key": key, "reason": reason})
        elif config.inert:
            log("info", "settings-without-meaning", {"keys": ", ".join(key for key, _ in config.inert)})
        for listener in (*config.listeners, *config.controller_listeners):
            if not is_loopback(listener.host):
                log("warning", "listener-without-login", {"listener": str(listener), "open_to": "everybody in reach"})
        for key, value in broker.config.overruled:
            log("warning", "setting-overruled", {"key": key, "holds": value})
        log("info", "memory", shares._asdict())
        elapsed = int((time.monotonic() - started) * 1000)
        data = data_directories(config, broker.segments.working_directory)
        sys.stdout.write(f"duramen {VERSION} is ready: {addresses} (data in {data}, {elapsed} ms)\n")
        if companion is not None:
            companion.start(own_address(broker), lambda *event: loop.call_from_thread(lambda: log(*event)))

    def halted(reason: str) -> None:
        nonlocal exit_code
        sys.stderr.write(f"duramen: {reason}\n")
        exit_code = 1
        broker.stop(loop.stop)

    stops = 0

    def stop() -> None:
        nonlocal stops
        stops += 1
        if broker.stopping:
            broker.stop_waiting()
        elif companion is None:
            broker.stop(loop.stop)
        elif stops == 1:  # first, so that what it is asked for can still be done
            companion.stop(lambda: loop.call_from_thread(stop_broker))
        else:
            companion.kill()

    def stop_broker() -> None:
        if not broker.stopping:
            broker.stop(loop.stop)
            if stops > 1:
                broker.stop_waiting()

    broker.on_halt = halted
    loop.on_error = on_error
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue  # `nohup`: it is to outlive its terminal
        loop.on_signal(number, stop)
    metrics: Any = None
    sampler = ProcessSampler(world.clock, broker.metrics, broker.store.statistics)
    try:
        if config.metrics_listener is not None:
            # Loaded on demand: the exposition library doubles the time to start.
            exposition = import_module("duramen.server.metrics.exposition")
            metrics = exposition.MetricsServer(broker, loop, *config.metrics_listener)
        start_when_unlocked(broker, ready, log)
        sampler.start()
        loop.run()
        if broker.unclean:
            why = "; ".join(map(reason, broker.unclean))
            sys.stderr.write(f"duramen: not stopped cleanly, the next start recovers what was acknowledged: {why}\n")
            exit_code = 1
    except (OSError, DuramenError) as error:
        fail(error)
    finally:
        gc.enable()
        sampler.stop()
        if metrics is not None:
            metrics.stop()
        if not broker.stopping:
            broker.acceptor.close()
        executor.close()
        loop.close()
    return exit_code


def start_when_unlocked(broker: Broker, ready: Callable[[], None], log: EventLog) -> None:
    """Start it as soon as nobody else has its directories. DirectoryLockedError after a while; what a start raises."""
    until = time.monotonic() + LOCKED_SECONDS
    told = False
    while True:
        try:
            broker.start(ready)
        except DirectoryLockedError as error:
            if broker.store.directories or time.monotonic() >= until:
                raise
            if not told:
                log("info", "waits-for-lock", {"what": str(error), "seconds": LOCKED_SECONDS})
                told = True
            time.sleep(LOOK_SECONDS)
        else:
            return


def own_address(broker: Broker) -> str:
    """Where a process of this machine reaches the node."""
    address, listener = broker.acceptor.listeners[0]
    host = address.host
    if not host or is_any_address(host):
        host = "127.0.0.1"
    return shown_address(host, listener.port)


def data_directories(config: BrokerConfig, working_directory: str) -> str:
    """Where the data is, as everybody understands it who was not there when the node was started."""
    return ", ".join(os.path.normpath(os.path.join(working_directory, directory)) for directory in config.directories)


def settle_memory() -> None:
    """What is alive by now stays alive: keep the collector from walking it again, and let it run less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


def raise_descriptor_limit() -> None:
    """Take as many file descriptors as we may: each connection and each open segment needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def reason(error: BaseException) -> str:
    """What happened, behind the file that it is about."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or repr(error)


def explain(error: BaseException, config: BrokerConfig) -> str:
    """One line that says what is wrong and what to do about it."""
    if isinstance(error, MemoryError):
        return "there is not enough memory. Give the node more: `ulimit -v`, its container's bound"
    if isinstance(error, DirectoryLockedError):
        return f"{error} (--set log.dirs=DIR)"
    if isinstance(error, CorruptLogError):
        # Stored and acknowledged bytes changed: nothing here may choose which records to give up.
        what = "`duramen log verify` shows everything that is damaged, `duramen log repair` goes on without it"
        return f"{error}. Put {error.path} back from a copy; {what}"
    if isinstance(error, OSError):
        if error.errno in (errno.EACCES, errno.EPERM) and error.filename:
            return f"no permission for {error.filename}. Choose a directory you own: --set log.dirs=DIR"
        if error.errno in _NO_DIRECTORY and error.filename:
            return f"{error.filename}: {error.strerror}. Choose a directory that can be created: --set log.dirs=DIR"
        if error.errno == errno.EIO and error.filename:
            return (
                f"{error.filename}: {error.strerror}. See what the system says of the disk (dmesg); if this is all "
                "that cannot be read, `duramen log repair` goes on without it"
            )
        if error.errno == errno.ENOMEM:
            return explain(MemoryError(), config)
        if error.errno == errno.EISDIR:
            return f"{error.filename} {DIRECTORY_IN_PLACE}, if it is a partition's; else move it away"
        if error.errno == errno.ENOSPC:
            return f"the disk of {', '.join(config.strings('log.dirs'))} is full. Free some space and start again"
    return str(error)
