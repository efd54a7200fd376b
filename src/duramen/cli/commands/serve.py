"""`duramen serve`: one node."""

from __future__ import annotations

import gc

import click

from duramen.cli.shared.output import pairs
from duramen.cli.shared.properties_file import config_options, read_properties
from duramen.config import load_broker_config

EPILOG = """\b
Examples:
  duramen serve
  duramen serve --config server.properties
  duramen serve --set listeners=PLAINTEXT://127.0.0.1:19092 \\
                --set log.dirs=/var/lib/duramen

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
    config = load_broker_config(read_properties(file), pairs("--set", settings))
    gc.disable()  # nothing of what is imported goes away again; `run` enables it
    # Only this command needs the server; its --help does not.
    from duramen.server.main import run

    return run(config, log_json, verbose)
