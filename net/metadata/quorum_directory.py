"""The addresses of the voters and their brokers, for nodes that are not voters or do not hear from a leader. They come from the
voters' quorum ports.

The first addresses are those in server.properties. Newer ones are stored in a file next to the quorum's journal, so that a broker
finds the quorum even if all voters in its server.properties were replaced.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Protocol

import msgpack

from barnabas.kraft.quorum.voters import VoterSet, decode_voters, encode_voters
from barnabas.kraft.raft.net.directory import DirectoryUnavailableError, ask_directory
from barnabas.kraft.raft.net.network import RaftNetwork
from barnabas.kraft.raft.net.wire import Directory
from barnabas.log.vocabulary.cluster_mismatch import cluster_mismatch
from barnabas.log.vocabulary.errors import StorageError
from barnabas.log.vocabulary.node_address import NodeAddress

from .quorum_source import decode_address

logger = logging.getLogger("barnabas.metadata")

FILE_NAME = "quorum.contacts"
MAX_CONTACTS = 32  # beyond it, former voters are dropped, the newest first


class ContactFiles(Protocol):
    """The required file operations; `log.disk.files.Files` implements them."""

    def exists(self, path: str) -> bool: ...
    def read_bytes(self, path: str) -> bytes: ...
    def make_dirs(self, path: str) -> None: ...
    def write_atomically(self, path: str, data: bytes) -> None: ...


class QuorumDirectory:
    """Keeps the results of the last answers. A contact is an address: nodes may move, and several may use one id."""

    def __init__(
        self,
        *,
        voters: tuple[tuple[str, int], ...],
        network: RaftNetwork,
        files: ContactFiles | None = None,
        folder: str = "",
        cluster_id: str = "",
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        self._given = voters
        self._network = network
        self._files = files
        self._folder = folder
        self._cluster_id = cluster_id
        self._tls = tls
        self._learned: tuple[tuple[str, int], ...] = self._load()
        self._known: dict[int, tuple[str, int]] = {}

    async def addresses(self) -> list[tuple[str, int]]:
        """Ask all voters in parallel, and return the addresses of brokers that are known then, possibly none.

        If only another cluster answers, its addresses are used: its controller refuses this broker, and says why.
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
        """An error message if the other configured voters belong to another cluster; "" if one belongs to this cluster; None if
        none has answered."""
        if not self._cluster_id:
            return ""
        answers = [answer for answer in await self._ask(self._given) if answer.node_id != node_id and answer.cluster_id]
        if not answers:
            return None
        if any(answer.cluster_id == self._cluster_id for answer in answers):
            return ""
        voters = sorted((f"voter {answer.node_id}", answer.cluster_id) for answer in answers)
        return cluster_mismatch(f"the data folder of broker {node_id}", self._cluster_id, *voters)

    async def voters(self) -> list[VoterSet]:
        """The committed configuration of the quorum, as each voter knows it."""
        return [answer.voters for answer in await self._ask() if self._is_ours(answer)]

    def _is_ours(self, answer: Directory) -> bool:
        return not (self._cluster_id and answer.cluster_id and answer.cluster_id != self._cluster_id)

    async def _ask(self, given: tuple[tuple[str, int], ...] | None = None) -> list[Directory]:
        contacts = dict.fromkeys((*self._learned, *self._given) if given is None else given)
        tls = self._tls()
        answers = await asyncio.gather(
            *(
                ask_directory(
                    self._network,
                    host,
                    port,
                    cluster_id=self._cluster_id,
                    tls=tls,
                    server_hostname=None if tls is None else host,
                )
                for host, port in contacts
            ),
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
        """These are the voters now."""
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
            logger.warning("path=%s cannot be read, ignoring it: %s", path, error)
            return ()
        return tuple((voter.host, voter.port) for voter in voters)

    def _store(self, files: ContactFiles) -> None:
        """A failure does not stop the broker: it still has the addresses of server.properties."""
        listed = (
            NodeAddress(node_id=number, host=host, port=port) for number, (host, port) in enumerate(self._learned)
        )
        try:
            files.make_dirs(self._folder)
            files.write_atomically(f"{self._folder}/{FILE_NAME}", encode_voters(listed))
        except StorageError as error:
            logger.warning("cannot store the voters' addresses: %s", error)
