"""Owns Duramen's own server as one of the two brokers under measurement."""

from __future__ import annotations

import compileall
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import duramen
from benchmarks.broker_process import LOOPBACK, BrokerFailedError, BrokerProcess, free_port

EXECUTABLE = Path(sys.executable).parent / "duramen"


class DuramenBroker(BrokerProcess):
    """One Duramen node started as a user would start it: `duramen serve` with its own defaults."""

    name = "Duramen"

    def prepare(self) -> None:
        super().prepare()
        if not EXECUTABLE.exists():
            raise BrokerFailedError(f"{EXECUTABLE.name} is not installed next to {sys.executable}")
        # As pip does with what it installs. In a checkout that was changed since, under PYTHONDONTWRITEBYTECODE, each
        # start would compile what changed anew: 0.1 to 0.3 s that nobody who installed it waits for.
        compileall.compile_dir(Path(duramen.__file__).parent, quiet=2)
        self.metrics_port = free_port()

    def command(self) -> Sequence[str]:
        settings = {
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.directory / "data"),
            "metrics.listener": f"{LOOPBACK}:{self.metrics_port}",
        }
        pairs = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return [str(EXECUTABLE), "serve", *pairs]

    def journal_metrics(self) -> dict[str, float]:
        """The node's own journal figures (fill, laps, syncs)."""
        return {name: value for name, value in self.metrics().items() if "journal" in name}

    def metrics(self) -> dict[str, float]:
        """The node's own figures by name, but for the buckets of histograms; summed over what their labels tell apart:
        there is one log directory. Empty where the node does not answer."""
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self.metrics_port}/metrics", timeout=5) as page:
                lines = page.read().decode().splitlines()
        except (urllib.error.URLError, OSError):
            return {}
        found: dict[str, float] = {}
        for line in lines:
            name, _, value = line.rpartition(" ")
            metric = name.partition("{")[0]
            if not line.startswith("#") and not metric.endswith("_bucket"):
                found[metric] = found.get(metric, 0.0) + float(value)
        return found
