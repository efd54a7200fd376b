"""A process that computes and reads from the disk and does nothing else: what any neighbour costs those beside it.

    python -m benchmarks.bystander SHARE BYTES_PER_SECOND [FILE...] SECONDS

It takes SHARE of a processor, BURST_SECONDS at a time, about as long as the node takes to send a piece of old data, and
sleeps in between. A thread of it reads the files, as the node reads what is cold: a megabyte at a time, past the page
cache. Its last line is JSON: the processor time that it took, `processor_s`, the `bytes` that it read, and `seconds`.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import sys
import threading
import time

BURST_SECONDS = 60e-6
LARGEST_SHARE = 0.9
READ_BYTES = 1 << 20


class Reading:
    """Reads the files over and over, at a rate. bytes: so many so far."""

    def __init__(self, paths: list[str], bytes_per_second: float) -> None:
        self.bytes = 0
        self._paths = paths
        self._rate = bytes_per_second
        self._ended = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Reading:
        if self._paths and self._rate > 0:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        buffer = mmap.mmap(-1, READ_BYTES)  # on a page boundary, as a direct read wants it
        began = time.monotonic()
        for path in itertools.cycle(self._paths):
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
            try:
                position, count = 0, READ_BYTES
                while not self._ended and count == READ_BYTES:  # where the file has ended no direct read can begin
                    count = os.preadv(descriptor, [buffer], position)
                    position += count
                    self.bytes += count
                    time.sleep(max(0.0, began + self.bytes / self._rate - time.monotonic()))
            finally:
                os.close(descriptor)
            if self._ended:
                return


def main(words: list[str]) -> int:
    share, seconds = min(max(float(words[0]), 0.0001), LARGEST_SHARE), float(words[-1])
    with Reading(words[2:-1], float(words[1])) as reading:
        print("computing", flush=True)
        began = now = time.monotonic()
        used = time.process_time()
        while now - began < seconds:
            while time.monotonic() - now < BURST_SECONDS:
                pass
            # What sleeping, waking and reading take is its share, too: how far it is says the clock of the process.
            time.sleep(max((time.process_time() - used) / share - (time.monotonic() - began), BURST_SECONDS))
            now = time.monotonic()
    result = {"processor_s": time.process_time() - used, "bytes": reading.bytes, "seconds": now - began}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
