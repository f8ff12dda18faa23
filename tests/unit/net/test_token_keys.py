"""Where the keys come from that tokens are checked with: addresses, files, and services that answer wrong."""

import datetime
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from joserfc.jwk import ECKey

from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.base.local.certificates import broker_certificate, make_authority
from barnabas.net.base.settings.config import BrokerConfig, load
from barnabas.net.broker.token_keys import tokens_of

KEYS = json.dumps({"keys": [ECKey.generate_key("P-256").as_dict(private=False)]}).encode()


def config_of(url: str) -> BrokerConfig:
    values = {"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url": url, "log.dirs": "x"}
    return load(None, values, {})


@contextmanager
def answering(answer: bytes, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """A port that gives this answer to each connection."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection if tls is None else tls.wrap_socket(connection, server_side=True) as stream:
                stream.recv(65_536)
                stream.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        listening.close()


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def moved(address: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {address}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode()


def test_keys_of_a_file_and_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(KEYS)
    assert tokens_of(config_of(f"file://{tmp_path}/keys")) is not None
    with answering(ok(KEYS)) as port:
        assert tokens_of(config_of(f"http://127.0.0.1:{port}/keys")) is not None


@pytest.mark.parametrize(
    "answer", [b"nonsense\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", ok(b"[]")]
)
def test_an_answer_that_is_none_is_an_error_of_the_configuration(answer: bytes) -> None:
    """Any other exception would end the task that reads the keys again: revoked ones would be used for ever."""
    with answering(answer) as port, pytest.raises(InvalidConfigError):
        tokens_of(config_of(f"http://127.0.0.1:{port}/keys"))


def test_a_service_does_not_lead_to_keys_in_plain_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.datetime.now(datetime.UTC)
    authority = make_authority(tmp_path, "test", now=now)
    (tmp_path / "own.pem").write_bytes(broker_certificate(authority, 0, ("127.0.0.1",), now=now))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "own.pem")
    with answering(ok(KEYS), tls) as port:
        assert tokens_of(config_of(f"https://127.0.0.1:{port}/keys")) is not None
    with answering(ok(KEYS)) as plain:
        away = moved(f"http://127.0.0.1:{plain}/keys")
        with answering(away, tls) as port, pytest.raises(InvalidConfigError, match="leads to http"):
            tokens_of(config_of(f"https://127.0.0.1:{port}/keys"))
    # A step in plain text between two that are encrypted.
    with answering(ok(KEYS), tls) as last, answering(moved(f"https://127.0.0.1:{last}/keys")) as plain:
        away = moved(f"http://127.0.0.1:{plain}/keys")
        with answering(away, tls) as port, pytest.raises(InvalidConfigError, match="leads to http"):
            tokens_of(config_of(f"https://127.0.0.1:{port}/keys"))


def test_a_service_of_this_machine_does_not_lead_to_another_one_in_plain_text() -> None:
    with answering(ok(KEYS)) as other:
        with answering(moved(f"http://127.0.0.1:{other}/keys")) as port:
            assert tokens_of(config_of(f"http://127.0.0.1:{port}/keys")) is not None
        # This address is not of the loopback interface, and reaches it.
        with (
            answering(moved(f"http://0.0.0.0:{other}/keys")) as port,
            pytest.raises(InvalidConfigError, match="leads to"),
        ):
            tokens_of(config_of(f"http://127.0.0.1:{port}/keys"))


def test_no_proxy_elsewhere_gives_the_keys_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with answering(ok(KEYS)) as port:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        assert tokens_of(config_of(f"http://127.0.0.1:{port}/keys")) is not None
