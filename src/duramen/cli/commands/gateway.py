"""`duramen gateway`: streams over HTTP, in a process of its own."""

from __future__ import annotations

import click

from duramen.cli.shared.output import pairs
from duramen.cli.shared.properties_file import config_options, read_properties
from duramen.config import load_gateway_config
from duramen.errors import ConfigError

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

_OURS = {"starlette", "uvicorn", "httptools", "websockets", "msgspec", "anyio", "h11"}


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
@config_options
def command(bootstrap: str | None, listen: str | None, file: str | None, settings: tuple[str, ...]) -> int:
    overrides = pairs("--set", settings)
    if bootstrap is not None:
        overrides["bootstrap.servers"] = bootstrap
    if listen is not None:
        overrides["gateway.listener"] = listen
    config = load_gateway_config(read_properties(file), overrides)
    try:
        from duramen.gateway.main import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _OURS:
            raise
        raise ConfigError(f"the gateway needs {error.name}; install it with: pip install 'duramen[http]'") from None
    return run(config)
