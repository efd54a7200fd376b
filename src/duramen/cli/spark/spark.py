"""`duramen spark`: run, watch and rebuild pipelines. Spark is loaded only by the commands that need it."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from duramen.cli.shared.lazy_group import LazyGroup
from duramen.version import INSTALL_SPARK

EPILOG = f"""\b
Examples:
  duramen spark init tour                       a pipeline to start from
  duramen spark doctor                          can it run here?
  duramen spark dry-run tour.py
  duramen spark run tour.py                     until Ctrl-C
  duramen spark status tour.py
  duramen spark reprocess tour.py aircraft --version v2
  duramen spark swap tour.py aircraft v2

\b
What it needs comes {INSTALL_SPARK}
The tutorial is docs/spark.md.
"""

COMMANDS = {
    "init": ("duramen.cli.spark.init", "Write a pipeline to start from."),
    "doctor": ("duramen.cli.spark.doctor", "Check Java, packages, workers and storage; say what to do."),
    "dry-run": ("duramen.cli.spark.run", "Analyse a pipeline without running it."),
    "run": ("duramen.cli.spark.run", "Run a pipeline's steps."),
    "status": ("duramen.cli.spark.progress", "Show every step, its version and its last batch."),
    "lag": ("duramen.cli.spark.progress", "Show how far each step is behind its topic."),
    "reprocess": ("duramen.cli.spark.reprocess", "Build a new version of a step by replay, and compare."),
    "swap": ("duramen.cli.spark.reprocess", "Make a built version the current one."),
    "rollback": ("duramen.cli.spark.reprocess", "Go back to the previous version."),
    "trace": ("duramen.cli.spark.trace", "From a row to its record, from a record to its rows."),
}
"""Every command: the module that holds it, under its name with an underscore for the dash, and its line in the list."""


def _not_py4js(record: logging.LogRecord) -> bool:
    """Py4J logs each call that fails, with its traceback, besides raising what failed: after Ctrl-C that is no news."""
    return "py4j" not in Path(record.pathname).parts


@click.group(
    cls=LazyGroup,
    commands_at=COMMANDS,
    epilog=EPILOG,
    help="Run pipelines: streams and tables that follow topics, on Spark.",
)
def command() -> None:
    logging.getLogger().addFilter(_not_py4js)  # of the root logger, which is the one that Py4J uses for it
