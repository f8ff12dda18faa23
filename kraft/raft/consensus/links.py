"""The links of this node, and the nodes to which a leader sends entries: both follow from the configurations."""

from barnabas.log.vocabulary.node_address import NodeAddress

from ...quorum.formation import Formation
from ...quorum.voters import VoterSet
from .electorate import Electorate
from .engine import PysyncobjEngine
from .ports import Ports, info


class Links:
    """Invariants: there is a link to every node whose messages may matter; only current voters and the learner get entries."""

    def __init__(self, electorate: Electorate, formation: Formation, engine: PysyncobjEngine, ports: Ports) -> None:
        self._electorate = electorate
        self._formation = formation
        self._engine = engine
        self._transport = ports.transport
        self._report = ports.report
        self._met: VoterSet | None = None
        self._linked: frozenset[int] = frozenset()
        self._made_for = -1  # index of the committed configuration that the links were made for
        self.learner: NodeAddress | None = None

    def voters_changed(self) -> None:
        """Another configuration is in force, by an entry that came or went."""
        self._electorate.refresh()
        current = self._electorate.membership.current
        self._formation.set_voters(current.ids)
        self.changed()
        node_id = self._electorate.node_id
        self._report(info(f"voters node={node_id} index={current.index} voters={sorted(current.ids)}"))

    def changed(self) -> None:
        membership, commit_index = self._electorate.membership, self._engine.commit_index
        peers = dict(membership.reachable(commit_index))
        learners = []
        if self.learner is not None:
            learners = [self.learner.node_id]
            peers[self.learner.node_id] = self.learner
        if self._met is not None and self._met.index > membership.current.index:
            peers = {**{voter.node_id: voter for voter in self._met.voters}, **peers}
        peers.pop(self._electorate.node_id, None)
        self._made_for = membership.at(commit_index).index
        for gone in sorted(self._linked - peers.keys()):
            self._engine.forget_peer(gone)
        self._linked = frozenset(peers)
        self._engine.set_recipients(self._electorate.other_ids, learners)
        self._transport.set_peers({peer_id: (peer.host, peer.port) for peer_id, peer in sorted(peers.items())})

    def follow_commit(self) -> None:
        """Drop the links that only an earlier configuration needed, once the newer one is committed."""
        if self._electorate.membership.at(self._engine.commit_index).index != self._made_for:
            self.changed()

    def meet(self, voters: VoterSet) -> None:
        """Link to the voters that another node knows, if this node has no leader: all voters that it knows may have been replaced
        while it was down, or its disk was emptied. This only makes links; the journal alone decides which nodes vote."""
        if voters.index > self._electorate.membership.current.index and voters != self._met:
            self._met = voters
            self.changed()
