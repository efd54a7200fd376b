"""A process that takes a share of a processor and does nothing: what any neighbour costs those beside it.

    python -m benchmarks.bystander SHARE SECONDS

It computes for BURST_SECONDS at a time, about as long as the node takes to send a piece of old data, and sleeps in
between. Its last line is JSON: the seconds of processor time that it took, `processor_s`, and `seconds`.
"""

from __future__ import annotations

import json
import sys
import time

BURST_SECONDS = 60e-6
LARGEST_SHARE = 0.9


def main(words: list[str]) -> int:
    share, seconds = min(max(float(words[0]), 0.0001), LARGEST_SHARE), float(words[1])
    print("computing", flush=True)
    began = now = time.monotonic()
    used = time.process_time()
    while now - began < seconds:
        while time.monotonic() - now < BURST_SECONDS:
            pass
        # What sleeping and waking take is its share, too: how far it is says the clock of the process.
        time.sleep(max((time.process_time() - used) / share - (time.monotonic() - began), BURST_SECONDS))
        now = time.monotonic()
    print(json.dumps({"processor_s": time.process_time() - used, "seconds": now - began}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
