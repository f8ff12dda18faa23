"""The quorum's folder of one node, turned into the whole quorum when most of the voters are lost: the last resort of an operator.

As etcd's `--force-new-cluster`: the folder keeps its cluster id, its snapshot and its journal, and gets a configuration with
this node as the only voter. What is lost: everything that was committed after the last entry of this folder. What is won
over: entries of this folder that no majority had. So the folder must be the newest one that is left, and no other former
voter may ever start with its old folder again, for together they could be a majority of the old configuration.

The first command of the new quorum says that the loss is accepted (`metadata.records.RecoveryRecord`): brokers that know more
may register again, and what they may have seen is not given out twice.

It also mends a folder whose term or vote cannot be trusted (damaged, or a forged term): the only voter needs no other's vote,
so the term goes on behind that of the last entry. Offline, synchronous; every step can be repeated after a crash.
"""

from dataclasses import dataclass

from barnabas.log.vocabulary.node_address import NodeAddress

from ..quorum.config import MAX_TERM
from ..quorum.journal_format import REGULAR, DamagedJournal, Entry, RecordKind, encode_record, replay
from ..quorum.snapshot_format import DamagedSnapshot, Snapshot, unpack_snapshot
from ..quorum.voters import MEMBERSHIP, Membership, VoterSet, encode_voters
from .disk.meta import MetaStore, RaftMeta, valid_slots
from .disk.storage import DamagedQuorumError, JournalStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What a folder holds, and what it would be made."""

    entries: tuple[Entry, ...]
    former_voters: tuple[NodeAddress, ...]
    last_index: int
    last_term: int
    next_term: int
    commit_index: int


class NothingToRecover(Exception):
    """The folder has no metadata that could be kept."""


def inspect(
    storage: JournalStorage, *, journal_path: str, snapshot_path: str, given: tuple[NodeAddress, ...]
) -> Recovery:
    """Read the folder and change nothing. Raises NothingToRecover, DamagedQuorumError."""
    snapshot = _snapshot(storage, snapshot_path)
    entries = _entries(storage, journal_path)
    if snapshot is not None and (not entries or entries[-1][1] < snapshot.last_index):
        entries = [snapshot.prev, snapshot.last]
    if len(entries) < 2 and snapshot is None:
        raise NothingToRecover(f"{journal_path} holds no entry: this voter knows nothing that could be kept")
    base = VoterSet(voters=given) if snapshot is None or snapshot.voters is None else snapshot.voters
    metas = valid_slots(storage, _meta_path(journal_path))
    terms = [meta.raft_term for meta in metas if meta.raft_term < MAX_TERM]
    _, last_index, last_term = entries[-1]
    return Recovery(
        entries=tuple(entries),
        former_voters=Membership(base, entries).current.voters,
        last_index=last_index,
        last_term=last_term,
        next_term=max([last_term, *terms]) + 1,
        commit_index=max((meta.commit_index for meta in metas), default=1),
    )


def make_sole_voter(
    storage: JournalStorage, *, journal_path: str, found: Recovery, voter: NodeAddress, command: bytes
) -> None:
    """Durable on return: from the next start on `voter` is the quorum. `command`, of term `next_term`, is its first one."""
    last = max((meta.sequence for meta in valid_slots(storage, _meta_path(journal_path))), default=0)
    for sequence in (last + 1, last + 2):
        MetaStore.write_slot(
            storage,
            _meta_path(journal_path),
            RaftMeta(
                sequence=sequence,
                raft_term=found.next_term,
                voted_for=voter.node_id,
                commit_index=min(found.commit_index, found.last_index),
                blank=False,
            ),
        )
    configuration = (MEMBERSHIP + encode_voters((voter,)), found.last_index + 1, found.next_term)
    first = (REGULAR + command, found.last_index + 2, found.next_term)
    _rewrite(storage, journal_path, (*found.entries, configuration, first))


def _rewrite(storage: JournalStorage, path: str, entries: tuple[Entry, ...]) -> None:
    new_path = f"{path}.new"
    storage.remove(new_path)
    new = storage.open_append(new_path)
    new.append(b"".join(encode_record(RecordKind.ENTRY, index, term, 0, data) for data, index, term in entries))
    new.flush()
    new.close()
    storage.rename(new_path, path)
    storage.sync_dir(path.rpartition("/")[0])


def _entries(storage: JournalStorage, path: str) -> list[Entry]:
    if not storage.exists(path):
        return []
    try:
        return replay(storage.read_bytes(path)).entries
    except DamagedJournal as damage:
        raise DamagedQuorumError(path, str(damage)) from damage


def _snapshot(storage: JournalStorage, path: str) -> Snapshot | None:
    if not storage.exists(path):
        return None
    try:
        return unpack_snapshot(storage.read_bytes(path))
    except DamagedSnapshot as damage:
        raise DamagedQuorumError(path, f"the snapshot is damaged: {damage}") from damage


def _meta_path(journal_path: str) -> str:
    return f"{journal_path}.meta"
