"""Runs the conformance suite of the protocol Durable Streams against a node and a gateway in front of it.

npm puts `@durable-streams/server-conformance-tests` into a cache folder, once. Which tests must pass stands in
streams_suite.txt: the list may only grow. Not asked for are forks of streams and subscriptions, which are not served.

    make conformance-streams        the whole suite; says which tests could join the list (Node 18, npm)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.worlds.served_gateway import ServedGateway
from tests.worlds.served_node import Served

ROOT = Path(__file__).resolve().parent.parent.parent
RELEASE = "0.3.6"
CACHE = ROOT / ".cache" / f"durable-streams-{RELEASE}"
PACKAGE = "@durable-streams/server-conformance-tests"
LIST = Path(__file__).with_suffix(".txt")
ASKED_FOR = "^(?!.*(Fork - |[Ss]ubscription)).*$"
DOWNLOAD_SECONDS_MAX = 300
SUITE_SECONDS_MAX = 400
LONG_POLL_MS = 2000

SETTINGS = {"gateway.long.poll.ms": str(LONG_POLL_MS), "gateway.origins": "https://example.com"}
"""Long-polls as short as the suite is told, and the origin that it asks as."""

TESTS = f"""import {{ runConformanceTests }} from "{PACKAGE}"
runConformanceTests({{ baseUrl: process.env.STREAMS_URL, longPollTimeoutMs: {LONG_POLL_MS} }})
"""


class SuiteMissingError(Exception):
    """The suite cannot be had here; the message is the reason in one line."""


def prepare() -> None:
    """Put the suite into the cache folder."""
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "streams.test.mjs").write_text(TESTS)
    if (CACHE / "installed").exists():
        return
    (CACHE / "package.json").write_text(json.dumps({"private": True, "dependencies": {PACKAGE: RELEASE}}))
    words = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
    try:
        ran = subprocess.run(
            words, cwd=CACHE, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS_MAX, check=False
        )
    except FileNotFoundError:
        raise SuiteMissingError("there is no npm") from None
    except subprocess.TimeoutExpired:
        raise SuiteMissingError("npm took too long") from None
    if ran.returncode != 0:
        raise SuiteMissingError(f"npm could not install it: {(ran.stderr.splitlines() or ['no reason'])[-1]}")
    (CACHE / "installed").touch()


def run_suite(url: str, folder: Path) -> dict[str, str]:
    """The outcomes of all tests that are asked for: full name → passed, failed and others of vitest's."""
    report = folder / "report.json"
    words = ["node_modules/.bin/vitest", "run", "streams.test.mjs", "--root", ".", "--reporter=json"]
    words += [f"--outputFile={report}", "--testNamePattern", ASKED_FOR]
    with (folder / "vitest.log").open("w") as log:
        subprocess.run(
            words,
            cwd=CACHE,
            env={**os.environ, "STREAMS_URL": url},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=SUITE_SECONDS_MAX,
            check=False,
        )
    found: dict[str, str] = {}
    for file in json.loads(report.read_text())["testResults"]:
        for test in file["assertionResults"]:
            if test["status"] not in ("pending", "skipped"):
                name = " ".join(test["fullName"].split())
                found[name] = test["status"] if found.get(name, "passed") == "passed" else found[name]
                if test["status"] == "failed":
                    sys.stdout.write(f"{name}\n    {test['failureMessages'][0].splitlines()[0]}\n")
    return found


def main() -> int:
    """Run everything and compare with the list; 1 when a listed test does not pass."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        node = Served(folder)
        gateway = ServedGateway(folder, node.bootstrap, SETTINGS)
        try:
            prepare()
            node.start()
            gateway.start()
            outcomes = run_suite(gateway.url, folder)
            if os.environ.get("SHOW"):
                sys.stdout.write(gateway.log())
        except SuiteMissingError as reason:
            sys.stdout.write(f"the suite is not at hand: {reason}\n")
            return 1
        finally:
            gateway.kill()
            node.kill()
    listed = [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    broken = sorted(test for test in listed if outcomes.get(test) != "passed")
    new = sorted(test for test, outcome in outcomes.items() if outcome == "passed" and test not in listed)
    if new:
        sys.stdout.write("\nThese pass and may join the list:\n" + "".join(f"{test}\n" for test in new))
    if broken:
        sys.stdout.write("\nThese are on the list and do not pass:\n" + "".join(f"{test}\n" for test in broken))
    passed = sum(outcome == "passed" for outcome in outcomes.values())
    sys.stdout.write(
        f"\n{passed} of {len(outcomes)} passed, {len(listed) - len(broken)} of {len(listed)} on the list\n"
    )
    return 1 if broken or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
