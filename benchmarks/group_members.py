"""Members of one consumer group in one process, librdkafka's; tells how many partitions each has whenever it changes.

    python -m benchmarks.group_members BOOTSTRAP TOPIC GROUP MEMBERS PROTOCOL

Prints `ready`, joins when a line comes in on standard input, then a JSON line for each change: the moment (monotonic
seconds) and the members' counts. It works until it is killed.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from confluent_kafka import Consumer

REST_SECONDS = 0.005
SESSION_MS = 6000


def settings(bootstrap: str, group: str, protocol: str) -> dict[str, Any]:
    """A member's: without data to fetch, and sharing as evenly as the newest of each protocol does."""
    own: dict[str, Any] = {"group.protocol": protocol}
    if protocol == "classic":
        own |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 1000}
        own |= {"partition.assignment.strategy": "cooperative-sticky"}
    quiet = {"log_level": 0, "error_cb": lambda _: None, "enable.auto.commit": False, "fetch.wait.max.ms": 5000}
    return {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "latest", **quiet, **own}


def main() -> None:
    bootstrap, topic, group, members, protocol = sys.argv[1:]
    consumers = [Consumer(settings(bootstrap, group, protocol)) for _ in range(int(members))]
    print("ready", flush=True)
    sys.stdin.readline()
    for consumer in consumers:
        consumer.subscribe([topic])
    told: list[int] = []
    while True:
        for consumer in consumers:
            consumer.poll(0)
        counts = [len(consumer.assignment()) for consumer in consumers]
        if counts != told:
            told = counts
            print(json.dumps({"at": time.monotonic(), "counts": counts}), flush=True)
        time.sleep(REST_SECONDS)


if __name__ == "__main__":
    main()
