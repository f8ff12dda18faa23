"""`CommitOrder`: a commit that arrives after a newer one of the same client is refused. Pure.

A client that abandons a connection sends its commit again on another one. The first request may still arrive: the client's
system retransmits it when the network recovers, or a proxy has delayed it. If it were accepted then, it would undo newer
commits that were acknowledged meanwhile. So each request has a number, and the newest number of each client is remembered.

These numbers are lost with the coordinator. For this reason a request also names the coordinator epoch that it was sent to, and
a coordinator of another epoch refuses it: the client looks the coordinator up and sends a request with a new number.
"""

from collections import OrderedDict
from typing import Final

from barnabas.log.vocabulary.errors import CoordinatorNotAvailableError, NotCoordinatorError

from ..model.messages import CommitPlace

# About 200 bytes each. The client with the oldest last commit is forgotten first; only one of its commits that is still in
# flight could then be accepted out of order.
MAX_COMMITTERS: Final = 10_000


class CommitOrder:
    """Of one slot."""

    def __init__(self, coordinator_epoch: int, *, max_committers: int = MAX_COMMITTERS) -> None:
        self._coordinator_epoch = coordinator_epoch
        self._max_committers = max_committers
        self._newest: OrderedDict[tuple[str, str], int] = OrderedDict()  # (group, committer) -> sequence; newest last

    def check(self, group_id: str, place: CommitPlace) -> None:
        """Raises NotCoordinatorError, CoordinatorNotAvailableError."""
        if place.coordinator_epoch != self._coordinator_epoch:
            raise NotCoordinatorError(
                f"the commit was sent to coordinator epoch {place.coordinator_epoch} of group {group_id!r}, this is epoch "
                f"{self._coordinator_epoch}: look the coordinator up and commit again"
            )
        newest = self._newest.get((group_id, place.committer), -1)
        if place.sequence <= newest:
            raise CoordinatorNotAvailableError(
                f"commit {place.sequence} arrived after commit {newest} of the same client and was refused: commit again"
            )

    def taken(self, group_id: str, place: CommitPlace) -> None:
        key = group_id, place.committer
        self._newest[key] = place.sequence
        self._newest.move_to_end(key)
        if len(self._newest) > self._max_committers:
            self._newest.popitem(last=False)
