"""The file of --command-config: Kafka's keys, and what is refused instead of being ignored."""

from pathlib import Path

import pytest

from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.cli.frame.client_file import ClientFile, read_client_file


def read(tmp_path: Path, text: str) -> ClientFile:
    path = tmp_path / "client.properties"
    path.write_text(text, encoding="utf-8")
    return read_client_file(path)


def test_the_keys_of_kafka_become_options_of_clients(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        bootstrap.servers=a:1,b:2
        security.protocol=SSL
        ssl.truststore.type=PEM
        ssl.truststore.location=/ca.pem
        ssl.keystore.location=/me.pem
        ssl.key.password=secret
        ssl.endpoint.identification.algorithm=
        acks=all
        """,
    )
    assert found.bootstrap == "a:1,b:2"
    assert found.security == {
        "security_protocol": "SSL",
        "ssl_cafile": "/ca.pem",
        "ssl_certfile": "/me.pem",
        "ssl_password": "secret",
        "ssl_check_hostname": False,
    }


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("ssl.keystore.type=JKS", "only PEM files"),
        ("sasl.kerberos.service.name=x", "sasl.kerberos.service.name is not available"),
        ("ssl.cipher.suites=x", "ssl.cipher.suites is not available"),
    ],
)
def test_protection_that_is_not_there_is_refused(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(InvalidConfigError, match=told):
        read(tmp_path, line)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="nowhere"):
        read_client_file(tmp_path / "nowhere")


JAAS = "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "


@pytest.mark.parametrize(
    ("options", "user", "password"),
    [
        ('username="alice" password="se cret;";', "alice", "se cret;"),
        ("username=alice password=secret;", "alice", "secret"),
        (r'password="a\"b\\c" username = "bob" ;', "bob", 'a"b\\c'),
    ],
)
def test_a_login_of_java_is_read(tmp_path: Path, options: str, user: str, password: str) -> None:
    found = read(tmp_path, f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n{JAAS}{options}\n")
    assert found.security == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


@pytest.mark.parametrize(
    "jaas",
    [
        "",
        f'{JAAS}username="alice" password="hidden"',
        f'{JAAS}username="alice";',
        'sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required username="a" password="hidden";',
    ],
)
def test_another_login_is_refused_without_showing_it(tmp_path: Path, jaas: str) -> None:
    with pytest.raises(InvalidConfigError, match="ScramLoginModule") as refused:
        read(tmp_path, jaas or "sasl.jaas.config=")
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "sasl.oauthbearer.client.credentials.client.secret=hidden\nsasl.oauthbearer.client.credentials.client.secret=hidden2",
        "ssl.keystore.key=-----BEGIN PRIVATE KEY-----\nMIGHhidden",
        'sasl.jaas.config=PlainLoginModule required username="a"\\\n\nhidden',
    ],
)
def test_no_error_of_a_file_shows_a_line_of_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidConfigError, match="line [0-9]") as refused:
        read(tmp_path, text)
    assert "hidden" not in str(refused.value)


def test_two_logins_are_refused_without_showing_them(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="sasl.jaas.config occurs twice") as refused:
        read(tmp_path, f'{JAAS}username="a" password="hidden";\n{JAAS}username="a" password="hidden2";\n')
    assert "hidden" not in str(refused.value)
