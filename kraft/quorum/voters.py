"""The voters: the configuration of the quorum, as an entry of its journal and as a part of snapshots. Pure.

One voter is added or removed at a time (Ongaro's thesis, 4.1): any majority of the old configuration then shares a voter with any
majority of the new one, so both may be in use at once. A configuration is in force on a node from the moment that the node
appends it, and until it truncates it. Two rules make this safe: the previous one must be committed, and the leader must have
committed an entry of its own term (the fault of the thesis that Ongaro reported in 2015).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.message import Message, decode, encode
from barnabas.log.vocabulary.node_address import NodeAddress
from barnabas.log.vocabulary.quorum import QuorumPeer, Stranger

from .journal_format import Entry

MEMBERSHIP = b"\x02"  # the first byte of an entry with a configuration, pysyncobj's number for it
BOOTSTRAP_INDEX = 0  # of the configuration that server.properties gives, before any is in the journal
MAX_VOTERS = 9  # every commit waits for a majority of them: more voters only make it slower


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterSet:
    """A configuration. `index` is that of its entry."""

    voters: tuple[NodeAddress, ...]
    index: int = BOOTSTRAP_INDEX

    @property
    def ids(self) -> frozenset[int]:
        return frozenset(voter.node_id for voter in self.voters)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def with_voter(self, voter: NodeAddress) -> tuple[NodeAddress, ...]:
        assert voter.node_id not in self.ids
        return tuple(sorted((*self.voters, voter), key=lambda item: item.node_id))

    def without(self, node_id: int) -> tuple[NodeAddress, ...]:
        assert node_id in self.ids and len(self.voters) > 1
        return tuple(voter for voter in self.voters if voter.node_id != node_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterProgress:
    """The progress of a change of the voters. The request is repeated until it is done."""

    done: bool
    state: str


class QuorumStatus(Message, frozen=True, kw_only=True):
    """The state of the quorum as a node knows it; also the leader's answer on the wire."""

    leader_id: int  # -1: none is known
    term: int
    committed_index: int
    voters_index: int
    peers: tuple[QuorumPeer, ...]
    change: str = ""  # the change in progress, as text
    refused: tuple[
        str, ...
    ] = ()  # brokers whose metadata contradicts that of the quorum, in words; the controller knows
    strangers: tuple[Stranger, ...] = ()  # that asked the node that answers


def encode_voters(voters: Iterable[NodeAddress]) -> bytes:
    return encode(tuple(voters))


def decode_voters(packed: bytes, index: int) -> VoterSet:
    """Raises ValueError if the bytes are not a configuration."""
    try:
        voters = decode(tuple[NodeAddress, ...], packed)
    except InvalidRequestError as error:
        raise ValueError(f"entry {index} is not a configuration of voters: {error.message}") from error
    if not voters:
        raise ValueError(f"entry {index} is a configuration without voters")
    return VoterSet(voters=voters, index=index)


class Membership:
    """The configurations that one node still needs: the newest one that it has applied, and later ones.

    Invariant: ascending indexes; the last one is in force.
    """

    def __init__(self, base: VoterSet, entries: Iterable[Entry]) -> None:
        """`base` is the snapshot's configuration, or the bootstrap one; `entries` are the journal's."""
        self._sets = [base]
        self._append_all(entries)

    @property
    def current(self) -> VoterSet:
        return self._sets[-1]

    def at(self, index: int) -> VoterSet:
        """The configuration that was in force at `index`, which must not be before the forgotten ones."""
        newest = self._sets[-1]
        if newest.index <= index:
            return newest
        return next((item for item in reversed(self._sets) if item.index <= index), self._sets[0])

    def reachable(self, commit_index: int) -> dict[int, NodeAddress]:
        """The voters that this node may need to reach: of the committed configuration and of newer ones, which may be undone.

        If a node cut its link to a voter whose removal has only begun, and that voter is elected after all, the node could not
        learn that the removal was undone.
        """
        committed = self.at(commit_index)
        newer = [item for item in self._sets if item.index >= committed.index]
        return {voter.node_id: voter for item in newer for voter in item.voters}

    def appended(self, entry: Entry) -> bool:
        """Whether the configuration has changed by this new last entry of the journal."""
        if entry[0][:1] != MEMBERSHIP:
            return False
        assert entry[1] > self.current.index
        self._sets.append(decode_voters(entry[0][1:], entry[1]))
        return True

    def truncated(self, index: int) -> bool:
        """Entries from `index` on were removed. Return whether this has changed the configuration."""
        before = len(self._sets)
        while self._sets[-1].index >= index and len(self._sets) > 1:
            self._sets.pop()
        return len(self._sets) != before

    def restored(self, base: VoterSet | None, entries: Iterable[Entry]) -> None:
        """A snapshot replaced the earlier entries; without its own configuration, the bootstrap configuration stays in force."""
        self._sets = [base or self._sets[0]]
        self._append_all(entries)

    def applied(self, index: int) -> None:
        """Configurations older than the one at `index` are not needed any more."""
        while len(self._sets) > 1 and self._sets[1].index <= index:
            del self._sets[0]

    def _append_all(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry[1] > self.current.index:
                self.appended(entry)
