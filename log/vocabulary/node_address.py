"""`NodeAddress`: a broker or a voter of the quorum, and where it is reached. Also on the wire and in the quorum's records."""

from .message import Message


class NodeAddress(Message, frozen=True, kw_only=True):
    """The port is the one that the context means: of a voter its quorum port, of a broker that of a listener."""

    node_id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.node_id}@{bracketed(self.host)}:{self.port}"


def bracketed(host: str) -> str:
    """As it stands before a colon and a port: an IPv6 address goes in brackets."""
    return f"[{host}]" if ":" in host else host
