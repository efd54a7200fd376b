"""What somebody sees who tries the embedded log in a console: completions, representations, refusals."""

from __future__ import annotations

import rlcompleter
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.model import INTERNAL_TOPICS


def test_a_console_shows_what_there_is() -> None:
    """Also what is imported when it is first asked for."""
    shown = set(dir(duramen))
    assert set(duramen.__all__) <= shown
    assert {"open", "Record", "Topic"} <= shown
    assert not {name for name in shown if not name.startswith("__")} - set(duramen.__all__)
    completed = rlcompleter.Completer({"duramen": duramen}).attr_matches("duramen.")
    assert {"duramen.open(", "duramen.Topic("} <= {name.rstrip(")") for name in completed}


def test_to_look_imports_no_engine() -> None:
    code = "import sys, duramen; dir(duramen); print('duramen.embedded' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


def test_logs_and_topics_say_what_they_are(tmp_path: Path) -> None:
    log = duramen.open(tmp_path)
    assert repr(log) == f"<duramen.EmbeddedLog {str(tmp_path)!r}, topics: 0>"
    topic = log.topic("events", partitions=3)
    assert repr(log) == f"<duramen.EmbeddedLog {str(tmp_path)!r}, topics: 1>"
    assert repr(topic) == f"<duramen.Topic 'events', partitions: 3, in {str(tmp_path)!r}>"
    log.close()
    assert repr(log) == f"<duramen.EmbeddedLog {str(tmp_path)!r}, closed>"
    assert repr(topic) == f"<duramen.Topic 'events', partitions: 3, in {str(tmp_path)!r}>"


def test_a_topic_that_is_not_there_is_named(tmp_path: Path) -> None:
    with duramen.open(tmp_path) as log, pytest.raises(duramen.KafkaError) as refused:
        log.delete_topic("nosuch")
    assert refused.value.code is duramen.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert str(refused.value) == f"there is no topic 'nosuch' in {tmp_path}"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (duramen.Record(value=b"v"), r"append takes a list of records: append\(\[record\]\)"),
        (5, "append takes a list of duramen.Record objects, not int"),
        (None, "append takes a list of duramen.Record objects, not NoneType"),
        (b"v", "records are duramen.Record objects, not int"),
        (["v"], "records are duramen.Record objects, not str"),
    ],
)
def test_append_says_what_it_takes(tmp_path: Path, given: Any, said: str) -> None:
    with duramen.open(tmp_path) as log:
        events = log.topic("events")
        appends: list[Callable[[Any], object]] = [events.append, events.append_async]
        for append in appends:
            with pytest.raises(TypeError, match=said):
                append(given)
        assert events.append([duramen.Record(value=b"v")]) == [0]


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_a_name_that_a_node_keeps_for_itself_is_not_made(tmp_path: Path, name: str) -> None:
    with duramen.open(tmp_path) as log:
        for partitions in (None, 3):
            with pytest.raises(duramen.KafkaError, match=f"{name} is a name that a node keeps for itself") as refused:
                log.topic(name, partitions=partitions)
            assert refused.value.code is duramen.ErrorCode.INVALID_TOPIC_EXCEPTION
        assert log._publisher.image.topic(name) is None
        assert log.topic(name.lstrip("_")).name == name.lstrip("_")


def test_a_name_is_text(tmp_path: Path) -> None:
    with duramen.open(tmp_path) as log:
        named: list[Callable[[Any], object]] = [log.topic, log.delete_topic]
        for call in named:
            with pytest.raises(TypeError, match="the name of a topic is text, not b'events'"):
                call(b"events")
