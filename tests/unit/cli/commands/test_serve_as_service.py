"""docs/operations.md, "As a service": the unit, the image and the container line say what our command line takes."""

from __future__ import annotations

import argparse
import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from duramen.cli.commands.serve import command
from duramen.cli.main import COMMANDS
from duramen.cli.shared.output import pairs
from duramen.config import load_broker_config
from duramen.config.broker import BrokerConfig

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## As a service") : PAGE.index("## The log")]

UNIT_KEYS = {
    "Unit": {"Description", "Wants", "After"},
    "Service": {
        "Type",
        "User",
        "StateDirectory",
        "StateDirectoryMode",
        "ExecStart",
        "Restart",
        "RestartSec",
        "RestartPreventExitStatus",
        "TimeoutStopSec",
        "LimitNOFILE",
        "NoNewPrivileges",
        "ProtectSystem",
        "ProtectHome",
        "PrivateTmp",
    },
    "Install": {"WantedBy"},
}
"""What the unit may say, as systemd.unit(5), systemd.service(5) and systemd.exec(5) spell it: it warns, and passes over
what it does not know."""


def block(language: str, begins: str = "") -> str:
    (found,) = [
        text
        for text in re.findall(rf"^```{language}\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
        if text.startswith(begins)
    ]
    return str(found)


def served(words: list[str], file_text: str | None = None, more: tuple[str, ...] = ()) -> BrokerConfig:
    """The configuration with which `duramen serve` would start that is called with these words."""
    assert words[0] in COMMANDS
    assert words[0] == "serve"
    made = command.make_context("serve", words[1:])
    config = load_broker_config(file_text, pairs("--set", (*made.params["settings"], *more)))
    config.check()
    return config


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(block("ini"))
    return parser


def test_the_unit_starts_a_node_with_the_file_that_the_page_shows(tmp_path: Path) -> None:
    for name, section in unit().items():
        assert set(section) == UNIT_KEYS.get(name, set()), name
    service = unit()["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program == "/opt/duramen/bin/duramen"
    file = words[words.index("--config") + 1]
    assert f"`{file}`" in SECTION
    shown = tmp_path / "server.properties"
    shown.write_text(block("properties"))
    config = served([str(shown) if word == file else word for word in words], shown.read_text())
    assert config.strings("log.dirs") == [f"/var/lib/{service['StateDirectory']}"]
    assert [str(address) for address in config.listeners] == ["PLAINTEXT://127.0.0.1:9092"]
    assert config.metrics_listener is not None
    assert service["RestartPreventExitStatus"] == "2"  # of a setting that is wrong: test_main.py


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_knows_all_of_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "duramen.service"
    file.write_text(block("ini").replace("/opt/duramen/bin/duramen", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, timeout=60)
    assert [line for line in done.stderr.splitlines() if "duramen.service" in line] == []


def options() -> argparse.ArgumentParser:
    """Those of `docker run` that the page uses, which `podman run` has, too."""
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--detach", action="store_true")
    parser.add_argument("--restart", choices=["no", "on-failure", "always", "unless-stopped"])
    parser.add_argument("--stop-timeout", type=int)
    for name in ("--name", "--memory", "--publish", "--volume"):
        parser.add_argument(name)
    parser.add_argument("image")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    return parser


def test_the_container_serves_who_reaches_its_port_and_keeps_its_data() -> None:
    build, _, line = block("sh", "docker build").rpartition("END\n")
    program, run, *words = shlex.split(line)
    assert (program, run) == ("docker", "run")
    given = options().parse_args(words)
    config = served(given.words)
    assert f"docker build -t {given.image} -f - . " in build
    assert given.volume.split(":")[1:] == config.strings("log.dirs")
    _, outside, inside = given.publish.split(":")
    (listener,), (told,) = config.listeners, config.advertised_listeners
    assert (listener.host, listener.port) == ("0.0.0.0", int(inside))
    assert (told.host, told.port) == ("localhost", int(outside))


def test_the_image_has_what_it_copies_and_the_entry_point() -> None:
    lines = block("sh", "docker build").partition("<<'END'\n")[2].partition("\nEND\n")[0].splitlines()
    said = {word: rest for word, _, rest in (line.partition(" ") for line in lines)}
    assert list(said) == ["FROM", "COPY", "RUN", "USER", "VOLUME", "STOPSIGNAL", "ENTRYPOINT", "CMD"]
    copied = [name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]]
    assert "pyproject.toml" in copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    version = said["FROM"].partition("python:")[2].removesuffix("-slim")
    project = (ROOT / "pyproject.toml").read_text()
    assert 'requires-python = ">=3.11"' in project
    assert tuple(map(int, version.split("."))) >= (3, 11)
    assert said["ENTRYPOINT"] == '["duramen"]'
    assert 'duramen = "' in project
    words = [word.strip(' "') for word in said["CMD"].strip("[]").split(",")]
    assert served(words).strings("log.dirs") == [said["VOLUME"]]


def test_a_second_listener_for_other_containers_is_one_that_starts() -> None:
    line = shlex.split(block("sh", "docker build").splitlines()[-1])
    more = re.findall(r"`--set ([^`]*INSIDE[^`]*)`", SECTION)
    assert len(more) == 3
    config = served(options().parse_args(line[2:]).words, more=tuple(more))
    assert [address.port for address in config.listeners] == [9092, 9093]
    assert [(address.host, address.port) for address in config.advertised_listeners] == [
        ("localhost", 9092),
        ("duramen", 9093),
    ]
