"""What the certificate of a connection says about its client."""

import asyncio
from typing import Any

import pytest

from barnabas.log.settings.principal_rules import PRINCIPAL_RULES
from barnabas.log.vocabulary.errors import InvalidConfigError, SaslAuthenticationError
from barnabas.log.vocabulary.principal import MAX_NAME_LENGTH, Principal
from barnabas.net.server.connection import ServerConnection
from barnabas.net.server.dispatcher import Dispatcher
from barnabas.net.server.server import Server
from barnabas.net.wire.peer import STRANGER, Peer, peer_of
from barnabas.net.wire.tcp import TcpNetwork


class Encrypted(asyncio.Transport):
    def __init__(self, certificate: dict[str, Any] | None) -> None:
        super().__init__({"peercert": certificate})

    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0


def certificate(name: str, *dns: str) -> dict[str, Any]:
    return {"subject": ((("commonName", name),),), "subjectAltName": tuple(("DNS", item) for item in dns)}


def test_without_a_certificate_a_client_is_anonymous() -> None:
    assert peer_of(asyncio.Transport()) == peer_of(Encrypted(None)) == peer_of(Encrypted({})) == STRANGER
    assert str(STRANGER.principal) == "User:ANONYMOUS"


def test_a_certificate_gives_the_name_and_the_broker() -> None:
    assert peer_of(Encrypted(certificate("alice"))) == Peer(principal=Principal(name="CN=alice"))
    rules = PRINCIPAL_RULES.read("RULE:^CN=(.*)$/$1/")
    assert peer_of(Encrypted(certificate("node-2", "host", "node-2")), rules) == Peer(
        principal=Principal(name="node-2"), node_id=2
    )


@pytest.mark.parametrize(
    "name",
    ["node-", "node-x", "node-01", "node-00", "Node-1", "node--1", "node-1.example.com", "node-" + "1" * 10, "node-²"],
)
def test_other_names_are_no_brokers(name: str) -> None:
    assert peer_of(Encrypted(certificate(name, name))).node_id is None


def test_the_subject_alone_makes_no_broker() -> None:
    assert peer_of(Encrypted(certificate("node-1"))).node_id is None


def test_a_subject_without_a_name_is_refused() -> None:
    for subject in ("bob", "alice" * MAX_NAME_LENGTH):
        with pytest.raises(InvalidConfigError, match=r"ssl\.principal\.mapping\.rules"):
            peer_of(Encrypted(certificate(subject)), PRINCIPAL_RULES.read("RULE:^CN=(alice.*)$/$1/"))


ENDS, ENDS_S = "Nov 29 12:00:00 2026 GMT", 1_795_953_600


def test_a_certificate_that_has_expired_is_nobodys() -> None:
    """The handshake looks at it, but not where it resumes a session of TLS 1.2."""
    shown = Encrypted(certificate("alice", "node-1") | {"notAfter": ENDS})
    assert peer_of(shown, wall_s=lambda: ENDS_S).node_id == 1
    with pytest.raises(SaslAuthenticationError, match=f"expired: it was valid until {ENDS}"):
        peer_of(shown, wall_s=lambda: ENDS_S + 1)


async def test_a_connection_with_an_expired_certificate_is_closed() -> None:
    server = Server(TcpNetwork(), Dispatcher({}))
    connection = ServerConnection(server)
    transport = Encrypted(certificate("alice") | {"notAfter": "Nov 29 12:00:00 2020 GMT"})
    connection.connection_made(transport)
    assert connection.principal == STRANGER.principal and transport.is_aborted
    connection.connection_lost(None)


@pytest.mark.parametrize("are_certified", [True, False])
async def test_a_certificate_names_no_broker_where_brokers_show_none(are_certified: bool) -> None:
    """A machine of a company may be called node-1, and have a certificate of the authority that signs those of clients."""
    server = Server(TcpNetwork(), Dispatcher({}), brokers_are_certified=are_certified)
    connection = ServerConnection(server)
    connection.connection_made(Encrypted(certificate("alice", "node-1")))
    assert connection.principal == Principal(name="CN=alice")
    assert connection.certified_node == (1 if are_certified else None)
    connection.connection_lost(None)
