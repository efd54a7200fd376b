"""Which namespace a command of streams works in, and its calls: made beside the main thread, which Ctrl-C ends."""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from duramen.cli.shared.connection import DEFAULT_BOOTSTRAP, Seconds
from duramen.cli.shared.output import ProgressLine
from duramen.cli.shared.position import StartPosition, now_ms, parse_position
from duramen.cli.shared.preflight import find_gateway, find_node, with_ports
from duramen.dlsn import Dlsn, parse_dlsn
from duramen.errors import ConfigError, DeadlineError, DuramenError
from duramen.streams import Namespace, Position, Stream, Txid
from duramen.streams import open as open_namespace
from duramen.streams.address import Address, parse_address

_T = TypeVar("_T")
_Command = TypeVar("_Command", bound=Callable[..., Any])

_LOOK_SECONDS: Final = 0.2
_MAKES_ONE: Final = "`duramen stream create` makes a log there"
_LOG_FILES: Final = {"meta.properties", "duramen-directory"}
"""Which a start writes before it takes a record; each is restored from the other."""
_A_GATEWAY: Final = "a gateway is named by --at duramen+http://HOST:PORT"
_TXID: Final = re.compile(r"txid:([0-9]{1,19})", re.ASCII)


class StreamAccess(NamedTuple):
    """A namespace's address, how many seconds a call may take, files for a gateway's, and the option for another."""

    address: str
    timeout: float
    token_file: str | None = None
    ca_file: str | None = None
    option: str = "--at"

    @contextmanager
    def opened(self, *, makes_directory: bool = False) -> Iterator[Namespace]:
        """The namespace, which is closed behind the block. A directory that is not there ends the command, unless it
        may be made."""
        try:
            found = parse_address(self.address)
        except ConfigError as error:
            raise _in_our_options(error) from None
        if not found.gateway and (self.token_file is not None or self.ca_file is not None):
            option = "--ca-file" if self.token_file is None else "--token-file"
            raise click.UsageError(f"{option} is for a gateway: --at duramen+https://HOST:PORT/PATH.")
        token = None if self.token_file is None else _token_in(self.token_file)
        self._look_there(found, makes_directory)
        space = self.call(
            lambda: open_namespace(self.address, timeout_s=self.timeout, token=token, ca_file=self.ca_file)
        )
        try:
            yield space
        finally:
            space.close()

    def _look_there(self, found: Address, makes_directory: bool) -> None:
        """End the command at once where nothing can be asked, rather than when its time is over."""
        if found.nodes:
            try:
                find_node(with_ports(found.nodes), self.timeout, otherwise=_A_GATEWAY)
            except click.ClickException as error:
                raise type(error)(error.message.replace("--bootstrap", self.option)) from None
        elif found.gateway:
            find_gateway(found.gateway, self.timeout, self.option, is_https=found.is_https)
        elif not makes_directory:
            _refuse_no_log(found.directory)

    def call(self, work: Callable[[], _T]) -> _T:
        """What `work` returns or raises; says what is waited for after a second."""
        results: list[_T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                results.append(work())
            except (DuramenError, OSError, ValueError, TypeError, RuntimeError) as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="stream-call", daemon=True)
        thread.start()
        with ProgressLine(f"waiting for {self.address}") as progress:
            while thread.is_alive():
                thread.join(_LOOK_SECONDS)
                progress.show()
        if errors:
            raise _in_our_options(errors[0])
        return results[0]


def _in_our_options(error: Exception) -> Exception:
    """The error with the names of options where the library names its parameters, or says no remedy."""
    text = str(error)
    if isinstance(error, DeadlineError):
        return DuramenError(f"{text}; --timeout waits longer")
    said = text.replace(" as token=,", ", by --token-file").replace("as token=", "by --token-file")
    said = re.sub(r"\btoken=(?=[ ,])", "--token-file", re.sub(r"\bca_file=(?= )", "--ca-file", said))
    said = re.sub(r"\bca_file=", "--ca-file ", said)
    if said == text or not isinstance(error, DuramenError):
        return error
    return ConfigError(said) if isinstance(error, ConfigError) else DuramenError(said)


