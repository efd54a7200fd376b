"""Runs kafka-python's own integration suite, unpacked from its source archive into a cache folder, against a server.

The archive lacks two files that its tests import; this module writes stand-ins for them. Which tests must pass stands
in kafka_python_suite.txt: the list may only grow. Not on it: tests of ACLs, SASL and SSL; the one that takes the
broker's version from its API versions and compares with 4.2 (ours are those of 4.3.1, which fails it too).

    make conformance-kafka-python        the whole suite; says which tests could join the list
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from tests.worlds.served_node import Served

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / ".cache" / "kafka-python"
LIST = Path(__file__).with_suffix(".txt")
KAFKA_VERSION = "4.2.0"
FILES = ("admin", "consumer", "producer")
NOT_ASKED_FOR = re.compile(r"acl|sasl|ssl")
DOWNLOAD_SECONDS_MAX = 120
SUITE_SECONDS_MAX = 540

# What the suite's own broker fixture would have been configured with.
SETTINGS = {
    "node.id": "0",
    "num.partitions": "4",
    "default.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
}

SERVICE = '''"""Stands in for a file that is not in the source archive: the tests talk to a server that already runs."""


class ExternalService:
    def __init__(self, host, port):
        self.host = host
        self.port = port

    def open(self):
        pass

    def close(self):
        pass

    stop = close


class SpawnedService(ExternalService):
    pass
'''


class SuiteUnavailableError(Exception):
    """The suite cannot be had here; the message is the reason in one line."""


def suite() -> Path:
    """The folder of the unpacked source archive, downloaded by pip the first time."""
    release = version("kafka-python")
    folder = CACHE / f"kafka_python-{release}"
    if (folder / "test" / "service.py").exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as download:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        words = [*pip, "--no-binary", "kafka-python", "--dest", download, f"kafka-python=={release}"]
        try:
            ran = subprocess.run(words, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS_MAX, check=False)
        except subprocess.TimeoutExpired:
            raise SuiteUnavailableError("pip took too long to download kafka-python's source archive") from None
        archives = sorted(Path(download).glob("*.tar.gz"))
        if ran.returncode != 0 or not archives:
            raise SuiteUnavailableError(f"pip could not download it: {(ran.stderr.splitlines() or ['no reason'])[-1]}")
        with tarfile.open(archives[0]) as archive:
            # PEP 706 came with Python 3.11.4; the archive is the one that pip has checked.
            archive.extractall(CACHE, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (folder / "test" / "__init__.py").touch()
    (folder / "test" / "service.py").write_text(SERVICE)
    return folder


def must_pass() -> list[str]:
    """The tests on the list, as `file::test`."""
    return [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]


def run_suite(node: Served, tests: Sequence[str], seconds: float = SUITE_SECONDS_MAX) -> dict[str, str]:
    """Run these tests (all of them when empty) and return their outcomes: test → PASSED, FAILED, ERROR or SKIPPED."""
    folder = suite()
    chosen = [f"test/integration/{test}" for test in tests]
    words = chosen or [f"test/integration/test_{file}_integration.py" for file in FILES]
    (folder / "quiet.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        "quiet.ini",
        "--rootdir",
        ".",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
    ]
    environment = {
        **os.environ,
        "KAFKA_URI": f"kafka://{node.bootstrap}",
        "KAFKA_VERSION": KAFKA_VERSION,
        "KAFKA_ROOT": ".",
    }
    for inherited in ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        environment.pop(inherited, None)
    report = node.folder / "kafka-python.log"
    results = node.folder / "kafka-python.xml"
    with report.open("w") as output:
        subprocess.run(
            [*command, "--timeout=60", "-v", f"--junit-xml={results}", *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    return dict(map(outcome, ElementTree.parse(results).iter("testcase"))) if results.exists() else {}


def outcome(case: ElementTree.Element) -> tuple[str, str]:
    """(`file::test`, PASSED, FAILED, ERROR or SKIPPED) of one test in pytest's results, whatever else it printed."""
    file = case.attrib["classname"].rpartition(".")[2]
    kinds = {"failure": "FAILED", "error": "ERROR", "skipped": "SKIPPED"}
    found = [kinds[part.tag] for part in case if part.tag in kinds]
    return f"{file}.py::{case.attrib['name']}", found[0] if found else "PASSED"


def main() -> int:
    """Run everything and compare with the list; 1 when a listed test does not pass."""
    with tempfile.TemporaryDirectory() as folder:
        node = Served(Path(folder), SETTINGS)
        node.start()
        try:
            outcomes = run_suite(node, [])
            if os.environ.get("SHOW"):
                sys.stdout.write((node.folder / "kafka-python.log").read_text())
        except SuiteUnavailableError as reason:
            sys.stdout.write(f"kafka-python's suite is not at hand: {reason}\n")
            return 1
        finally:
            node.kill()
    listed = set(must_pass())
    for test, outcome in sorted(outcomes.items()):
        sys.stdout.write(f"{outcome:8} {'' if test in listed else '(not on the list) '}{test}\n")
    broken = sorted(test for test in listed if outcomes.get(test) != "PASSED")
    new = sorted(test for test, outcome in outcomes.items() if outcome == "PASSED" and test not in listed)
    new = [test for test in new if not NOT_ASKED_FOR.search(test)]
    if new:
        sys.stdout.write("\nThese pass and may join the list:\n" + "".join(f"{test}\n" for test in new))
    if broken:
        sys.stdout.write("\nThese are on the list and do not pass:\n" + "".join(f"{test}\n" for test in broken))
    passed = sum(outcome == "PASSED" for outcome in outcomes.values())
    sys.stdout.write(
        f"\n{passed} of {len(outcomes)} passed, {len(listed) - len(broken)} of {len(listed)} on the list\n"
    )
    return 1 if broken or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
