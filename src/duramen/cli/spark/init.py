"""`duramen spark init`: a pipeline to start from."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path

import click

from duramen.errors import ConfigError

PIPELINE = '''"""The pipeline {name}: what it reads, and the tables that follow."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duramen import pipelines

events = pipelines.Topic("events", key="id", schema="kind string, amount double")
pipeline = pipelines.Pipeline("{name}")


@pipeline.table(events, keys=["id"])
def latest(events: DataFrame) -> DataFrame:
    """The latest event of each id; a record without a value deletes its row."""
    return events.select("id", "kind", "amount", "_cause")


@pipeline.table(events, keys=["kind"], aggregate=True)
def totals(events: DataFrame) -> DataFrame:
    """What each kind sums up to."""
    return events.where("kind is not null").groupBy("kind").agg(
        F.count("*").alias("events"), F.sum("amount").alias("amount"), pipelines.latest_cause()
    )
'''


@click.command(
    "init",
    short_help="Write a pipeline to start from.",
    epilog="\b\nExample:\n  duramen spark init tour\n",
    help="Write NAME.py, a pipeline with two tables, into this folder.",
)
@click.argument("name")
def init_command(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(f"{name!r}: the name becomes a Python module: letters, digits and underscores, no keyword")
    path = Path(f"{name}.py")
    if path.exists():
        raise ConfigError(f"{path} is there already")
    if importlib.util.find_spec(name) is not None:
        raise ConfigError(f"{name!r} is a module of Python's or of a package, which the file would hide: another name")
    path.write_text(PIPELINE.format(name=name), encoding="utf-8")
    click.echo(f"{path} written. Next: duramen spark dry-run {path}, then duramen spark run {path}")
