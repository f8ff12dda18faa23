"""Contexts from PEM files: what is refused and why, and what happens when files change."""

import datetime
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.kraft.raft.net.mutual_tls import tls_name
from barnabas.log.disk.secret_files import write_secret
from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.base.local.certificates import (
    AUTHORITY,
    AUTHORITY_KEY,
    Authority,
    broker_certificate,
    client_certificate,
    make_authority,
    read_authority,
)
from barnabas.net.base.local.secure_files import prepare
from barnabas.net.base.local.secure_layout import SECURITY
from barnabas.net.wire.tls import TlsContexts, TlsFiles, TlsRules

NOW = datetime.datetime.now(datetime.UTC)
HOST = "broker.example.com"
STEPS = 10  # of a handshake in memory


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return make_authority(tmp_path, "test", now=NOW)


def files(tmp_path: Path, certificate: bytes) -> TlsFiles:
    write_secret(tmp_path / "own.pem", certificate)
    return TlsFiles(certificate=str(tmp_path / "own.pem"), authorities=str(tmp_path / AUTHORITY))


def handshake(
    server: ssl.SSLContext | None, client: ssl.SSLContext, name: str = HOST, *, session: ssl.SSLSession | None = None
) -> ssl.SSLObject:
    """The client's side, once both have ended."""
    assert server is not None
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(here, there, server_hostname=name, session=session),
        server.wrap_bio(there, here, server_side=True),
    )
    for _ in range(STEPS):
        if sum(_has_ended(side) for side in sides) == len(sides):
            return sides[0]
    raise AssertionError("the handshake does not end")


def _has_ended(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def serial(side: ssl.SSLObject) -> object:
    return (side.getpeercert() or {})["serialNumber"]


def test_a_broker_and_a_client_know_each_other_by_their_authority(tmp_path: Path, authority: Authority) -> None:
    broker = TlsContexts(
        files(tmp_path, broker_certificate(authority, 0, (HOST,), now=NOW)), TlsRules(client_auth="required")
    )
    write_secret(tmp_path / "user.pem", client_certificate(authority, "user", now=NOW))
    user = TlsContexts(TlsFiles(certificate=str(tmp_path / "user.pem"), authorities=str(tmp_path / AUTHORITY)))
    assert handshake(broker.server, user.client).version() == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(broker.server, user.client, "other.example.com")
    anonymous = TlsContexts(TlsFiles(authorities=str(tmp_path / AUTHORITY)))
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(broker.server, anonymous.client)
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        handshake(user.server, broker.client)  # the certificate of a client is none of a broker


def test_only_the_versions_that_are_allowed_are_spoken(tmp_path: Path, authority: Authority) -> None:
    own = files(tmp_path, broker_certificate(authority, 0, (HOST,), now=NOW))
    old = TlsContexts(own, TlsRules(versions=("TLSv1.2",)))
    assert handshake(old.server, TlsContexts(own).client).version() == "TLSv1.2"
    with pytest.raises(ssl.SSLError, match="PROTOCOL"):
        handshake(old.server, TlsContexts(own, TlsRules(versions=("TLSv1.3",))).client)


def _expired(authority: Authority) -> bytes:
    return broker_certificate(authority, 0, (HOST,), now=NOW - datetime.timedelta(days=20), days=5)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda ours: broker_certificate(ours, 1, (HOST,), now=NOW), "node-0"),
        (_expired, "expired"),
        (lambda ours: client_certificate(ours, tls_name(0), now=NOW), "purpose"),
    ],
)
def test_a_certificate_that_other_voters_would_refuse_is_refused_here(
    tmp_path: Path, authority: Authority, make: Callable[[Authority], bytes], reason: str
) -> None:
    with pytest.raises(InvalidConfigError, match=reason):
        TlsContexts(files(tmp_path, make(authority)), TlsRules(client_auth="required", own_name=tls_name(0)))


@pytest.mark.parametrize("host", ["node-1", "NODE-1", "node-1.", "node-01"])
def test_no_broker_gets_a_certificate_that_speaks_for_another_one(authority: Authority, host: str) -> None:
    """Machines are called so, too."""
    with pytest.raises(InvalidConfigError, match="another broker"):
        broker_certificate(authority, 0, (HOST, host), now=NOW)
    assert broker_certificate(authority, 1, ("node-1", "node-1.example.com"), now=NOW)


