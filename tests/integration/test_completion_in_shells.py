"""The completion scripts in the shells themselves, where those are installed."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from tests.worlds.served_node import DURAMEN, only_duramen

pytestmark = only_duramen


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on PATH")
    return found


def environment(home: Path) -> dict[str, str]:
    path = f"{Path(DURAMEN).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "TERM": "dumb"}


def script(name: str, folder: Path) -> Path:
    path = folder / f"completion.{name}"
    made = subprocess.run([DURAMEN, "completion", name], capture_output=True, text=True, timeout=30, check=True)
    path.write_text(made.stdout)
    return path


def test_fish(tmp_path: Path) -> None:
    fish = shell("fish")
    ask = "complete -C 'duramen to'; complete -C 'duramen topic d'; complete -C 'duramen topic create --par'"
    command = [fish, "--no-config", "-c", f"source {script('fish', tmp_path)}; {ask}"]
    env = environment(tmp_path)
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=True)
    words = [line.partition("\t")[0] for line in ran.stdout.splitlines()]
    assert words == ["topic", "delete", "describe", "--partitions"]


def test_bash(tmp_path: Path) -> None:
    bash = shell("bash")
    ask = "COMP_WORDS=(duramen topic d); COMP_CWORD=2; _duramen_completion duramen; echo ${COMPREPLY[@]}"
    command = [bash, "--norc", "-c", f"source {script('bash', tmp_path)}; {ask}"]
    env = environment(tmp_path)
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=True)
    assert set(ran.stdout.split()) == {"delete", "describe"}


def test_zsh(tmp_path: Path) -> None:
    """zsh completes only at a terminal, so it gets one, and the Tab key is pressed."""
    zsh = shell("zsh")
    path = script("zsh", tmp_path)
    process, terminal = pty.fork()
    if process == 0:  # the child
        os.execve(zsh, [zsh, "-f"], environment(tmp_path))
    try:
        setup = f"autoload -Uz compinit; compinit -u -D; source {path}; PS1='go''on> '\n"
        type_in(terminal, setup, "goon> ")
        type_in(terminal, "duramen to\t", "duramen topic")
        type_in(terminal, "create --par\t", "--partitions")
    finally:
        os.close(terminal)
        os.kill(process, 9)
        os.waitpid(process, 0)


def type_in(terminal: int, keys: str, awaited: str) -> None:
    os.write(terminal, keys.encode())
    seen = ""
    deadline = time.monotonic() + 100
    while awaited not in seen.replace("\r", ""):
        assert time.monotonic() < deadline, f"{awaited!r} did not come: {seen!r}"
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 65536).decode(errors="replace")
