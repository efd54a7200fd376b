"""python -m tests.models.models_report: every model explored within its bounds, then without each of its rules.

    python -m tests.models.models_report [--stories]

prints the states of each search. A search that is not whole, or a rule that is not missed, is a failure.
"""

from __future__ import annotations

import sys
import time

from tests.models.catalogue import MODELS, Search, run


def line(search: Search, stories: bool) -> tuple[str, int, bool]:
    """What is printed of it, its states, and whether it is as it should be."""
    began = time.perf_counter()
    found = run(search)
    seconds = time.perf_counter() - began
    if search.without:
        what = f"without {search.without}"
        outcome = f"found: {found.violation}, by {len(found.story)} steps" if found.violation else "NOT FOUND"
        is_right = found.violation is not None
    else:
        what = "all rules"
        outcome = f"all hold, up to {found.depth} steps" if found.whole else f"BROKEN: {found.violation}"
        is_right = found.whole
    told = f"{search.name:8} {what:26} {found.states:9,} states {seconds:6.1f} s  {search.bounds}\n{'':36}{outcome}"
    if found.story and (stories or not is_right or not search.without):
        told += "".join(f"\n{'':40}{step}" for step in found.story)
    return told, found.states, is_right


def main(arguments: list[str]) -> int:
    wrong = states = 0
    began = time.perf_counter()
    for search in MODELS:
        told, seen, is_right = line(search, "--stories" in arguments)
        print(told, flush=True)
        states += seen
        wrong += not is_right
    print(
        f"{len(MODELS)} searches, {states:,} states, {time.perf_counter() - began:.0f} s, {wrong} not as they should be"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
