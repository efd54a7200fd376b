"""A certificate that changes is that of the next connection, and one that cannot be used leaves the one before."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from duramen.errors import ConfigError
from duramen.gateway.access.certificate import Certificate

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


class Pair:
    """A certificate of its own, and its key."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.certificate = folder / "cert.pem"
        self.key = folder / "key.pem"
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        files = ["-out", str(self.certificate), "-keyout", str(self.key)]
        subprocess.run(
            ["openssl", "req", "-x509", *key, "-subj", "/CN=localhost", *files], check=True, capture_output=True
        )

    @property
    def der(self) -> bytes:
        return ssl.PEM_cert_to_DER_cert(self.certificate.read_text())

    def take(self, other: Pair) -> None:
        """Become another one, as a tool does it that renews certificates."""
        for mine, theirs in ((self.certificate, other.certificate), (self.key, other.key)):
            fresh = mine.with_suffix(".new")
            fresh.write_bytes(theirs.read_bytes())
            fresh.replace(mine)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pair, Pair]:
    folder = tmp_path_factory.mktemp("pairs")
    return Pair(folder / "one"), Pair(folder / "two")


@pytest.fixture
def pair(made: tuple[Pair, Pair], tmp_path: Path) -> Pair:
    """A copy of the first, whose files may change."""
    found = Pair.__new__(Pair)
    found.certificate, found.key = tmp_path / "cert.pem", tmp_path / "key.pem"
    found.take(made[0])
    return found


def shown(context: ssl.SSLContext, name: str | None = "localhost") -> bytes:
    """The certificate that a new connection is shown."""
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
    asking.set_alpn_protocols(["http/1.1"])
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(down, up, server_hostname=name)
    server = context.wrap_bio(up, down, server_side=True)
    for side in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert client.selected_alpn_protocol() == "http/1.1"
    found = client.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_the_next_connection_sees_the_new_one(made: tuple[Pair, Pair], pair: Pair) -> None:
    certificate = Certificate(str(pair.certificate), str(pair.key))
    assert (certificate.refresh(), shown(certificate.context)) == (None, made[0].der)
    pair.take(made[1])
    assert certificate.refresh() == ""
    assert [shown(certificate.context, name) for name in ("localhost", None)] == [made[1].der] * 2
    assert certificate.refresh() is None


def test_what_cannot_be_used_leaves_the_one_before(made: tuple[Pair, Pair], pair: Pair) -> None:
    certificate = Certificate(str(pair.certificate), str(pair.key))
    right = pair.certificate.read_bytes()
    for content, said in (
        (b"nothing", "in PEM"),
        (b"", "in PEM"),
        (right[:-100], "in PEM"),
        (made[1].certificate.read_bytes(), "the key is not that of the certificate"),  # the key follows
    ):
        pair.certificate.write_bytes(content)
        why = certificate.refresh()
        assert why is not None
        assert said in why
        assert "\n" not in why
        assert certificate.refresh() is None, "it is said once"
        assert shown(certificate.context) == made[0].der
    pair.key.unlink()
    assert "cannot be read: No such file" in (certificate.refresh() or "")
    assert shown(certificate.context) == made[0].der
    pair.take(made[1])
    assert certificate.refresh() == ""
    assert shown(certificate.context) == made[1].der


def test_files_that_change_while_they_are_loaded(
    made: tuple[Pair, Pair], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = Certificate(str(pair.certificate), str(pair.key))
    load = certificate._loaded

    def load_and_lose() -> ssl.SSLContext:
        context = load()
        pair.certificate.write_bytes(b"nothing")
        return context

    pair.take(made[1])
    monkeypatch.setattr(certificate, "_loaded", load_and_lose)
    assert certificate.refresh() == ""
    assert shown(certificate.context) == made[1].der
    monkeypatch.setattr(certificate, "_loaded", load)
    assert "in PEM" in (certificate.refresh() or "")
    assert shown(certificate.context) == made[1].der


def test_at_the_start_it_has_to_be_right(pair: Pair) -> None:
    pair.key.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="in PEM"):
        Certificate(str(pair.certificate), str(pair.key))
