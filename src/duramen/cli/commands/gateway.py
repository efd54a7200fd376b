"""`duramen gateway`: streams over HTTP, in a process of its own."""

from __future__ import annotations

import os

import click

from duramen.cli.shared.http_extra import require_http_extra
from duramen.cli.shared.output import pairs
from duramen.cli.shared.properties_file import config_options, read_properties
from duramen.config import load_gateway_config

EPILOG = """\b
Examples:
  duramen gateway
  duramen gateway --bootstrap node1:9092,node2:9092
  duramen gateway --config gateway.properties --listen http://127.0.0.1:0
  duramen gateway token alice --write 'finance/*' --file tokens
  curl -X PUT -H 'Content-Type: application/json' \\
       http://127.0.0.1:8082/v1/stream/flights

\b
It needs `pip install 'duramen[http]'`. Every setting is in
docs/configuration.md, every route in docs/http.md. SIGINT, SIGTERM and SIGHUP
stop it within 10 seconds.
"""


@click.group(
    invoke_without_command=True,
    subcommand_metavar="[COMMAND [ARGS]...]",
    epilog=EPILOG,
    help="Serve streams over HTTP until it is told to stop.",
)
@click.option(
    "-b",
    "--bootstrap",
    envvar="DURAMEN_BOOTSTRAP",
    metavar="HOST:PORT,...",
    help="Nodes of the cluster (else bootstrap.servers, 127.0.0.1:9092).",
)
@click.option(
    "-l", "--listen", metavar="URL", help="Address to listen on (else gateway.listener, http://127.0.0.1:8082)."
)
@click.option("--until-eof", is_flag=True, hidden=True, help="Stop when stdin ends.")
@config_options
@click.pass_context
def command(
    ctx: click.Context,
    bootstrap: str | None,
    listen: str | None,
    until_eof: bool,
    file: str | None,
    settings: tuple[str, ...],
) -> int:
    if ctx.invoked_subcommand is not None:
        return 0
    overrides = pairs("--set", settings)
    if bootstrap is not None:
        overrides["bootstrap.servers"] = bootstrap
    if listen is not None:
        overrides["gateway.listener"] = listen
    config = load_gateway_config(read_properties(file), overrides)
    require_http_extra()
    # Only this command needs the gateway; its --help does not.
    from duramen.gateway.main import run

    return run(config, until_eof=until_eof)


TOKEN_EPILOG = """\b
Examples:
  duramen gateway token alice --read '*'
  duramen gateway token feed --write 'finance/*' --file tokens

\b
The token is printed once and kept nowhere; the file of gateway.tokens.file
has its hash. Who has it sends the header `Authorization: Bearer TOKEN`. A
line that is taken out of the file ends its readers within seconds. A NAME is
a stream (finance/orders) or a topic; with a * at its end it is all names that
begin with it.
"""


@command.command(name="token", epilog=TOKEN_EPILOG, help="Make a bearer token, and the line that lets it in.")
@click.argument("name")
@click.option("--read", multiple=True, metavar="NAME", help="Streams and topics that it may read; repeatable.")
@click.option("--write", multiple=True, metavar="NAME", help="That it may make and append to; repeatable.")
@click.option(
    "--admin", multiple=True, metavar="NAME", help="That it may truncate, delete, read and write; repeatable."
)
@click.option("--file", type=click.Path(dir_okay=False), help="Add the line to this file, and print the token alone.")
def token(name: str, read: tuple[str, ...], write: tuple[str, ...], admin: tuple[str, ...], file: str | None) -> None:
    from duramen.gateway.access.principal import parse_permission
    from duramen.gateway.access.token_lines import fresh_token, token_line

    given = [
        f"{right}={each}" for right, names in (("read", read), ("write", write), ("admin", admin)) for each in names
    ]
    if not given:
        raise click.UsageError("What may it do? --read '*', --write 'finance/*' or --admin '*'.")
    fresh = fresh_token()
    try:
        line = token_line(name, fresh, [parse_permission(text) for text in given])
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None
    if file is None:
        click.echo(f"token: {fresh}\nline:  {line}")
        return
    _append(file, line)
    click.echo(fresh)


def _append(path: str, line: str) -> None:
    """As a line of its own; a file that is not there is made for nobody else to read."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with open(descriptor, "rb+") as file:
        before = b""
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
            before = b"" if file.read(1) == b"\n" else b"\n"
        file.write(before + line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
