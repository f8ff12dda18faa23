"""`NodeAddress`: a broker or a voter of the quorum, with the address where it is reached. Also used on the wire and in the
quorum's records."""

from .message import Message


class NodeAddress(Message, frozen=True, kw_only=True):
    """The port depends on the context: the quorum port of a voter, or the port of a broker's listener."""

    node_id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.node_id}@{bracketed(self.host)}:{self.port}"


def bracketed(host: str) -> str:
    """The host as written before a colon and a port: an IPv6 address is put in brackets."""
    return f"[{host}]" if ":" in host else host
