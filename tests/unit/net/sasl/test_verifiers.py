"""`sasl.users.file`: lines that `barnabas user hash` prints, and those that no broker takes."""

import base64

import pytest
from msgspec.structs import replace
from unit.net.sasl.sasl_world import ITERATIONS, PASSWORD, SALT

from barnabas.log.vocabulary.access.scram import MAX_ITERATIONS, MAX_USER_LENGTH, MIN_ITERATIONS, ScramMechanism
from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.base.sasl.scram import credential_for
from barnabas.net.base.sasl.verifiers import MAX_BYTES, read_users, user_line
from barnabas.net.client.admin.users import credentials_of

SHA_256, SHA_512 = ScramMechanism
CREDENTIAL = credential_for(SHA_256, PASSWORD, salt=SALT, iterations=ITERATIONS)
KEY = base64.b64encode(CREDENTIAL.stored_key).decode()


def test_what_is_printed_is_read() -> None:
    made = [
        (SHA_256, "alice", CREDENTIAL),
        (SHA_512, "s\u00f8ren b", credential_for(SHA_512, "x", salt=SALT, iterations=4_096)),
    ]
    lines = [user_line(user, mechanism, credential) for mechanism, user, credential in made]
    data = "\n".join(["# users", "", *lines]).encode()
    assert read_users(data, "f") == {(mechanism, user): credential for mechanism, user, credential in made}
    assert PASSWORD not in lines[0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("alice", "is no user"),
        (f"SCRAM-SHA-1$4096:AAAA${KEY}:{KEY} alice", "is no user"),
        (f"SCRAM-SHA-256$many:AAAA${KEY}:{KEY} alice", "is no user"),
        (f"SCRAM-SHA-256$4096:%%${KEY}:{KEY} alice", "is no user"),
        (f"SCRAM-SHA-256$4096:AAAA${KEY}:{KEY} ", "name of 0"),
        (f"SCRAM-SHA-256$4096:AAAA${KEY}:{KEY} {'a' * (MAX_USER_LENGTH + 1)}", "name of 256"),
        (f"SCRAM-SHA-256$4096:AAAA${KEY}:AAAA alice", "keys of the wrong length"),
        (f"SCRAM-SHA-512$4096:AAAA${KEY}:{KEY} alice", "keys of the wrong length"),
        (f"SCRAM-SHA-256$4096:${KEY}:{KEY} alice", "salt of 0 bytes"),
        *(
            (f"SCRAM-SHA-256${count}:AAAA${KEY}:{KEY} alice", "iterations; 4096 to 100000")
            for count in (-1, 0, MIN_ITERATIONS - 1, MAX_ITERATIONS + 1)
        ),
    ],
)
def test_a_line_that_is_no_user_is_named_and_not_shown(line: str, reason: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"f, line 2 .*{reason}") as refused:
        read_users(f"# users\n{line}\n".encode(), "f")
    assert KEY not in refused.value.message


def test_a_file_that_is_none() -> None:
    for data in (b"\xff", b"#" * (MAX_BYTES + 1)):
        with pytest.raises(InvalidConfigError):
            read_users(data, "f")


@pytest.mark.parametrize("iterations", [1, MIN_ITERATIONS - 1, MAX_ITERATIONS + 1])
def test_no_line_is_printed_that_no_broker_takes(iterations: int) -> None:
    with pytest.raises(InvalidConfigError, match=f"not {iterations}"):
        credentials_of("alice", PASSWORD, iterations=iterations)
    line = user_line("alice", SHA_256, replace(CREDENTIAL, iterations=iterations))
    with pytest.raises(InvalidConfigError):
        read_users(line.encode(), "f")
