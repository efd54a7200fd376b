"""`duramen serve`: one node."""

from __future__ import annotations

import gc

import click

from duramen.cli.shared.gateway_child import GatewayChild
from duramen.cli.shared.http_extra import require_http_extra
from duramen.cli.shared.properties_file import config_options, node_settings
from duramen.config import load_broker_config, load_gateway_config
from duramen.errors import ConfigError

EPILOG = """\b
Examples:
  duramen serve
  duramen serve --config server.properties
  duramen serve --set listeners=PLAINTEXT://127.0.0.1:19092 \\
                --set log.dirs=/var/lib/duramen
  duramen serve --set gateway.listener=http://127.0.0.1:8082

\b
The last one serves streams over HTTP, too: it runs `duramen gateway` beside
the node and needs `pip install 'duramen[http]'`.

\b
Without options: 127.0.0.1:9092, data in ./duramen-data. Every setting is in
docs/configuration.md. SIGINT, SIGTERM and SIGHUP (not under nohup) stop it
cleanly.
"""


@click.command(
    epilog=EPILOG,
    help="Run a node until it is told to stop.",
)
@config_options
@click.option("--log-json", is_flag=True, help="Write the log as JSON lines.")
@click.option("-v", "--verbose", is_flag=True, help="Say why each setting without effect has none.")
def command(file: str | None, settings: tuple[str, ...], log_json: bool, verbose: bool) -> int:
    own, of_gateway = node_settings(file, settings)
    config = load_broker_config(None, own)
    gateway = None
    if of_gateway:
        if not config.listeners:
            raise ConfigError("gateway.listener: a controller alone serves no clients; run `duramen gateway` instead")
        load_gateway_config(None, of_gateway)
        require_http_extra()
        gateway = GatewayChild(of_gateway)
    gc.disable()  # nothing of what is imported goes away again; `run` enables it
    # Only this command needs the server; its --help does not.
    from duramen.server.main import run

    return run(config, log_json, verbose, gateway)
