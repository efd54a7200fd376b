"""The process of a gateway: from its configuration to its end by a signal."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import uvicorn

from duramen.config import GatewayConfig, HttpAddress
from duramen.errors import NetworkError
from duramen.gateway.access.authenticator import Authenticator, BearerTokens, NoLogin
from duramen.gateway.access.certificate import Certificate
from duramen.gateway.access.running_reads import RunningReads
from duramen.gateway.access.watched_file import LOOK_S
from duramen.gateway.edge.event_lines import EventLines
from duramen.gateway.edge.http_protocol import bounded_protocol
from duramen.gateway.edge.socket_protocol import MESSAGE_MAX_BYTES, BoundedSocketProtocol
from duramen.gateway.gateway import Gateway
from duramen.version import VERSION

STOP_S = 9
"""How long requests that run have to end when the gateway is told to; then they are cut."""

UNREAD_TIMES_SSE = 2
"""A client that takes nothing of its answer for so many times gateway.sse.ms is hung up on."""
MISTAKES_MAX = 5
"""Lines of the tokens' file that are told of at a time."""

GC_THRESHOLDS = (50_000, 5, 80)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_BACKLOG = 2048


def run(config: GatewayConfig, *, until_eof: bool = False) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP; the exit code. NetworkError where the address cannot be had.

    until_eof: also until stdin, the end of a pipe, has no writer left: the process that started this one is gone.
    """
    certificate = None
    if config.listener.is_https:
        certificate = Certificate(config.tls_certificate, config.tls_key)
    authenticator = BearerTokens(config.tokens_file) if config.tokens_file else NoLogin()
    _raise_descriptor_limit()
    bound = _bound(config.listener, "gateway.listener" if until_eof else "--listen")
    with contextlib.closing(bound):
        return asyncio.run(_serve(config, bound, authenticator, certificate, until_eof))


async def _serve(
    config: GatewayConfig,
    bound: socket.socket,
    authenticator: Authenticator,
    certificate: Certificate | None,
    until_eof: bool,
) -> int:
    async with Gateway(config, authenticator, sys.stderr, bound.getsockname()[1]) as gateway:
        settings = uvicorn.Config(
            gateway.app,
            http=bounded_protocol(
                config.head_max_bytes, config.head_timeout_ms / 1000, UNREAD_TIMES_SSE * config.sse_ms / 1000
            ),
            ws=BoundedSocketProtocol,
            ws_max_size=MESSAGE_MAX_BYTES,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=STOP_S,
            backlog=_BACKLOG,
        )
        settings.load()
        if certificate is not None:
            settings.ssl = certificate.context
        address = config.listener._replace(port=bound.getsockname()[1])
        server = GatewayServer(settings, gateway.stopping, lambda: _say_ready(address, config.bootstrap), until_eof)
        watch = asyncio.ensure_future(_watch_files(authenticator, gateway.reads, certificate, gateway.events))
        # Records that are kept are many objects without cycles: a full collection stops all readers for tens of ms.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        try:
            await server.serve([bound])
        finally:
            watch.cancel()
    return 0


async def _watch_files(
    authenticator: Authenticator, reads: RunningReads, certificate: Certificate | None, events: EventLines
) -> None:
    """What has changed in the files of logins and of the certificate counts from now on."""
    while True:
        await asyncio.sleep(LOOK_S)
        mistakes = authenticator.refresh()
        if mistakes is not None:
            events.write("info", "tokens-changed", ended_reads=reads.recheck())
            for mistake in mistakes[:MISTAKES_MAX]:
                events.write("error", "token-line-left-out", why=mistake)
        why = certificate.refresh() if certificate is not None else None
        if why:
            events.write("error", "certificate-left", why=why)
        elif why is not None:
            events.write("info", "certificate-changed")


def _say_ready(address: HttpAddress, bootstrap: list[str]) -> None:
    sys.stdout.write(f"duramen gateway {VERSION} is ready: {address} (cluster {','.join(bootstrap)})\n")
    sys.stdout.flush()


def _raise_descriptor_limit() -> None:
    """Take as many file descriptors as we may: each connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _bound(address: HttpAddress, option: str) -> socket.socket:
    """option: what says where to listen."""
    try:
        bound = socket.create_server(
            (address.host, address.port),
            family=socket.AF_INET6 if ":" in address.host else socket.AF_INET,
            backlog=_BACKLOG,
        )
        # Connections inherit it. asyncio sets it only where the socket names its protocol, and this one does not: the
        # body of an answer would wait for the client's acknowledgement of the head, which takes its time (40 ms).
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound
    except OSError as error:
        raise NetworkError(
            f"{address} cannot be listened on: {_reason(error)}; choose another one with {option}"
        ) from None


def _reason(error: OSError) -> str:
    """What the system says; Python adds the address, which the sentence has."""
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)


class GatewayServer(uvicorn.Server):
    """uvicorn that says when it is ready, and that a signal ends in peace, with the readers let go at once."""

    def __init__(
        self, settings: uvicorn.Config, stopping: asyncio.Event, on_ready: Callable[[], None], until_eof: bool
    ) -> None:
        super().__init__(settings)
        self._until_eof = until_eof
        self._stopping = stopping
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._stop)
        if self._until_eof:
            loop.add_reader(sys.stdin.fileno(), self._read, sys.stdin.fileno())
        try:
            yield
        finally:
            if self._until_eof:
                loop.remove_reader(sys.stdin.fileno())
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _read(self, stdin: int) -> None:
        if not os.read(stdin, _BACKLOG):
            asyncio.get_running_loop().remove_reader(stdin)
            self._stop()

    def _stop(self) -> None:
        self.should_exit = True
        self._stopping.set()
