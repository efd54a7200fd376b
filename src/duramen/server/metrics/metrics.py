"""What the server counts: plain integers and fixed-bucket histograms, cheap enough for every request.

Nothing here knows Prometheus; `metrics/exposition.py` renders these numbers when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

SECONDS_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


class Histogram:
    """Counts per fixed bucket, its bound included, and their sum. Observing costs a bisection and three additions."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS_BUCKETS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS_BUCKETS, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)


class Metrics:
    """One broker's numbers."""

    def __init__(self) -> None:
        self.latency: dict[int, Histogram] = {}
        """By API key: from the request's arrival to its reply, parked time included."""
        self.errors: dict[int, int] = {}
        """By API key: requests that could not be understood or ended in an unexpected error."""
        self.error_replies: dict[tuple[int, int], int] = {}
        """By API key and error code: how often replies have told it, each partition's, topic's, group's counted."""
        self.connections_opened = 0
        self.connections_closed = 0
        self.connections_refused = 0
        self.log_lines_dropped = 0
        """Lines of the node's log that its reader left no room for."""
        self.sync = Histogram()
        """Journal group commits: write and sync."""
        self.loop_lag = Histogram()
        """How late a timer of the loop was."""
        self.loop_lag_max = 0.0
        """The latest."""
        self.heartbeat = Histogram()
        """This broker's, from when one was sent to its answer."""
        self.gc_pause = Histogram()
        self.checkpoint = Histogram()
        """Jobs of checkpoints, off the loop."""
        self.checkpoint_pause = Histogram()
        """What taking and completing such a job costs the loop."""

    def checkpointed(self, job: float, pause: float) -> None:
        """A job of a checkpoint ended: seconds off the loop, and on it."""
        self.checkpoint.observe(job)
        self.checkpoint_pause.observe(pause)

    def log_dropped(self, lines: int) -> None:
        self.log_lines_dropped += lines

    def request(self, api_key: int, seconds: float) -> None:
        """A request was answered."""
        histogram = self.latency.get(api_key)
        if histogram is None:
            histogram = self.latency[api_key] = Histogram()
        # `observe`, without the call: this is counted more often than anything.
        histogram.counts[bisect_left(SECONDS_BUCKETS, seconds)] += 1
        histogram.total += seconds

    def error(self, api_key: int) -> None:
        self.errors[api_key] = self.errors.get(api_key, 0) + 1

    def error_codes(self, api_key: int, codes: Mapping[int, int]) -> None:
        """A reply has told these errors, each so often."""
        for code, count in codes.items():
            self.error_replies[api_key, code] = self.error_replies.get((api_key, code), 0) + count
