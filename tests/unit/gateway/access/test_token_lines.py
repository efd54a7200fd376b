"""The file of tokens: what its lines mean, and which count as if they were not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from duramen.errors import ConfigError
from duramen.gateway.access.authenticator import BearerTokens, token_in
from duramen.gateway.access.principal import parse_permission
from duramen.gateway.access.token_lines import fresh_token, hash_of, parse_token_lines, token_line
from duramen.gateway.edge.problem import ProblemError


def test_a_line_comes_back() -> None:
    token = fresh_token()
    line = token_line("alice", token, [parse_permission("read=*"), parse_permission("write=a/*")])
    found, mistakes = parse_token_lines(f"# people\n\n  {line}\n")
    assert not mistakes
    assert found[hash_of(token)].name == "alice"
    assert [str(permission) for permission in found[hash_of(token)].permissions] == ["read=*", "write=a.*"]
    assert token not in line


def test_tokens_are_long_and_different() -> None:
    assert len({fresh_token() for _ in range(100)}) == 100
    assert len(fresh_token()) > 43


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("alice", "name:hash:permissions"),
        ("alice:" + "a" * 63 + ":read=*", "SHA-256"),
        ("alice:" + "A" * 64 + ":read=*", "SHA-256"),
        ("al ice:" + "a" * 64 + ":read=*", "a name has"),
        ("alice:" + "a" * 64 + ":see=*", "no permission"),
        ("bob:" + "b" * 64 + ":read=*", "earlier line"),
    ],
)
def test_a_mistake_leaves_one_line_out(line: str, why: str) -> None:
    found, mistakes = parse_token_lines(f"bob:{'b' * 64}:read=*\n{line}\ncarol:{'c' * 64}:read=*\n")
    assert [principal.name for principal in found.values()] == ["bob", "carol"]
    assert len(mistakes) == 1
    assert mistakes[0].startswith("line 2: ")
    assert why in mistakes[0]
    assert "aaaa" not in mistakes[0]


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({}, None),
        ({"authorization": "Bearer abc"}, "abc"),
        ({"authorization": "bearer  abc "}, "abc"),
        ({"authorization": "Basic abc", "cookie": "duramen-token=xyz"}, None),
        ({"authorization": "Bearer"}, None),
        ({"authorization": "Bearer " + "a" * 513}, None),
        ({"cookie": 'a="; b; duramen-token=xyz; c=1'}, "xyz"),
        ({"cookie": "xduramen-token=xyz"}, None),
        ({"cookie": "duramen-token="}, None),
    ],
)
def test_the_token_of_a_request(headers: dict[str, str], token: str | None) -> None:
    assert token_in(Headers(headers)) == token


def test_a_changed_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(token_line("alice", "a", [parse_permission("read=a.*")]))
    tokens = BearerTokens(str(path))
    alice = Headers({"authorization": "Bearer a"})
    assert tokens.principal(alice).name == "alice"
    assert tokens.refresh() is None
    path.write_text(token_line("alice", "a", [parse_permission("read=b.*")]) + "\nnonsense\n")
    assert tokens.refresh() == ["line 2: not of the form name:hash:permissions; `duramen gateway token` prints one"]
    assert not tokens.is_allowed(alice, "read", "a.b")
    assert tokens.is_allowed(alice, "read", "b.c")
    os.remove(path)
    assert tokens.refresh() == ["it cannot be read: No such file or directory"]
    assert not tokens.is_allowed(alice, "read", "b.c")
    with pytest.raises(ProblemError) as refused:
        tokens.principal(alice)
    assert refused.value.status == 401
    assert refused.value.headers == {"www-authenticate": 'Bearer error="invalid_token"'}
    assert tokens.refresh() is None


@pytest.mark.parametrize("text", [None, "nonsense"])
def test_a_start_needs_a_file_that_is_right(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "tokens"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"gateway\.tokens\.file="):
        BearerTokens(str(path))


@pytest.mark.parametrize("name", ["../x", "a/../b", "/a", "a//b", "./*", ""])
def test_a_path_that_no_stream_has_is_no_permission(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        parse_permission(f"read={name}")
