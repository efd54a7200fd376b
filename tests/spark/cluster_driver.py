"""What a user does with a cluster, from one driver: run after another on each master that is named.

    python cluster_driver.py BOOTSTRAP NAME=MASTER...

NAME.py in this folder is its pipeline. A process of its own, because one process has one session; but one for all
masters, because a driver takes as long to start as what is tested takes to run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.spark.clusters import BRIEF

from duramen.cli.main import main
from duramen.pipelines.jvm.session import session


def command(*words: str) -> None:
    """A command of `duramen spark`."""
    code = main(["spark", *words])
    if code:
        raise SystemExit(f"duramen spark {' '.join(words)} ended with {code}")


def copy(spark: SparkSession, bootstrap: str, name: str) -> dict[str, Any]:
    """Reads a topic in more tasks than it has partitions, and writes it to another exactly once."""
    rows = (
        spark.read.format("duramen")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "flights")
        .option("minPartitions", "4")
        .load()
    )
    places = F.count_distinct("partition", "offset")
    total, different = rows.agg(F.count("*"), places).collect()[0]
    written = rows.select("key", "value").write.format("duramen").mode("append")
    written.option("kafka.bootstrap.servers", bootstrap).option("topic", f"copy-{name}").save()
    return {"rows": total, "places": different, "tasks": rows.rdd.getNumPartitions()}


def run(bootstrap: str, name: str, master: str) -> dict[str, Any]:
    """The pipeline and a copy; on a standalone master the command line begins a session of its own for the former."""
    pipeline = [str(Path(f"{name}.py")), "--once", "-b", bootstrap]
    local = master.startswith("local")
    if not local:
        settings = [word for key, value in BRIEF.items() for word in ("--conf", f"{key}={value}")]
        command("run", *pipeline, "--master", master, *settings)
    spark = session(name, master, BRIEF)
    try:
        if local:
            command("run", *pipeline)
            command("doctor", "-b", bootstrap, "--folder", "tables")
        return copy(spark, bootstrap, name)
    finally:
        spark.stop()


if __name__ == "__main__":
    for word in sys.argv[2:]:
        name, _, master = word.partition("=")
        click.echo("RESULT " + json.dumps({name: run(sys.argv[1], name, master)}))
