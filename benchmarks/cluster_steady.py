"""Full load on all nodes of a cluster for minutes: elections and fencings are counted, and how late the loops were."""

from __future__ import annotations

import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from benchmarks import clients
from benchmarks.broker_process import LOOPBACK, answers_api_versions
from benchmarks.cluster_nodes import ClusterNode, NodesCluster
from benchmarks.scenarios import Durability

PARTITIONS = 12
ROUND_SECONDS = 10.0
PING_SECONDS = 0.02
EVENTS: Final = ("broker-fenced", "broker-unfenced", "quorum-leader", "in-sync-proposed", "fetch-from-leader-failed")
LATENESS = "duramen_loop_lag_seconds_bucket"
TOPICS: Final[dict[str, Durability]] = {"steady-stable": "fsync", "steady-cached": "page-cache"}


class Pings:
    """ApiVersions on a new connection to each node, every PING_SECONDS: what somebody waits at the door."""

    def __init__(self, nodes: list[ClusterNode]) -> None:
        self.longest = {node.id: 0.0 for node in nodes}
        self.failed = {node.id: 0 for node in nodes}
        self._stopping = threading.Event()
        self._threads = ThreadPoolExecutor(len(nodes))
        self._work = [self._threads.submit(self._ping, node) for node in nodes]

    def _ping(self, node: ClusterNode) -> None:
        while not self._stopping.wait(PING_SECONDS):
            began = time.perf_counter()
            if answers_api_versions(node.port, timeout=20):
                self.longest[node.id] = max(self.longest[node.id], time.perf_counter() - began)
            else:
                self.failed[node.id] += 1

    def stop(self) -> None:
        self._stopping.set()
        for each in self._work:
            each.result()
        self._threads.shutdown()


def events(node: ClusterNode, since: int = 0) -> dict[str, int]:
    """How often a node's log has each of EVENTS behind that byte."""
    text = node.log_path.read_bytes()[since:].decode(errors="replace")
    return {event: text.count(f" {event} ") for event in EVENTS}


def lateness(node: ClusterNode) -> list[tuple[float, float]]:
    """(bound in seconds, how many timers of the loop were no later)."""
    with urllib.request.urlopen(f"http://{LOOPBACK}:{node.metrics_port}/metrics", timeout=20) as page:
        lines = page.read().decode().splitlines()
    found = []
    for line in lines:
        if line.startswith(LATENESS):
            bound = line.partition('le="')[2].partition('"')[0]
            found.append((float(bound), float(line.rpartition(" ")[2])))
    return sorted(found)


def latest(before: list[tuple[float, float]], after: list[tuple[float, float]]) -> float:
    """The bound that the latest timer between two readings kept."""
    counted = [(bound, count - earlier) for (bound, count), (_, earlier) in zip(after, before, strict=True)]
    total = counted[-1][1]
    return next(bound for bound, count in counted if count >= total)


def _produce(cluster: NodesCluster, topic: str, number: int, until: float, told: list[dict[str, Any]]) -> None:
    """Bulk by librdkafka, idempotent, one run after the other; each waits for its last acknowledgement."""
    messages = 100_000
    while time.monotonic() < until:
        bootstrap = cluster.nodes[number % len(cluster.nodes)].bootstrap
        wanted = {"acks": "all", "enable.idempotence": "true"}
        told.append(clients.rdkafka("produce", bootstrap, 180, wanted, topic=topic, messages=messages, size=1000))
        taken = max(told[-1]["seconds"], 0.1)
        messages = max(10_000, min(2_000_000, int(messages / taken * ROUND_SECONDS)))


def run(cluster: NodesCluster, seconds: float) -> dict[str, Any]:
    """Load them; what was counted."""
    topic_settings = {"retention.bytes": str(1 << 30), "segment.bytes": str(256 << 20)}
    for topic, durability in TOPICS.items():
        cluster.spread_topic(topic, PARTITIONS, min(3, len(cluster.nodes)), durability, topic_settings)
    time.sleep(2)
    epochs, quorum = cluster.leader_epochs(), cluster.quorum_epoch()
    logs = {node.id: node.log_path.stat().st_size for node in cluster.nodes}
    late = {node.id: lateness(node) for node in cluster.nodes}
    used = {node.id: node.cpu_seconds() for node in cluster.nodes}
    pings = Pings(cluster.nodes)
    told: list[dict[str, Any]] = []
    began = time.monotonic()
    try:
        with ThreadPoolExecutor(len(TOPICS)) as threads:
            for work in [
                threads.submit(_produce, cluster, topic, number, began + seconds, told)
                for number, topic in enumerate(TOPICS)
            ]:
                work.result()
    finally:
        pings.stop()
    wall = time.monotonic() - began
    now = cluster.leader_epochs()
    size = sum(each["bytes"] for each in told)
    counted = {node.id: events(node, logs[node.id]) for node in cluster.nodes}
    return {
        "seconds": round(wall, 1),
        "mb_s": round(size / wall / 1e6, 2),
        "records": sum(each["records"] for each in told),
        "failed": sum(each["failed"] for each in told),
        "partition_elections": sum(max(0, now.get(place, 0) - epoch) for place, epoch in epochs.items()),
        "quorum_elections": cluster.quorum_epoch() - quorum,
        "fencings": sum(each["broker-fenced"] for each in counted.values()),
        "events_by_node": counted,
        "loop_lateness_s_at_most": {node.id: latest(late[node.id], lateness(node)) for node in cluster.nodes},
        "longest_ping_s": {number: round(longest, 3) for number, longest in pings.longest.items()},
        "failed_pings": pings.failed,
        "processor_share": {node.id: round((node.cpu_seconds() - used[node.id]) / wall, 2) for node in cluster.nodes},
        "peak_mib": {node.id: round(node.memory_mib()["peak"], 1) for node in cluster.nodes},
    }
