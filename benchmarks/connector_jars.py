"""Owns the jars of Spark's own Kafka connector: got through Maven once, then added to a session that is running."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.kafka_peer import ROOT, PeerUnavailableError, collected

POM = Path(__file__).resolve().parent / "connector_pom.xml"
LIBS = ROOT / ".cache" / "connector-libs"


def connector_version() -> str:
    """The version that the pom names."""
    found = re.search(r"<connector\.version>([^<]+)<", POM.read_text())
    if found is None:
        raise PeerUnavailableError(f"benchmarks/{POM.name} names no connector.version")
    return found.group(1)


def add_connector(spark: SparkSession, timeout: float = 300.0) -> None:
    """Make `format("kafka")` known to the session; the first time four jars are fetched, 10 MB.

    Raises PeerUnavailableError, with the reason in one line, where Maven cannot deliver them.
    """
    for jar in sorted(collected(POM, LIBS, connector_version(), timeout).glob("*.jar")):
        spark.sql(f"ADD JAR '{jar}'")
