"""How voters become a cluster without a format step, and why a wiped voter cannot make the cluster forget. Pure.

A voter with an empty journal is *blank*: it may be new, or it may have lost entries that it had acknowledged and votes that it
had cast. While blank, it neither campaigns nor votes, and a leader does not count its acknowledgements. It stops being blank in
one of two ways.

*Formation*: it asks every other voter, all being connected, and each answers that it is blank or pristine (formed,
but without entry, term or vote). As every answer is given after the question, all of them were without state at the
moment of the question: there is no cluster to forget. It tells those who answered, for them the same proof holds.

*Learning*: a leader that sees a blank voter appends an entry and commits it with a majority that does not count the blank voter.
Any entry that was committed, and any leader that was elected, with the help of the voter's former state then shares a voter with
that majority, so the log up to that entry has everything that was committed. When the blank voter has the entry on disk, the
leader sends it a welcome.

Hence two wiped voters of three never form a cluster: the third one answers that it has state, and there is no majority without
them to learn from. An operator has to restore a folder.
"""

from enum import IntEnum

QUERY_INTERVAL_S = 0.5  # an answer takes a round trip; a voter that restarts begins a new round anyway
STUCK_AFTER_S = 5.0  # longer than an election: then it is worth a line in the log
STUCK_REPEAT_S = 30.0


class VoterState(IntEnum):
    BLANK = 0
    PRISTINE = 1  # formed, but without entry, term or vote: nothing that could be forgotten
    VOTER = 2


class Formation:
    """One voter's view. `blank` is what is on disk; the caller makes it so before it calls `cleared`."""

    def __init__(self, node_id: int, voter_ids: frozenset[int], *, blank: bool) -> None:
        self._node_id = node_id
        self._others = voter_ids - {node_id}
        self.blank = blank
        self.peers: dict[int, VoterState] = {}  # connected peers, by their last reported state
        self.barriers: dict[int, int] = {}  # as leader: the index that a blank peer must learn, committed without it
        self._nonce: int | None = None  # of our round, if one is open
        self._willing: set[int] = set()  # peers that answered our round
        self._answered: dict[int, int] = {}  # nonce that we answered to whom, on this connection
        self._asked_at = -QUERY_INTERVAL_S
        self._blank_since: float | None = None
        self._complained_at = 0.0

    def set_voters(self, voter_ids: frozenset[int]) -> None:
        """Another configuration is in force; an open round applied to the former one."""
        self._others = voter_ids - {self._node_id}
        self._void_round()

    def peer_connected(self, peer: int, state: VoterState) -> None:
        self.peers[peer] = state
        self._void_round()

    def peer_disconnected(self, peer: int) -> None:
        self.peers.pop(peer, None)
        self.barriers.pop(peer, None)
        self._answered.pop(peer, None)
        self._void_round()

    def peer_joined(self, peer: int) -> None:
        if peer in self.peers:
            self.peers[peer] = VoterState.VOTER
        self.barriers.pop(peer, None)

    def counts(self, peer: int) -> bool:
        """Whether an acknowledgement of this peer counts. A peer that is not connected has sent no new one."""
        return self.peers.get(peer) is not VoterState.BLANK

    def counting(self, peers: list[int]) -> list[int]:
        """Those of `peers` whose acknowledgements count."""
        if VoterState.BLANK not in self.peers.values():
            return peers
        return [peer for peer in peers if self.counts(peer)]

    # Formation

    @property
    def is_complete(self) -> bool:
        """A single voter has no other voters to ask."""
        return not self._others

    def open_round(self, now: float, nonce: int) -> bool:
        """Whether to ask everyone now, with this nonce."""
        if not self.blank or not self._others <= self.peers.keys() or now - self._asked_at < QUERY_INTERVAL_S:
            return False
        self._asked_at = now
        self._nonce = nonce
        self._willing = set()
        return True

    def answer(self, peer: int, nonce: int, own_state: VoterState) -> None:
        """`peer` gets our state. Its later message that all voters were blank is believed only if this voter was blank now."""
        if own_state is not VoterState.VOTER:
            self._answered[peer] = nonce

    def answered(self, peer: int, nonce: int, state: VoterState) -> bool:
        """Whether this was the last answer that the formation needed."""
        if nonce != self._nonce or not self.blank:
            return False
        if state is VoterState.VOTER:
            self.peers[peer] = state
            self._void_round(keep_interval=True)
            return False
        self._willing.add(peer)
        return self._willing >= self._others

    def told_formed(self, peer: int, nonce: int) -> bool:
        """Whether the message of `peer` that all voters were blank includes the present state of this voter."""
        return self.blank and self._answered.get(peer) == nonce

    def cleared(self) -> None:
        """This voter is not blank any more (durably)."""
        self.blank = False
        self._nonce = None
        self._blank_since = None

    def _void_round(self, *, keep_interval: bool = False) -> None:
        self._nonce = None
        if not keep_interval:
            self._asked_at = -QUERY_INTERVAL_S

    # Learning, as leader

    def peers_without_barrier(self) -> list[int]:
        if VoterState.BLANK not in self.peers.values():
            return []
        return sorted(p for p, s in self.peers.items() if s is VoterState.BLANK and p not in self.barriers)

    def may_welcome(self, peer: int, match_index: int, commit_index: int) -> int | None:
        """The barrier that this blank peer has on disk and that a majority has committed without it."""
        barrier = self.barriers.get(peer)
        return barrier if barrier is not None and min(match_index, commit_index) >= barrier else None

    # Being stuck

    def complaint(self, now: float) -> str | None:
        """Why this voter is still blank, from time to time."""
        if not self.blank:
            return None
        if self._blank_since is None:
            self._blank_since = now
            self._complained_at = now + STUCK_AFTER_S - STUCK_REPEAT_S
        if now - self._complained_at < STUCK_REPEAT_S:
            return None
        self._complained_at = now
        return self._describe()

    def _describe(self) -> str:
        missing = sorted(self._others - self.peers.keys())
        blank = sorted([self._node_id, *(p for p, s in self.peers.items() if s is VoterState.BLANK)])
        with_state = sorted(p for p, s in self.peers.items() if s is VoterState.VOTER)
        text = f"voter {self._node_id} has an empty journal and must not vote until it has learned the lost entries"
        if with_state and len(blank) * 2 > len(self._others) + 1:
            return (
                f"{text}: voters {blank} are empty, {with_state} have data; a majority has lost its data, so no new"
                " cluster is formed from the rest: restore the folder of one of the empty voters"
            )
        if with_state:
            return f"{text}: it waits for a leader elected by voters other than {blank}; not connected: {missing}"
        return f"{text}: to form a new cluster every voter must be connected; not connected: {missing}"