def _refuse_no_log(directory: str) -> None:
    """End the command where there is no log yet: reading makes none."""
    if not os.path.exists(directory):
        raise click.ClickException(f"{directory}: there is no such directory; {_MAKES_ONE}.")
    if not _LOG_FILES & set(os.listdir(directory)):
        raise click.ClickException(f"{directory}: there is no log in this directory; {_MAKES_ONE}.")


def _token_in(path: str) -> str:
    """The text of a token's file, no more than a token may have."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(1024)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--token-file {path}: {getattr(error, 'strerror', None) or error}.") from None


def stream_options(command: _Command) -> _Command:
    """Adds --at, --bootstrap, --token-file, --ca-file and --timeout, which the command gets as its first argument, a
    StreamAccess."""

    @functools.wraps(command)
    def with_access(
        *args: Any,
        address: str | None,
        bootstrap: str | None,
        timeout: float,
        token_file: str | None,
        ca_file: str | None,
        **rest: Any,
    ) -> Any:
        if bootstrap is not None:
            if click.get_current_context().get_parameter_source("address") is ParameterSource.COMMANDLINE:
                raise click.UsageError("--at and --bootstrap both say where the streams are; give one of them.")
            if not bootstrap.strip() or "/" in bootstrap:
                raise click.UsageError(f"--bootstrap {bootstrap!r}: it is HOST[:PORT]; other addresses go with --at.")
            address = None  # what the environment says
        if address is not None and not address.strip():
            raise click.UsageError("--at is empty; it is an address such as duramen://HOST:PORT/PATH.")
        nodes = bootstrap or os.environ.get("DURAMEN_BOOTSTRAP") or DEFAULT_BOOTSTRAP
        option = "--bootstrap" if bootstrap is not None else "--at"
        access = StreamAccess(address or f"duramen://{nodes}", timeout, token_file, ca_file, option)
        return command(access, *args, **rest)

    options = (
        click.option(
            "--at",
            "address",
            envvar="DURAMEN_STREAMS",
            show_envvar=True,
            metavar="ADDRESS",
            help="The namespace: duramen://HOST:PORT/PATH, duramen+http://HOST:PORT/PATH or duramen+https://… (a "
            "gateway's), or duramen+file:///DIRECTORY?namespace=PATH. Without it the "
            f"root of the cluster at DURAMEN_BOOTSTRAP, or at {DEFAULT_BOOTSTRAP}.",
        ),
        click.option(
            "-b", "--bootstrap", metavar="HOST[:PORT]", help="The root of this cluster; short for --at duramen://HOST."
        ),
        click.option(
            "--token-file", metavar="FILE", help="Its one line is the gateway's bearer token; else DURAMEN_TOKEN is."
        ),
        click.option(
            "--ca-file",
            metavar="FILE",
            help="Certificates that are trusted instead of the system's, in PEM; else of DURAMEN_CA_FILE.",
        ),
        click.option("--timeout", type=Seconds(0.1, 86_400), default=30.0, show_default=True, help="Seconds to wait."),
    )
    wrapped: Any = with_access
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def stream_position_option(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> StartPosition | Dlsn | Txid | None:
    """The callback of an option whose value is a position of a stream: a DLSN or `txid:NUMBER`, too."""
    if value is None:
        return None
    txid = _TXID.fullmatch(value.strip())
    if txid is not None:
        return Txid(int(txid[1]))
    try:
        return parse_dlsn(value.strip())
    except ValueError:
        pass
    try:
        return parse_position(value, now_ms())
    except ValueError as error:
        raise click.BadParameter(f"{error}, nor a DLSN or txid:NUMBER.", ctx, param) from None


def dlsn_option(ctx: click.Context, param: click.Parameter, value: str | None) -> Dlsn | None:
    """The callback of an option whose value is a DLSN."""
    try:
        return None if value is None else parse_dlsn(value.strip())
    except ValueError as error:
        raise click.BadParameter(f"{error}.", ctx, param) from None


def place_in(stream: Stream, position: StartPosition | Dlsn | Txid) -> Position:
    """The position as the library takes it."""
    if isinstance(position, Dlsn | Txid):
        return position
    if position.kind == "earliest":
        return "start"
    if position.kind == "latest":
        return "end"
    if position.kind == "from-end":
        return max(stream.start(), stream.end() - position.value)
    if position.kind == "time":
        return datetime.fromtimestamp(position.value / 1000, UTC)
    return position.value
