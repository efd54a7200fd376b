"""Owns one gateway in front of a node: start until its first answer, readings, and HTTP to it."""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.broker_process import LOOPBACK, BrokerFailedError, BrokerProcess
from benchmarks.duramen_broker import EXECUTABLE


class GatewayProcess(BrokerProcess):
    """`duramen gateway` with its own defaults."""

    name = "gateway"

    def __init__(self, directory: Path, cluster: str) -> None:
        super().__init__(directory)
        self.cluster = cluster

    def command(self) -> Sequence[str]:
        return [str(EXECUTABLE), "gateway", "--bootstrap", self.cluster, "--listen", f"http://{self.bootstrap}"]

    def await_reply(self, timeout: float, began: float) -> None:
        """Wait for its first answer."""
        while True:
            try:
                self.ask("GET", "/healthz")
                break
            except OSError:
                self.check_alive()
            if time.perf_counter() - began > timeout:
                self.stop()
                raise BrokerFailedError(f"the gateway did not answer within {timeout:.0f} s:\n{self.log_tail()}")
            time.sleep(0.002)
        self.start_seconds = time.perf_counter() - began

    def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
        """One request; BrokerFailedError where it is refused."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=60)
        try:
            connection.request(method, path, body or None, dict(headers or {}))
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise BrokerFailedError(f"{method} {path}: {answer.status} {content.decode(errors='replace'):.300}")
        return content

    def metrics(self) -> dict[str, float]:
        """Its counters by name, summed over their labels; buckets of histograms apart."""
        found: dict[str, float] = {}
        for line in self.ask("GET", "/metrics").decode().splitlines():
            name, _, value = line.rpartition(" ")
            metric = name.partition("{")[0]
            if not line.startswith("#") and not metric.endswith("_bucket"):
                found[metric] = found.get(metric, 0.0) + float(value)
        return found
