"""`duramen gateway`: streams over HTTP, in a process of its own."""

from __future__ import annotations

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
  curl -X PUT -H 'Content-Type: application/json' \\
       http://127.0.0.1:8082/v1/stream/flights

\b
It needs `pip install 'duramen[http]'`. Every setting is in
docs/configuration.md, every route in docs/http.md. SIGINT, SIGTERM and SIGHUP
stop it within 10 seconds.
"""


@click.command(epilog=EPILOG, help="Serve streams over HTTP until it is told to stop.")
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
def command(
    bootstrap: str | None, listen: str | None, until_eof: bool, file: str | None, settings: tuple[str, ...]
) -> int:
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
