"""The answers to voters and observers that connect, and the dispatch of messages from voters."""

import logging

from ..quorum.formation import VoterState
from ..quorum.voters import BOOTSTRAP_INDEX
from .consensus.core import RaftCore
from .net.wire import Directory, Hello, voters_hash
from .protocol.messages import Message

_log = logging.getLogger("barnabas.quorum")


class Reception:
    """The transport's handler. `serve` is called before the transport listens."""

    def __init__(self, node_id: int, *, cluster_id: str, broker_endpoint: bytes) -> None:
        self._node_id = node_id
        self._core: RaftCore | None = None
        self.broker_endpoint = broker_endpoint
        self.cluster_id = cluster_id  # empty: not known yet

    def serve(self, core: RaftCore) -> None:
        self._core = core

    def peer_connected(self, peer_id: int, hello: Hello, told: VoterState) -> None:
        _log.info("peer connected node=%d peer=%d state=%s", self._node_id, peer_id, hello.state.name)
        self._served.connected(peer_id, hello.state, told)

    def peer_disconnected(self, peer_id: int) -> None:
        _log.info("peer disconnected node=%d peer=%d", self._node_id, peer_id)
        self._served.disconnected(peer_id)

    def message_received(self, peer_id: int, message: Message) -> None:
        self._served.receive(peer_id, message)

    def hello(self) -> Hello:
        return Hello(
            voter_id=self._node_id,
            cluster_id=self.cluster_id,
            voters_hash=self._bootstrap_hash(),
            state=self._core.forming.voter_state() if self._core is not None else VoterState.BLANK,
            endpoint=self.broker_endpoint,
        )

    def directory(self, endpoints: dict[int, bytes]) -> Directory:
        core = self._served
        return Directory(
            node_id=self._node_id,
            cluster_id=self.cluster_id,
            leader_id=core.engine.leader_id,
            endpoints={**endpoints, self._node_id: self.broker_endpoint},
            voters=core.committed_voters,
        )

    def _bootstrap_hash(self) -> int:
        core = self._core
        if core is None or not core.electorate.is_voter or core.electorate.membership.current.index != BOOTSTRAP_INDEX:
            return 0
        return voters_hash(core.electorate.membership.current.ids)

    @property
    def _served(self) -> RaftCore:
        assert self._core is not None, "no peer connects before the core exists"
        return self._core
