"""What the commands themselves refuse, where a node or the client library would take it or fall silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.worlds.served_node import Served

from duramen.cli.main import main
from duramen.cli.shared.preflight import find_node

Refused = Callable[..., str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    node = Served(tmp_path_factory.mktemp("node"), {})
    node.start()
    assert main(["topic", "create", "t", "--bootstrap", node.bootstrap]) == 0
    try:
        yield node
        assert node.stop() == 0, node.log()
    finally:
        node.kill()


@pytest.fixture
def refused(served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Runs a command that must end with `code` and one line, which it returns."""
    monkeypatch.setenv("DURAMEN_BOOTSTRAP", served.bootstrap)

    def run(*arguments: str, code: int) -> str:
        capsys.readouterr()
        assert main(arguments) == code
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1), said
        return said.err

    return run


def test_a_look_at_who_listens_reads_all_of_the_answer(served: Served) -> None:
    """The node told of a connection that was reset. (The client library may reset its own when it is done.)"""
    before = served.log().count("connection-closed")
    for _ in range(20):
        find_node(served.bootstrap, 10.0)
    assert served.log().count("connection-closed") == before


NO_NAME = "no topic can have this name; one is made of up to 249 letters, digits, dots, dashes and underscores."


@pytest.mark.parametrize("command", [("topic", "alter", "t"), ("config", "alter", "--topic", "t")])
def test_a_setting_is_changed_in_one_way(command: tuple[str, ...], refused: Refused) -> None:
    said = refused(*command, "--set", "retention.ms=5", "--unset", "retention.ms", code=2)
    assert "retention.ms is to be changed in two ways" in said


def test_what_is_unset_has_to_be_a_setting(refused: Refused) -> None:
    """`changed 1 setting` stood there, and a misspelt one stayed as it was."""
    assert "t has no setting retention.mss" in refused("topic", "alter", "t", "--unset", "retention.mss", code=1)
    assert "node 1 has no setting nonsense" in refused("config", "alter", "--unset", "nonsense", code=1)
    assert main(["config", "alter", "--topic", "t", "--unset", "retention.ms"]) == 0


def test_nobody_writes_to_the_metadata_log(refused: Refused, tmp_path: Path) -> None:
    """The command waited for the whole of its time-out."""
    (tmp_path / "lines").write_text("x\n")
    for name, why in (("__cluster_metadata", "only the node writes to it."), ("no/slashes", NO_NAME)):
        said = refused("produce", name, str(tmp_path / "lines"), code=1)
        assert said.startswith(f"duramen: {name}: {why}")


def test_it_is_told_which_name_no_topic_can_have(refused: Refused) -> None:
    """Of a space it was said that perhaps only the node writes there, and of all names."""
    assert refused("consume", "a b", code=1) == f"duramen: a b: {NO_NAME}\n"
    assert refused("consume", "a, b", code=1) == f"duramen: a, b: {NO_NAME}\n"
    assert refused("consume", "t", "a b", code=1).endswith(f"duramen: a b: {NO_NAME}\n")


def test_what_is_refused_for_one_reason_is_told_once(refused: Refused) -> None:
    """Thirty names stood in one line with the same sentence behind each."""
    names = [f"t{number}" for number in range(30)]
    said = refused("topic", "create", *names, "--partitions", "400", code=1)
    assert said.count("12000 partitions in one request") == 1
    assert said.startswith("duramen: t0, t1, ")
    assert "t9 and 20 more: " in said


def test_partitions_of_a_reset_are_numbers(refused: Refused) -> None:
    reset = ("group", "reset-offsets", "g", "--to-earliest", "--topic")
    assert "expected TOPIC or TOPIC:N,N" in refused(*reset, "", code=2)
    assert "expected TOPIC:N,N" in refused(*reset, f"t:{'9' * 5000}", code=2)
    assert "t has no partition 9999999999" in refused(*reset, "t:0,9999999999", code=1)
