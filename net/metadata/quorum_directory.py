"""Where the voters and their brokers are, for whoever is no voter or hears no leader: asked of the voters' quorum ports.

The first ones are those of server.properties. What is learned later is kept in a file beside the quorum's journal, so that a
broker finds the quorum also when all voters that its server.properties name were replaced.
"""

import asyncio
import logging
from typing import Protocol

import msgpack

from barnabas.kraft.quorum.voters import VoterSet, decode_voters, encode_voters
from barnabas.kraft.raft.net.directory import DirectoryUnavailableError, ask_directory
from barnabas.kraft.raft.net.network import RaftNetwork
from barnabas.kraft.raft.net.wire import Directory
from barnabas.log.vocabulary.errors import StorageError
from barnabas.log.vocabulary.node_address import NodeAddress

from .quorum_source import decode_address

logger = logging.getLogger("barnabas.metadata")

FILE_NAME = "quorum.contacts"
MAX_CONTACTS = 32  # former voters are forgotten beyond it, the newest first


class ContactFiles(Protocol):
    """What is needed of the disk; `log.files.Files` fits it."""

    def exists(self, path: str) -> bool: ...
    def read_bytes(self, path: str) -> bytes: ...
    def make_dirs(self, path: str) -> None: ...
    def write_atomically(self, path: str, data: bytes) -> None: ...


class QuorumDirectory:
    """Remembers what the last answers said. A contact is an address: nodes may move, or be several under one id."""

    def __init__(
        self,
        *,
        voters: tuple[tuple[str, int], ...],
        network: RaftNetwork,
        files: ContactFiles | None = None,
        folder: str = "",
        cluster_id: str = "",
    ) -> None:
        self._given = voters
        self._network = network
        self._files = files
        self._folder = folder
        self._cluster_id = cluster_id
        self._learned: tuple[tuple[str, int], ...] = self._load()
        self._known: dict[int, tuple[str, int]] = {}

    async def addresses(self) -> list[tuple[str, int]]:
        """Ask every voter at once; the addresses of brokers that are known then, perhaps none.

        Where only another cluster answers, it is believed: its controller refuses this broker, and says why.
        """
        answers = await self._ask()
        for answer in [answer for answer in answers if self._is_ours(answer)] or answers:
            self.learn(answer.voters.voters)
            for node_id, told in answer.endpoints.items():
                address = decode_address(told)
                if address is not None:
                    self._known[node_id] = address
        return list(self._known.values())

    async def other_cluster(self, node_id: int) -> str | None:
        """What is wrong where the configured voters other than this node are of another cluster; "" if one is of ours, and
        None where none has said."""
        if not self._cluster_id:
            return ""
        answers = [answer for answer in await self._ask(self._given) if answer.node_id != node_id and answer.cluster_id]
        if not answers:
            return None
        if any(answer.cluster_id == self._cluster_id for answer in answers):
            return ""
        told = ", ".join(sorted(f"voter {answer.node_id} is in cluster {answer.cluster_id}" for answer in answers))
        return (
            f"the data folder of broker {node_id} belongs to cluster {self._cluster_id}, but of the voters that "
            f"controller.quorum.voters names, {told}. Mount the folder that belongs here, or start with an empty one, or "
            "correct controller.quorum.voters; if a voter's own folder was emptied by mistake, bring that one back"
        )

    async def voters(self) -> list[VoterSet]:
        """What each of them holds for the committed configuration."""
        return [answer.voters for answer in await self._ask() if self._is_ours(answer)]

    def _is_ours(self, answer: Directory) -> bool:
        return not (self._cluster_id and answer.cluster_id and answer.cluster_id != self._cluster_id)

    async def _ask(self, given: tuple[tuple[str, int], ...] | None = None) -> list[Directory]:
        contacts = dict.fromkeys((*self._learned, *self._given) if given is None else given)
        answers = await asyncio.gather(
            *(ask_directory(self._network, host, port, cluster_id=self._cluster_id) for host, port in contacts),
            return_exceptions=True,
        )
        found = []
        for answer in answers:
            if isinstance(answer, DirectoryUnavailableError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            found.append(answer)
        return found

    def known(self, node_id: int) -> tuple[str, int] | None:
        return self._known.get(node_id)

    def learn(self, voters: tuple[NodeAddress, ...]) -> None:
        """These vote now."""
        newest = tuple((voter.host, voter.port) for voter in voters)
        if set(newest) <= {*self._learned, *self._given}:
            return
        self._learned = tuple(dict.fromkeys((*newest, *self._learned)))[:MAX_CONTACTS]
        if self._files is not None:
            self._store(self._files)

    def _load(self) -> tuple[tuple[str, int], ...]:
        path = f"{self._folder}/{FILE_NAME}"
        if self._files is None or not self._files.exists(path):
            return ()
        try:
            voters = decode_voters(self._files.read_bytes(path), 0).voters
        except (StorageError, ValueError, msgpack.UnpackException) as error:
            logger.warning("path=%s is not used, it cannot be read: %s", path, error)
            return ()
        return tuple((voter.host, voter.port) for voter in voters)

    def _store(self, files: ContactFiles) -> None:
        """Without the file this broker has server.properties still: no reason to stop."""
        listed = (
            NodeAddress(node_id=number, host=host, port=port) for number, (host, port) in enumerate(self._learned)
        )
        try:
            files.make_dirs(self._folder)
            files.write_atomically(f"{self._folder}/{FILE_NAME}", encode_voters(listed))
        except StorageError as error:
            logger.warning("the voters' addresses could not be kept: %s", error)
