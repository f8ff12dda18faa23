"""`MetadataPosition`: up to where a broker knows the metadata of its cluster, and in which history of it.

A broker stores it in its data folders, next to the records whose leaders and topics it describes. This reveals a quorum that was
restored from old copies of its folders: see `kraft.metadata.metadata_history`.
"""

from .message import Message


class MetadataPosition(Message, frozen=True, kw_only=True, order=True):
    """Ordered: of two positions in one history, the larger one knows more. All 0: nothing is known."""

    recovery_epoch: int = 0  # of the last accepted loss (`cluster recover`); 0: there was none
    controller_epoch: int = 0  # the raft term of the newest controller
    claim: int = 0  # drawn by that controller when its term began; 0: not known
    offset: int = 0  # everything up to here was applied, hence committed

    def __str__(self) -> str:
        recovered = f" since recovery {self.recovery_epoch}" if self.recovery_epoch else ""
        return f"offset {self.offset} of controller epoch {self.controller_epoch}{recovered}"
