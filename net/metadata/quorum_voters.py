"""Handles requests about the voters on the quorum's leader: first the checks of the metadata, then the quorum's own.

Called in the quorum's loop. On other nodes, the answer is NotControllerError, and the caller asks the leader.
"""

from msgspec.structs import replace

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.requests import AlterVoters, VotersAnswer
from barnabas.kraft.quorum.voters import QuorumStatus
from barnabas.kraft.raft.quorum import RaftQuorum
from barnabas.log.vocabulary.errors import BarnabasError, InvalidRequestError, NotControllerError
from barnabas.log.vocabulary.node_address import NodeAddress


def alter_voters(quorum: RaftQuorum, image: MetadataImage, request: AlterVoters) -> VotersAnswer | BarnabasError:
    """Begin a change of the voters, or continue it."""
    try:
        if not quorum.leadership.is_self:
            raise NotControllerError("this broker does not lead the quorum")
        if request.check_only:
            _check(quorum.status(), image, request)
            return VotersAnswer(done=False, state="allowed")
        if request.add:
            progress = quorum.add_voter(NodeAddress(node_id=request.node_id, host=request.host, port=request.port))
        else:
            progress = quorum.remove_voter(request.node_id)
    except BarnabasError as error:
        return error
    return VotersAnswer(done=progress.done, state=progress.state)


def _check(status: QuorumStatus, image: MetadataImage, request: AlterVoters) -> None:
    voters = sorted(peer.node_id for peer in status.peers if peer.is_voter)
    node_id = request.node_id
    if request.add == (node_id in voters):
        raise InvalidRequestError(
            f"node {node_id} is {'a' if request.add else 'no'} voter already; the voters are {voters}"
        )
    broker = image.brokers.get(node_id)
    if request.add and (broker is None or not broker.is_active):
        state = "not registered" if broker is None else "fenced or shutting down"
        raise InvalidRequestError(f"broker {node_id} is {state}: start it, and add it to the voters when it is active")


def describe_voters(quorum: RaftQuorum, refused: tuple[str, ...]) -> QuorumStatus | BarnabasError:
    if not quorum.leadership.is_self:
        return NotControllerError("this broker does not lead the quorum")
    return replace(quorum.status(), refused=refused)
