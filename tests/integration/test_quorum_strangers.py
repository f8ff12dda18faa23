"""Somebody who can reach the quorum ports and is no voter: neither stops a process nor the cluster, nor stays on a disk."""

import socket
from collections.abc import Callable

from integration.cluster import Cluster

from barnabas.kraft.raft_config import MAX_TERM
from barnabas.kraft.raft_formation import VoterState
from barnabas.kraft.raft_wire import Hello, encode_hello, frame

Maker = Callable[..., Cluster]
TIMEOUT_S = 20.0


def speak(cluster: Cluster, victim: int, claimed: int, message: dict[str, object]) -> bytes:
    """What the victim answers, until it hangs up."""
    voters = dict(item.split("@") for item in cluster.nodes[0].property("controller.quorum.voters").split(","))
    host, port = voters[str(victim)].rsplit(":", 1)
    hello = Hello(voter_id=claimed, state=VoterState.VOTER, token=1 << 40)
    answer = b""
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        connection.sendall(encode_hello(hello) + frame(message))
        try:
            while data := connection.recv(65536):
                answer += data
        except ConnectionResetError:
            pass
    return answer


async def test_forged_terms_and_forged_leaders_change_nothing(new_cluster: Maker) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        before = await admin.describe_quorum()
        append = {"type": "append_entries", "term": before.term, "commit_index": 1}
        append |= {"prevLogIdx": 1, "prevLogTerm": 0, "entries": ()}
        for victim in range(3):
            for claimed in {0, 1, 2} - {victim}:
                for term in (MAX_TERM - 1, 2**63 - 2):
                    speak(cluster, victim, claimed, {"type": "stale_term", "term": term})
                speak(cluster, victim, claimed, append)
        after = await admin.describe_quorum()
        assert (after.leader_id, after.term) == (before.leader_id, before.term)
        assert any("did not confirm at its own address" in node.log() for node in cluster.nodes)
    cluster.kill(0, 1, 2)
    cluster.start(0, 1, 2)
    await cluster.ready()
    async with cluster.admin() as admin:
        await admin.create_topic("t", replication_factor=3)
        assert (await admin.describe_quorum()).term < before.term + 100
