"""python -m tests.museum: the catalogue, every exhibit shown with its guard and without."""

from __future__ import annotations

import sys

from tests.museum import compaction, damage, identity, limits, power, transactions  # noqa: F401  (they hang up the exhibits)
from tests.museum.exhibit import EXHIBITS, BrokenPromiseError, Exhibit, unguarded


def outcome(shown: Exhibit) -> str:
    try:
        shown.story()
    except BrokenPromiseError as error:
        return f"BROKEN: {error}"
    found = []
    for way in shown.ways:
        try:
            with unguarded(way):
                shown.story()
        except BrokenPromiseError as error:
            found.append(f"without {', '.join(map(str, way))}: {error}")
        else:
            return "BROKEN: it holds without its guard, too, so it shows nothing"
    return "\n  ".join(["holds", *found])


def main() -> int:
    broken = 0
    for shown in EXHIBITS:
        found = outcome(shown)
        broken += found.startswith("BROKEN")
        print(f"{shown.name}\n  {shown.story.__doc__}\n  {shown.source}\n  guard: {shown.guard}\n  {found}\n")
    print(f"{len(EXHIBITS)} exhibits, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
