"""Where the voters' brokers are: asked of the voters' quorum ports, which are all that an observer's configuration names."""

import asyncio

from barnabas.kraft.raft_directory import DirectoryUnavailableError, ask_directory
from barnabas.kraft.raft_network import RaftNetwork

from .config_values import Voter
from .quorum_source import decode_address


class QuorumDirectory:
    """Remembers what the last answer said."""

    def __init__(self, *, voters: tuple[Voter, ...], network: RaftNetwork) -> None:
        self._voters = voters
        self._network = network
        self._known: dict[int, tuple[str, int]] = {}

    async def addresses(self) -> list[tuple[str, int]]:
        """Ask every voter at once; the addresses that are known then, perhaps none."""
        answers = await asyncio.gather(
            *(ask_directory(self._network, voter.host, voter.port) for voter in self._voters), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, DirectoryUnavailableError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            for node_id, told in answer.endpoints.items():
                address = decode_address(told)
                if address is not None:
                    self._known[node_id] = address
        return list(self._known.values())

    def known(self, node_id: int) -> tuple[str, int] | None:
        return self._known.get(node_id)
