"""Where clients get tokens from: a file, and a service that wants to know the client's secret."""

import base64
import json
import pickle
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs

import pytest

from barnabas.log.vocabulary.errors import InvalidConfigError, NetworkError
from barnabas.net.base.sasl.oauthbearer import MAX_TOKEN_LENGTH
from barnabas.net.client.connection.kafka_options import security_options
from barnabas.net.client.connection.security import SecurityOptions, network_of
from barnabas.net.wire.login import _token
from barnabas.net.wire.token_sources import ClientSecret, TokenFile

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
URL = "sasl.oauthbearer.token.endpoint.url"
SCRAM = 'ScramLoginModule required username="a" password="hidden";'
BASE = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}


class Service(BaseHTTPRequestHandler):
    """Notes what it is asked, and answers what `answers` has for the path: a status and a body."""

    answers: dict[str, tuple[int, bytes]]
    asked: list[tuple[str, dict[str, list[str]]]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.asked.append((self.headers["Authorization"], parse_qs(body)))
        status, data = self.answers[self.path]
        self.send_response(status)
        if status == 302:
            self.send_header("Location", data.decode())
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.asked.append((self.headers["Authorization"], {}))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"access_token": "of another address"}')

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def service() -> Iterator[str]:
    Service.answers, Service.asked = {}, []
    with HTTPServer(("127.0.0.1", 0), Service) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def options(**changes: str) -> SecurityOptions:
    found = security_options({**BASE, **changes}, "here")
    network_of(found)  # what clients make of it
    return found


def test_a_file_is_read_again_for_each_login(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    as_java_needs_it = {"sasl.login.callback.handler.class": HANDLER, "sasl.jaas.config": f"{MODULE} required;"}
    found = options(**{URL: path.as_uri(), **as_java_needs_it})
    source = pickle.loads(pickle.dumps(found))["sasl_oauth_token_provider"]
    for text in ("first", "second"):
        path.write_text(f"{text}\n")
        assert source.token() == text
    path.write_text("x" * (MAX_TOKEN_LENGTH + 1))
    with pytest.raises(ValueError, match="is no token"):
        source.token()


def test_a_service_is_asked_as_the_rfc_says(service: str) -> None:
    Service.answers["/token"] = (200, json.dumps({"access_token": "t0ken", "expires_in": 60}).encode())
    jaas = f'{MODULE} required clientId="my app" clientSecret="a:b c" scope="kafka";'
    found = options(**{URL: f"{service}/token", "sasl.jaas.config": jaas})
    source = pickle.loads(pickle.dumps(found))["sasl_oauth_token_provider"]
    assert source.token() == "t0ken"
    ((authorization, form),) = Service.asked
    assert base64.b64decode(authorization.removeprefix("Basic ")) == b"my+app:a%3Ab+c"
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka"]}
    by_keys = options(
        **{
            URL: f"{service}/token",
            "sasl.oauthbearer.client.credentials.client.id": "my app",
            "sasl.oauthbearer.client.credentials.client.secret": "a:b c",
            "sasl.oauthbearer.scope": "kafka",
        }
    )
    assert by_keys == found and "a:b c" not in repr(found)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((200, b"hidden"), "has no access_token"),
        ((200, b'{"access_token": 7, "x": "hidden"}'), "has no access_token"),
        ((200, b'["hidden"]'), "has no access_token"),
        ((200, b'{"access_token": "%s"}' % (b"x" * MAX_TOKEN_LENGTH * 5)), "has no access_token"),
        ((401, b"hidden"), "401"),
        ((302, b"/other"), "leads to"),
    ],
)
def test_an_answer_without_a_token_is_not_shown(service: str, answer: tuple[int, bytes], told: str) -> None:
    Service.answers["/token"] = answer
    source = ClientSecret(url=f"{service}/token", client_id="app", secret="secret7")
    with pytest.raises((OSError, ValueError), match=told) as failed:
        source.token()
    assert "hidden" not in str(failed.value) and "secret7" not in str(failed.value)


def test_a_redirect_does_not_carry_the_secret_along(service: str) -> None:
    """The other address may be anyone's, or in plain text."""
    Service.answers["/token"] = (302, b"/other")
    with pytest.raises(ValueError, match="leads to"):
        ClientSecret(url=f"{service}/token", client_id="app", secret="secret7").token()
    assert len(Service.asked) == 1


def test_no_proxy_elsewhere_gets_the_secret_for_a_service_of_this_machine(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    Service.answers["/token"] = (200, b'{"access_token": "t0ken"}')
    assert ClientSecret(url=f"{service}/token", client_id="app", secret="x").token() == "t0ken"


async def test_the_error_of_a_file_with_a_byte_order_mark_does_not_show_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\ufeffhidden")
    with pytest.raises(NetworkError, match="not ASCII") as failed:
        await _token(TokenFile(path=str(tmp_path / "token")).token)
    assert "hidden" not in str(failed.value)


def test_a_service_that_is_not_there() -> None:
    with pytest.raises(OSError):
        ClientSecret(url="http://127.0.0.1:1/token", client_id="app", secret="x").token()
    with pytest.raises(OSError):
        TokenFile(path="/nowhere/token").token()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, f"needs {URL}"),
        ({URL: "http://issuer.example.com/token"}, "use file:///path or https://"),
        ({URL: "https://app:hidden@issuer.example.com/token"}, "must not contain a name and a secret"),
        ({URL: "http://app:hidden@issuer.example.com/token"}, "must not contain a name and a secret"),
        ({URL: "https://issuer.example.com/token"}, "needs the name and the secret of this client"),
        (
            {URL: "file:///t", "sasl.jaas.config": SCRAM},
            "OAuthBearerLoginModule",
        ),
        (
            {URL: "file:///t", "sasl.login.callback.handler.class": "com.acme.Handler"},
            "a class of Java cannot be called",
        ),
        ({URL: "file:///t", "sasl.mechanism": "PLAIN"}, "is not available"),
    ],
)
def test_settings_that_lead_to_no_token_are_refused(changes: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidConfigError, match=told) as refused:
        options(**changes)
    assert "hidden" not in str(refused.value)
