"""What the nodes of the quorum report about it to each other, to brokers that do not vote, and to operators."""

from .message import Message
from .node_address import NodeAddress


class CommittedCommand(Message, frozen=True, kw_only=True):
    """One command of the quorum's log, known to be on disk at a majority."""

    index: int  # strictly increasing, not dense: the consensus core has entries of its own
    term: int
    command: bytes


class QuorumPeer(NodeAddress, frozen=True, kw_only=True):
    """What the leader knows of a voter, or of a learner. `lag_entries`: entries that its disk lacks, -1: not known."""

    is_voter: bool
    is_live: bool
    lag_entries: int


class Stranger(Message, frozen=True, kw_only=True):
    """A broker with the data folder of another cluster, which asked a voter for its quorum."""

    host: str
    cluster_id: str
    age_ms: int  # since it asked last
