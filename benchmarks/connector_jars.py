"""Owns the jars of Spark's own Kafka connector, got through Maven once."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.kafka_peer import ROOT, PeerUnavailableError, collected

POM = Path(__file__).resolve().parent / "connector_pom.xml"
LIBS = ROOT / ".cache" / "connector-libs"


def connector_version() -> str:
    """The version that the pom names."""
    found = re.search(r"<connector\.version>([^<]+)<", POM.read_text())
    if found is None:
        raise PeerUnavailableError(f"benchmarks/{POM.name} names no connector.version")
    return found.group(1)


def connector_jars(timeout: float = 300.0) -> list[str]:
    """The paths of its four jars, for `spark.jars`; the first time they are fetched, 10 MB.

    Raises PeerUnavailableError, with the reason in one line, where Maven cannot deliver them.
    """
    return sorted(str(jar) for jar in collected(POM, LIBS, connector_version(), timeout).glob("*.jar"))
