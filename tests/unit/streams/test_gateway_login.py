"""Which token and which certificates count, and what is refused without a token being shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from duramen.errors import ConfigError
from duramen.streams.address import parse_address
from duramen.streams.gateway_login import login_at
from duramen.streams.namespace import open_namespace

TLS = "duramen+https://gateway.example:8443/x"
LOCAL = "duramen+http://127.0.0.1:8082/x"
SECRET = "duramen_abc-DEF_123"


@pytest.mark.parametrize("uri", [TLS, LOCAL, "duramen+http://localhost:1/x", "duramen+http://[::1]:1/x"])
def test_the_argument_counts_and_without_it_the_environment(uri: str) -> None:
    address = parse_address(uri)
    bearer = {"Authorization": f"Bearer {SECRET}"}
    assert login_at(address, SECRET, None, {"DURAMEN_TOKEN": "other"}).headers == bearer
    assert login_at(address, None, None, {"DURAMEN_TOKEN": f"{SECRET}\n"}).headers == bearer
    login = login_at(address, f"{SECRET}\n", None, {})
    assert login.headers == bearer
    assert SECRET not in repr(login)
    assert not login_at(address, None, None, {"DURAMEN_TOKEN": ""}).has_token
    assert (login.tls is not None) == address.is_https


@pytest.mark.parametrize("token", ["", " ", f"{SECRET}\r\nX: y", f"{SECRET} two", f"{SECRET}\u00e9", SECRET * 30, 7])
def test_what_is_no_token_is_refused_unseen(token: str) -> None:
    with pytest.raises(ConfigError, match="token= is no bearer token") as found:
        login_at(parse_address(TLS), token, None, {})
    assert SECRET not in str(found.value)


@pytest.mark.parametrize("host", ["10.0.0.7:1", "gateway.example:80", "[fe80::1]:1"])
def test_a_token_does_not_travel_in_the_clear(host: str) -> None:
    address = parse_address(f"duramen+http://{host}/x")
    for token, environment in ((SECRET, {}), (None, {"DURAMEN_TOKEN": SECRET})):
        with pytest.raises(ConfigError, match=r"in the clear.*duramen\+https://") as found:
            login_at(address, token, None, environment)
        assert SECRET not in str(found.value)
    assert not login_at(address, None, None, {}).has_token


def test_what_an_address_has_no_use_for_is_refused() -> None:
    for uri in ("duramen://a:1/x", "duramen+file:///data"):
        for token, ca_file in ((SECRET, None), (None, "ca.pem")):
            with pytest.raises(ConfigError, match="are for a gateway"):
                open_namespace(uri, token=token, ca_file=ca_file)
    with pytest.raises(ConfigError, match="TLS"):
        login_at(parse_address(LOCAL), None, "ca.pem", {})
    assert login_at(parse_address(LOCAL), None, None, {"DURAMEN_CA_FILE": "absent.pem"}).tls is None


@pytest.mark.parametrize("content", [None, b"", b"nothing", b"\xff\0"])
def test_a_file_without_certificates_is_refused_by_its_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    why = "cannot be read: No such file" if content is None else "no certificate in it"
    with pytest.raises(ConfigError, match=f"^ca_file={path}.*{why}"):
        login_at(parse_address(TLS), None, str(path), {"DURAMEN_CA_FILE": "other"})
    with pytest.raises(ConfigError, match=f"^DURAMEN_CA_FILE={path}.*{why}"):
        login_at(parse_address(TLS), None, None, {"DURAMEN_CA_FILE": str(path)})
