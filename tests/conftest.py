"""What makes the whole suite short: how tests are dealt out to processes, and what the collector need not look at."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator

import pytest
from benchmarks.kafka_peer import PeerUnavailableError
from hypothesis import HealthCheck, settings
from tests.worlds import kafka_classes
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/spark/"
SESSION = tuple(SPARK + name for name in ("connector/", "pipelines/", "test_sink_writes.py", "test_source.py"))
"""Who uses the `spark` fixture; a file that is missing here gets a session of its own."""
LONG = tuple(
    f"tests/{name}.py"
    for name in (
        "simulation/test_seeds",
        "spark/test_source_cluster",
        "crash/test_crash_states",
        "unit/pipelines/tables/test_store_upkeep",
        "scenarios/test_power_cut_storage",
        "scenarios/test_kafka_directories",
        "unit/cli/test_main_commands",
    )
)
"""Files that take longest on four processes, and the longest of the unit tests: none of them is to be the last."""
UNITS = "tests/unit/"

# PySpark gives a worker 15 s to come to the JVM's socket, which a loaded machine needs.
os.environ.setdefault("SPARK_AUTH_SOCKET_TIMEOUT", "120")

# Who runs the suite in the background of a script, or under nohup, has these ignored, and so would every command that a
# test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes says something about the machine.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


class ByFile(LoadScopeScheduling):
    """A file's tests stay in one process, and so do all that share the one Spark session."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SESSION) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # the order is that of the next function
    return ByFile(config, log)


def _turn(item: pytest.Item) -> int:
    file = item.nodeid.partition("::")[0]
    if file.startswith(SESSION):
        return -1
    return LONG.index(file) if file in LONG else len(LONG) + file.startswith(UNITS)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, the Spark session's before all: the many short ones fill up what is left at the end."""
    items.sort(key=_turn)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """A place for temporary files that goes with the run: whatever is killed in a test leaves some behind.

    Set before there are other processes, all of which inherit it; Java has to be told by an option.
    """
    if hasattr(config, "workerinput"):
        return
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # what a test wrote can be looked at later
    place = tempfile.mkdtemp(prefix="duramen-tests-")
    config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))
    os.environ["TMPDIR"] = tempfile.tempdir = place
    # A JVM that lives for seconds spends most of them in its optimising compiler.
    os.environ.setdefault("JAVA_TOOL_OPTIONS", f"-XX:TieredStopAtLevel=1 -Djava.io.tmpdir={place}")


def _folder(nodeid: str) -> str:
    """`tests/unit/<package>` for unit tests, `tests/<kind>` for others."""
    parts = nodeid.partition("::")[0].split("/")
    return "/".join(parts[: 3 if nodeid.startswith(UNITS) else 2])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The seconds of each folder, of all processes together."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[_folder(report.nodeid)] += report.duration
    if len(seconds) > 1:
        terminalreporter.section("seconds of each folder")
        for folder, spent in seconds.most_common():
            terminalreporter.write_line(f"{spent:8.1f}  {folder}")


@pytest.fixture(scope="module")
def kafka_jars() -> Iterator[None]:
    """Apache Kafka can be run, or the tests are skipped: without Java or Maven."""
    try:
        options = kafka_classes.java_options()
    except PeerUnavailableError as reason:
        pytest.skip(str(reason))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(kafka_classes.OPTIONS, options)
        yield


# Simulated worlds and messages are many small objects that die by themselves: every 700th is too often to look. A world
# that an exception's traceback keeps is few objects and many MiB: the collector alone would let dozens of them gather.
gc.set_threshold(8_000, 4, 1)
GROWN_PAGES = (32 << 20) // resource.getpagesize()
"""What a process may grow by before it looks for worlds that nobody holds any more."""


def _resident_pages() -> int:
    """0 where the system does not tell."""
    with contextlib.suppress(OSError), open("/proc/self/statm", "rb") as figures:
        return int(figures.read().split()[1])
    return 0


_pages = 0


def _collect(freeze: bool) -> None:
    """freeze: what lives now stays, hundreds of thousands of objects that every collection would walk through again."""
    global _pages
    gc.collect()
    if freeze:
        gc.freeze()
    _pages = _resident_pages()


def pytest_collection_finish() -> None:
    _collect(freeze=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    yield
    if nextitem is None or nextitem.path != item.path:
        _collect(freeze=True)
    elif _resident_pages() > _pages + GROWN_PAGES:
        _collect(freeze=False)