def test_new_files_are_used_and_wrong_ones_are_not(tmp_path: Path, authority: Authority) -> None:
    own = files(tmp_path, broker_certificate(authority, 0, (HOST,), now=NOW))
    contexts = TlsContexts(own, TlsRules(own_name=tls_name(0)))
    first = serial(handshake(contexts.server, contexts.client))
    assert not contexts.reload_if_changed()

    for wrong in (b"nothing", broker_certificate(authority, 5, (HOST,), now=NOW)):
        write_secret(tmp_path / "own.pem", wrong)
        with pytest.raises(InvalidConfigError):
            contexts.reload_if_changed()
        assert serial(handshake(contexts.server, contexts.client)) == first
    (tmp_path / "own.pem").unlink()
    with pytest.raises(InvalidConfigError, match="cannot be read"):
        contexts.reload_if_changed()

    write_secret(tmp_path / "own.pem", broker_certificate(authority, 0, (HOST,), now=NOW))
    assert contexts.reload_if_changed()
    second = serial(handshake(contexts.server, contexts.client))
    assert second != first and contexts.server_now() is contexts.server


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_an_authority_that_was_removed_is_trusted_no_more(tmp_path: Path, authority: Authority, version: str) -> None:
    """Nor is a session resumed that one of its clients began: there, no certificate is asked for."""
    own = files(tmp_path, broker_certificate(authority, 0, (HOST,), now=NOW))
    contexts = TlsContexts(own, TlsRules(client_auth="required", versions=(version,)))
    former = contexts.client
    session = handshake(contexts.server_now(), former).session
    newer = make_authority(tmp_path / "newer", "newer", now=NOW)
    (tmp_path / AUTHORITY).write_bytes(newer.pem)
    write_secret(tmp_path / "own.pem", broker_certificate(newer, 0, (HOST,), now=NOW))
    assert contexts.reload_if_changed()
    handshake(contexts.server_now(), contexts.client)
    former.load_verify_locations(cadata=newer.pem.decode())  # it would accept the server; the server must not accept it
    for resumed in (None, session):
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(contexts.server_now(), former, session=resumed)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_no_ticket_stands_for_a_certificate(tmp_path: Path, authority: Authority, version: str) -> None:
    """With a ticket of TLS 1.2, a client came back when its certificate had expired."""
    own = files(tmp_path, broker_certificate(authority, 0, (HOST,), now=NOW))
    contexts = TlsContexts(own, TlsRules(client_auth="required", versions=(version,)))
    session = handshake(contexts.server_now(), contexts.client).session
    assert session is None or not session.has_ticket


def test_an_encrypted_key_needs_its_password(tmp_path: Path, authority: Authority) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    pem = broker_certificate(authority, 0, (HOST,), now=NOW)
    key = load_pem_private_key(pem, password=None)
    hidden = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (tmp_path / "key.pem").write_bytes(hidden)
    own = files(tmp_path, pem)

    def contexts(password: str | None) -> TlsContexts:
        return TlsContexts(TlsFiles(certificate=own.certificate, key=str(tmp_path / "key.pem"), key_password=password))

    assert contexts("secret").server is not None
    with pytest.raises(InvalidConfigError, match="no password is set"):
        contexts(None)
    with pytest.raises(InvalidConfigError, match="password of the private key is wrong"):
        contexts("wrong")
    assert "secret" not in repr(TlsFiles(key_password="secret"))


def test_a_key_of_another_certificate_is_named(tmp_path: Path, authority: Authority) -> None:
    own = files(tmp_path, broker_certificate(authority, 0, (HOST,), now=NOW))
    write_secret(tmp_path / "other.pem", broker_certificate(authority, 0, (HOST,), now=NOW))
    with pytest.raises(InvalidConfigError, match="does not belong to the certificate"):
        TlsContexts(TlsFiles(certificate=own.certificate, key=str(tmp_path / "other.pem")))


def test_keys_are_files_of_their_owner_and_an_authority_is_not_replaced(tmp_path: Path, authority: Authority) -> None:
    assert (tmp_path / "ca.key").stat().st_mode & 0o077 == 0
    with pytest.raises(FileExistsError):
        make_authority(tmp_path, "again", now=NOW)
    assert read_authority(tmp_path).pem == authority.pem
    with pytest.raises(InvalidConfigError, match="no usable authority"):
        read_authority(tmp_path / "nowhere")


def test_an_authority_whose_key_is_kept_elsewhere_is_not_replaced(tmp_path: Path) -> None:
    prepare(tmp_path, ["127.0.0.1:9092"])
    home = tmp_path / SECURITY
    made = (home / AUTHORITY).read_bytes()
    (home / AUTHORITY_KEY).rename(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match="exists already"):
        make_authority(home, "again", now=NOW)
    (home / "admin.pem").unlink()
    with pytest.raises(InvalidConfigError, match=r"no usable authority.*ca\.key.*No such file"):
        prepare(tmp_path, ["127.0.0.1:9092"])
    assert (home / AUTHORITY).read_bytes() == made
