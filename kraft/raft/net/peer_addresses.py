"""Which other nodes this one is linked to, and where each may be found. Pure."""

from collections.abc import Iterator, Mapping

Address = tuple[str, int]  # host, port


class PeerAddresses:
    """`contacts` are further addresses, of server.properties: a peer may be found there, too."""

    def __init__(self, contacts: Mapping[int, Address]) -> None:
        self._contacts = contacts
        self._peers: dict[int, Address] = {}

    def __contains__(self, peer_id: int) -> bool:
        return peer_id in self._peers

    def __iter__(self) -> Iterator[int]:
        """In ascending order."""
        return iter(sorted(self._peers))

    def __len__(self) -> int:
        return len(self._peers)

    def replace(self, peers: Mapping[int, Address]) -> list[int]:
        """Return the ids of former peers."""
        gone = sorted(self._peers.keys() - peers.keys())
        self._peers = dict(peers)
        return gone

    def of(self, peer_id: int) -> list[Address]:
        """The configured address first."""
        found = (self._peers.get(peer_id), self._contacts.get(peer_id))
        return list(dict.fromkeys(address for address in found if address is not None))
