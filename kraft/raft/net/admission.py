"""Whether a connection may speak for the voter that its hello names.

The side that dials knows the identity of the other side by the configured address. The other side has only a claim, so it asks
back: it connects to the configured address of the voter that the hello names, and the connection becomes a link only if that
voter confirms the token of the hello. A process that cannot answer at a voter's address cannot impersonate it, nor replace its
link. (With TLS, a certificate proves the same. While a cluster changes to TLS, each connection is judged by what it is.)
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from barnabas.log.vocabulary.cluster_mismatch import cluster_mismatch

from .connection import PeerConnection
from .directory import DirectoryUnavailableError, ask_confirmation
from .mutual_tls import tls_name
from .network import RaftNetwork
from .peer_addresses import PeerAddresses
from .wire import NO_TOKEN, Hello, WireError

# For one voter at a time, also for connections that have closed: if the voter is down, each confirmation waits for two seconds,
# and hellos in its name must not use up descriptors, nor delay those in the name of other voters.
MAX_CONFIRMING = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """What the transport does with a connection that has been judged."""

    welcome: Callable[[PeerConnection, Hello], None]
    refuse: Callable[[PeerConnection, str], None]  # it only logs the reason


class Admission:
    """Invariant: of each voter at most `_max_confirming` connections are being confirmed."""

    def __init__(
        self,
        *,
        node_id: int,
        addresses: PeerAddresses,
        network: RaftNetwork,
        loop: asyncio.AbstractEventLoop,
        demands_certificates: bool,
        max_strangers: int,
        verdicts: Verdicts,
    ) -> None:
        self._node_id = node_id
        self._addresses = addresses
        self._network = network
        self._loop = loop
        self._demands_certificates = demands_certificates
        self._max_strangers = max_strangers
        self._verdicts = verdicts
        self._confirming: dict[asyncio.Task[None], int] = {}  # and the voter that is asked

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return list(self._confirming)

    def check(self, connection: PeerConnection, hello: Hello, own: Hello) -> None:
        """Raises WireError where the hello cannot be that of one of our peers."""
        assert hello.voter_id is not None
        self._check_identity(connection, hello.voter_id)
        self._check_cluster(hello, own)

    def admit(self, connection: PeerConnection, hello: Hello) -> None:
        """Welcome a connection that `check` has passed, at once or when the voter has confirmed it. Raises WireError where too
        many are being confirmed."""
        assert hello.voter_id is not None
        if connection.dialed_id is not None or self._is_certified(connection):
            self._verdicts.welcome(connection, hello)
            return
        if sum(voter_id == hello.voter_id for voter_id in self._confirming.values()) >= self._max_confirming():
            raise WireError(
                f"voter {hello.voter_id} is asked about {self._max_confirming()} others in its name already"
            )
        task = self._loop.create_task(self._confirm(connection, hello))
        self._confirming[task] = hello.voter_id
        task.add_done_callback(lambda done: self._confirming.pop(done, None))

    def _max_confirming(self) -> int:
        """Of one voter. Those of all voters together leave half of the places to hellos that come."""
        return max(1, min(MAX_CONFIRMING, self._max_strangers // (2 * max(1, len(self._addresses)))))

    async def _confirm(self, connection: PeerConnection, hello: Hello) -> None:
        """Ask the voter that the hello names, at its own address, whether it has dialed us so."""
        assert hello.voter_id is not None
        reasons = []
        for host, port in self._addresses.of(hello.voter_id) if hello.token != NO_TOKEN else ():
            try:
                if await ask_confirmation(self._network, host, port, hello.token):
                    if not connection.is_closing and hello.voter_id in self._addresses:
                        self._verdicts.welcome(connection, hello)
                    return
                reasons.append(f"{host}:{port} has not dialed this node")
            except DirectoryUnavailableError as error:
                reasons.append(error.message)
        told = "; ".join(reasons) or "it names no token"
        reason = f"voter {hello.voter_id} did not confirm at its own address that it dials: {told}"
        self._verdicts.refuse(connection, reason)
        connection.abort()

    def _check_identity(self, connection: PeerConnection, voter_id: int) -> None:
        if voter_id not in self._addresses:
            raise WireError(f"it calls itself voter {voter_id}, the other voters are {list(self._addresses)}")
        if connection.dialed_id is None and voter_id < self._node_id:
            raise WireError(f"it calls itself voter {voter_id}, which never dials a voter with a higher id")
        if connection.dialed_id not in (None, voter_id):
            raise WireError(f"voter {voter_id} answers at the address of voter {connection.dialed_id}")
        if not self._is_certified(connection):
            return
        certificate = connection.extra("peercert") or {}
        names = [name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"]
        if tls_name(voter_id) not in names:
            raise WireError(f"it calls itself voter {voter_id}, its certificate is for {names}")

    def _is_certified(self, connection: PeerConnection) -> bool:
        """Whether a certificate must say who it is. A listener that also accepts plain text demands one of TLS connections."""
        return self._demands_certificates or connection.extra("sslcontext") is not None

    def _check_cluster(self, hello: Hello, own: Hello) -> None:
        if hello.cluster_id and own.cluster_id and hello.cluster_id != own.cluster_id:
            this = (f"this node {self._node_id}", own.cluster_id)
            raise WireError(cluster_mismatch(f"voter {hello.voter_id}", hello.cluster_id, this))
        if hello.voters_hash and own.voters_hash and hello.voters_hash != own.voters_hash:
            raise WireError(
                f"voter {hello.voter_id} knows other voters than {sorted({*self._addresses, self._node_id})}:"
                " controller.quorum.voters must have the same node ids everywhere"
            )
