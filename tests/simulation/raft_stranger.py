"""A host that is not a voter: it says hello in a voter's name and sends the messages that would do most harm if accepted."""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from barnabas.kraft.quorum.config import MAX_TERM
from barnabas.kraft.quorum.formation import VoterState
from barnabas.kraft.raft.net.wire import Hello, encode_hello, frame

if TYPE_CHECKING:
    from .raft_cluster import SimulatedQuorum

STRANGER = -1  # its place in the network


class _Stranger(asyncio.Protocol):
    def __init__(self, hello: bytes, said: bytes) -> None:
        self._hello = hello
        self._said = said

    def connection_made(self, transport: Any) -> None:
        transport.write(self._hello)
        transport.write(self._said)


def speak_in_the_name_of_a_voter(cluster: "SimulatedQuorum", rng: random.Random) -> None:
    """To one node that runs; its connection stays open."""
    victim = rng.choice(sorted(cluster.nodes))
    claimed = rng.choice([node_id for node_id in cluster.ids if node_id != victim])
    core = cluster.nodes[victim].quorum._core
    assert core is not None
    hello = Hello(
        voter_id=claimed, state=rng.choice([VoterState.BLANK, VoterState.VOTER]), token=rng.getrandbits(62) + 1
    )
    last_index, last_term = core.journal.last_index, core.journal.last_term
    term = rng.choice([core.engine.term, core.engine.term + 1, core.engine.term + 1, MAX_TERM - 1])
    messages = [
        {"type": "stale_term", "term": term},
        {"type": "request_vote", "term": term, "last_log_index": 1 << 40, "last_log_term": term, "transfer": True},
        {"type": "response_vote", "term": core.engine.term},
        {"type": "next_node_idx", "term": core.engine.term, "next_node_idx": 1 << 40, "reset": False, "success": True},
        {
            "type": "append_entries",
            "term": term,
            "commit_index": last_index + 1,
            "prevLogIdx": last_index,
            "prevLogTerm": last_term,
            "entries": ((b"\x00forged", last_index + 1, term),),
        },
        {"type": "welcome", "term": core.engine.term, "index": core.journal.durable_index},
    ]
    said = b"".join(frame(message) for message in rng.sample(messages, rng.randint(1, 6)))
    cluster.loop.create_task(_connect(cluster, victim, lambda: _Stranger(encode_hello(hello), said)))


async def _connect(cluster: "SimulatedQuorum", victim: int, stranger: Callable[[], _Stranger]) -> None:
    try:
        await cluster.net.connect(STRANGER, victim, stranger)
    except OSError:
        return
