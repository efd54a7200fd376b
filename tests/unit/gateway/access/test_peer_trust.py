"""Certificates of other gateways."""

from __future__ import annotations

from pathlib import Path

import pytest

from duramen.errors import ConfigError
from duramen.gateway.access.peer_trust import PeerTrust


def test_a_file_that_has_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        PeerTrust(str(tmp_path / "none"))
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"gateway\.tls\.ca=.* has no certificates"):
        PeerTrust(str(tmp_path / "ca.pem"))


def test_the_systems() -> None:
    trust = PeerTrust("")
    assert trust.context.check_hostname
    assert trust.context is trust.context
