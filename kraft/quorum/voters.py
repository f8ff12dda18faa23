"""Who votes: the configuration of the quorum, as an entry of its journal and as a part of snapshots. Pure.

One voter is added or removed at a time (Ongaro's thesis, 4.1): any majority of the old configuration then shares a voter
with any majority of the new one, so both may be in use at once. A configuration counts from the moment it is appended,
on whoever appends it, and no longer when it is truncated. Two rules make that safe: the one before it must be committed,
and the leader must have committed an entry of its own term (the fault of the thesis that Ongaro reported in 2015).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.message import Message, decode, encode
from barnabas.log.vocabulary.node_address import NodeAddress
from barnabas.log.vocabulary.quorum import QuorumPeer

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
    """How far a change of the voters is. It is asked for again until it is done."""

    done: bool
    state: str


class QuorumStatus(Message, frozen=True, kw_only=True):
    """What a node knows of the quorum; also the leader's answer on the wire."""

    leader_id: int  # -1: none is known
    term: int
    committed_index: int
    voters_index: int
    peers: tuple[QuorumPeer, ...]
    change: str = ""  # the change under way in words
    refused: tuple[
        str, ...
    ] = ()  # brokers whose metadata contradicts that of the quorum, in words; the controller knows


def encode_voters(voters: Iterable[NodeAddress]) -> bytes:
    return encode(tuple(voters))


def decode_voters(packed: bytes, index: int) -> VoterSet:
    """Raises ValueError for what is no configuration."""
    try:
        voters = decode(tuple[NodeAddress, ...], packed)
    except InvalidRequestError as error:
        raise ValueError(f"entry {index} is no configuration of voters: {error.message}") from error
    if not voters:
        raise ValueError(f"entry {index} is a configuration without voters")
    return VoterSet(voters=voters, index=index)


class Membership:
    """The configurations that still matter to one node: the newest one that it has applied, and those behind it.

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
        """The configuration that was in force at `index`, which must not be behind what was forgotten."""
        return next((item for item in reversed(self._sets) if item.index <= index), self._sets[0])

    def reachable(self, commit_index: int) -> dict[int, NodeAddress]:
        """Everybody who may have to be heard: of the committed configuration and of the newer ones, which may be undone.

        Who cut its link to a voter that it has only begun to remove could not be told, if that one is elected after all,
        that the removal has come to nothing.
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
        """Entries from `index` on are gone. Whether the configuration has changed by it."""
        before = len(self._sets)
        while self._sets[-1].index >= index and len(self._sets) > 1:
            self._sets.pop()
        return len(self._sets) != before

    def restored(self, base: VoterSet | None, entries: Iterable[Entry]) -> None:
        """A snapshot took the place of what was before; without a configuration of its own the bootstrap one holds on."""
        self._sets = [base or self._sets[0]]
        self._append_all(entries)

    def applied(self, index: int) -> None:
        """What is older than the configuration at `index` is not asked for any more."""
        while len(self._sets) > 1 and self._sets[1].index <= index:
            del self._sets[0]

    def _append_all(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry[1] > self.current.index:
                self.appended(entry)
