"""`barnabas security ...`: files only."""

import datetime
import errno
import json
import os
import ssl
from pathlib import Path
from typing import Any

import pytest
from unit.net.test_tls_contexts import handshake

from barnabas.log.disk.secret_files import write_secret
from barnabas.net.base.local.certificates import client_certificate, read_authority


def rows(run: Any, *files: Path) -> list[dict[str, Any]]:
    return list(json.loads(run("security", "show", *map(str, files), "-f", "json")[1]))


def verified(context_of: Path, certificate: Path) -> bool:
    """Whether who trusts the authorities of the first file trusts the client certificate in the second one: a TLS handshake."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_verify_locations(context_of)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(certificate)
    client.load_verify_locations(context_of)
    client.check_hostname = False
    client.load_cert_chain(certificate)
    try:
        return handshake(server, client).getpeercert() is not None
    except ssl.SSLError:
        return False


def test_an_authority_and_certificates_are_made_and_shown(run: Any, tmp_path: Path) -> None:
    assert run("security", "ca", str(tmp_path), "--name", "acme")[0] == 0
    assert run("security", "broker", str(tmp_path), "3", "kafka-3.example.com", "10.0.0.3")[0] == 0
    assert run("security", "client", str(tmp_path), "alice", "--days", "10")[0] == 0
    broker, alice = tmp_path / "broker-3.pem", tmp_path / "alice.pem"
    assert [path.stat().st_mode & 0o077 for path in (broker, alice, tmp_path / "ca.key")] == [0, 0, 0]
    assert [(row["subject"], row["names"], row["issuer"], row["state"]) for row in rows(run, broker, alice)] == [
        ("CN=node-3", ["node-3", "kafka-3.example.com", "10.0.0.3"], "CN=acme", "valid"),
        ("CN=alice", [], "CN=acme", "expires soon"),
    ]
    assert verified(tmp_path / "ca.pem", broker)


def test_an_authority_is_rotated_while_the_former_certificates_are_trusted(run: Any, tmp_path: Path) -> None:
    def broker(name: str) -> Path:
        assert run("security", "broker", str(tmp_path), "0", "localhost", "--out", str(tmp_path / name))[0] == 0
        return tmp_path / name

    assert run("security", "ca", str(tmp_path), "--name", "first")[0] == 0
    old = broker("old.pem")
    trust_of_old = tmp_path / "trust-of-old.pem"
    trust_of_old.write_bytes((tmp_path / "ca.pem").read_bytes())
    code, out, _ = run("security", "ca", str(tmp_path), "--rotate", "--name", "second")
    assert code == 0 and "copy it to all brokers and clients first" in out
    assert f"`barnabas security ca {tmp_path} --retire`" in out
    assert [row["subject"] for row in rows(run, tmp_path / "ca.pem")] == ["CN=second", "CN=first"]
    new = broker("new.pem")
    assert rows(run, new)[0]["issuer"] == "CN=second"
    assert verified(tmp_path / "ca.pem", old) and verified(tmp_path / "ca.pem", new)
    assert not verified(trust_of_old, new)
    assert run("security", "ca", str(tmp_path), "--retire")[0] == 0
    assert verified(tmp_path / "ca.pem", new) and not verified(tmp_path / "ca.pem", old)


@pytest.mark.parametrize("refused", ["ca.pem", "ca.key"])
def test_a_rotation_that_breaks_off_has_left_an_authority_whose_certificates_are_trusted(
    run: Any, tmp_path: Path, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("security", "ca", str(tmp_path), "--name", "first")
    replace = os.replace

    def failing(source: str, target: str) -> None:
        if Path(target).name == refused:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        assert run("security", "ca", str(tmp_path), "--rotate", "--name", "second")[0] == 1
    assert run("security", "broker", str(tmp_path), "0", "localhost")[0] == 0
    assert rows(run, tmp_path / "broker-0.pem")[0]["issuer"] == "CN=first"
    assert verified(tmp_path / "ca.pem", tmp_path / "broker-0.pem")


def test_authorities_of_the_same_name_do_not_hide_each_other(run: Any, tmp_path: Path) -> None:
    """The name has a default, so this is the usual case. The key identifiers tell them apart."""
    made = []
    run("security", "ca", str(tmp_path))
    for number in range(3):
        made.append(tmp_path / f"{number}.pem")
        run("security", "broker", str(tmp_path), "0", "localhost", "--out", str(made[-1]))
        run("security", "ca", str(tmp_path), "--rotate")
    assert [verified(tmp_path / "ca.pem", file) for file in made] == [True] * 3
    assert {row["issuer"] for row in rows(run, *made)} == {"CN=barnabas"}
    assert len(rows(run, tmp_path / "ca.pem")) == 4
    assert "removed: 3" in run("security", "ca", str(tmp_path), "--retire")[1]
    assert [verified(tmp_path / "ca.pem", file) for file in made] == [False] * 3


def test_certificates_that_have_expired_are_an_error(run: Any, tmp_path: Path) -> None:
    run("security", "ca", str(tmp_path))
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=20)
    write_secret(tmp_path / "old.pem", client_certificate(read_authority(tmp_path), "bob", now=then, days=7))
    code, out, _ = run("security", "show", str(tmp_path / "old.pem"))
    assert code == 1 and "expired" in out


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("ca", "{there}"), "exists already"),
        (("ca", "{nowhere}", "--rotate"), "no usable authority"),
        (("ca", "{there}", "--rotate", "--retire"), "not allowed with"),
        (("ca", "{nowhere}", "--days", "0"), "integer of at least 1"),
        (("ca", "{nowhere}", "--days", "40000"), "1 to 36500"),
        (("broker", "{nowhere}", "1", "localhost"), "no usable authority"),
        (("broker", "{there}", "-1", "localhost"), "give an integer of at least 0"),
        (("broker", "{there}", "1"), "HOST"),
        (("client", "{there}", "../alice"), "add --out FILE"),
        (("client", "{there}", ""), "cannot be a name"),
        (("client", "{there}", "ca"), "ca.pem exists and is no certificate of CN=ca"),
        (("client", "{there}", "bob", "--out", "{there}/ca.key"), "ca.key exists and is no certificate of CN=bob"),
        (("ca", "{nowhere}", "--name", "x" * 65), "cannot be a name"),
        (("broker", "{there}", "1", "a,b"), "'a,b' is no name of a host"),
        (("broker", "{there}", "1", "b\u00fccher.example"), "is no name of a host"),
        (("broker", "{there}", "1", "localhost:9092"), "without a port"),
        (("show", "{there}/ca.key"), "no certificates in PEM form"),
        (("show", "{nowhere}"), "No such file"),
    ],
)
def test_mistakes_are_explained(run: Any, tmp_path: Path, given: tuple[str, ...], told: str) -> None:
    run("security", "ca", str(tmp_path / "there"))
    before = (tmp_path / "there" / "ca.pem").read_bytes()
    places = {"there": tmp_path / "there", "nowhere": tmp_path / "nowhere"}
    code, _, err = run("security", *(item.format(**places) for item in given))
    assert code in (1, 2) and told in err, err
    assert (tmp_path / "there" / "ca.pem").read_bytes() == before


def test_a_certificate_is_renewed_in_place(run: Any, tmp_path: Path) -> None:
    run("security", "ca", str(tmp_path))
    for _ in range(2):
        assert run("security", "client", str(tmp_path), "alice")[0] == 0
        assert run("security", "broker", str(tmp_path), "1", "*.example.com", "::1", "localhost")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alice.pem", "broker-1.pem", "ca.key", "ca.pem"]


def test_the_authority_is_not_replaced_by_a_client_of_its_name(run: Any, tmp_path: Path) -> None:
    run("security", "ca", str(tmp_path), "--name", "ca")
    code, _, err = run("security", "client", str(tmp_path), "ca")
    assert code != 0 and "ca.pem exists" in err
    assert run("security", "client", str(tmp_path), "alice")[0] == 0


def test_a_key_is_not_written_into_a_file_that_someone_else_has_prepared(run: Any, tmp_path: Path) -> None:
    """In a folder where others may write, they could guess the name of the new file and open it for themselves."""
    run("security", "ca", str(tmp_path))
    target = tmp_path / "of-the-attacker"
    target.touch(mode=0o666)
    for name in ("alice.pem", "ca.key"):
        (tmp_path / f"{name}.{os.getpid()}.new").symlink_to(target)
    assert run("security", "client", str(tmp_path), "alice")[0] == 0
    assert run("security", "ca", str(tmp_path), "--rotate")[0] == 0
    assert target.read_bytes() == b""
    assert not (tmp_path / "ca.key").is_symlink() and (tmp_path / "ca.key").stat().st_mode & 0o077 == 0


def test_of_two_that_make_the_key_of_an_authority_one_fails(tmp_path: Path) -> None:
    write_secret(tmp_path / "ca.key", b"first", replace=False)
    with pytest.raises(FileExistsError, match="exists already"):
        write_secret(tmp_path / "ca.key", b"second", replace=False)
    assert [path.name for path in tmp_path.iterdir()] == ["ca.key"]
    assert (tmp_path / "ca.key").read_bytes() == b"first"
