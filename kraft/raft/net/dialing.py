"""Every pair of voters shares one connection: the one with the higher id dials, again and again until there is a link."""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Collection, Mapping

from .connection import PeerConnection
from .mutual_tls import tls_name
from .network import RaftNetwork
from .peer_addresses import PeerAddresses
from .refusals import RefusalLog

_log = logging.getLogger("barnabas.quorum")

CONNECT_TIMEOUT_S = 1.0  # a host that is off does not answer at all; the kernel would wait for two minutes
EAGER_DIAL_S = (0.02, 0.05)  # right after the start or the loss of a link: cluster formation must not wait for it
EAGER_FOR_S = 5.0
REFUSED_WITHIN_S = 0.2  # a link that ends sooner: the peer does not accept us, and will not do so soon
PATIENT_DIAL_S = (0.2, 0.4)  # later: a peer that is down for long is still found within half a second


class Dialer:
    """`links` and `connections` are the transport's, as they are at each moment. `make` gives one connection to a peer; `tls`
    the context for it, or None for plain text."""

    def __init__(
        self,
        *,
        node_id: int,
        addresses: PeerAddresses,
        network: RaftNetwork,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        tls: Callable[[], ssl.SSLContext | None],
        refusals: RefusalLog,
        links: Mapping[int, PeerConnection],
        connections: Collection[PeerConnection],
        make: Callable[[int], PeerConnection],
    ) -> None:
        self._node_id = node_id
        self._addresses = addresses
        self._network = network
        self._loop = loop
        self._rng = rng
        self._tls = tls
        self._refusals = refusals
        self._links = links
        self._connections = connections
        self._make = make
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._turned_away: set[int] = set()  # peers that did not know us when we were linked last

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return list(self._tasks.values())

    def begin(self) -> None:
        """Dial all peers that are ours to dial; those that are dialed already go on."""
        for peer_id in self._addresses:
            if peer_id < self._node_id and peer_id not in self._tasks:
                self._tasks[peer_id] = self._loop.create_task(self._dial(peer_id))

    def stop(self, peer_id: int) -> None:
        task = self._tasks.pop(peer_id, None)
        if task is not None:
            task.cancel()

    def link_ended(self, peer_id: int, lived_s: float) -> None:
        (self._turned_away.add if lived_s < REFUSED_WITHIN_S else self._turned_away.discard)(peer_id)

    async def _dial(self, peer_id: int) -> None:
        eager_until = self._loop.time() + EAGER_FOR_S
        while True:
            link = self._links.get(peer_id)
            if link is not None and self._loop.time() - link.opened_at > REFUSED_WITHIN_S:
                eager_until = self._loop.time() + EAGER_FOR_S
            elif link is None:
                for host, port in self._addresses.of(peer_id):
                    if peer_id not in self._links:
                        await self._dial_once(peer_id, host, port)
            eager = self._loop.time() < eager_until and peer_id not in self._turned_away
            await asyncio.sleep(self._rng.uniform(*(EAGER_DIAL_S if eager else PATIENT_DIAL_S)))

    async def _dial_once(self, peer_id: int, host: str, port: int) -> None:
        if any(connection.dialed_id == peer_id for connection in self._connections):
            return  # a connection is there, its hello is not yet
        tls = self._tls()
        name = None if tls is None else tls_name(peer_id)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._network.connect(lambda: self._make(peer_id), host, port, tls=tls, server_hostname=name)
        except ssl.SSLError as error:
            self._refusals.refused((host, port), f"voter {peer_id}: {error}")
        except (OSError, TimeoutError) as error:
            _log.debug("dial failed peer=%d address=%s:%d error=%r", peer_id, host, port, error)
        except Exception as error:  # noqa: BLE001 - without its dialer, a voter would stay away for ever, and nothing would say why
            self._refusals.refused((host, port), f"voter {peer_id}: internal error: {error!r}; dialing goes on")
