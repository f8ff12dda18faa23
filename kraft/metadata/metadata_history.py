"""Whether a broker's metadata belongs to the history that this quorum holds. Pure.

If most voters are restored from old copies of their folders (a backup, a snapshot of a machine), the quorum elects a leader and
continues from the past: it does not know later topics, leaders and offsets, and Raft cannot detect it, because the voters with
newer data are a minority. The brokers can: each one stores in its data folders up to where it knows the metadata.

Two positions of one history never contradict each other: a term has one leader, which drew one number (its claim) for the first
record of its term, and everything that was committed in earlier terms is before that record. A position that contradicts is
refused until an operator accepts the loss with `barnabas cluster recover`, which writes a record with a new recovery epoch to the
quorum; from then on, brokers that know only an older recovery epoch are accepted, whatever else they know.
"""

from barnabas.log.vocabulary.metadata_position import MetadataPosition

from .controller_errors import DivergentMetadataError
from .delta import MetadataDelta
from .image import MetadataImage

_CURE = (
    "the voters were restored from old copies of their quorum folders: stop them and bring the newest folders back, or, if "
    "these are the newest, accept the loss with `barnabas cluster recover`"
)


def check_position(
    view: MetadataDelta | MetadataImage,
    node_id: int,
    *,
    known: MetadataPosition | None,
    applied: MetadataPosition | None,
) -> None:
    """`known`: the position that the broker has stored. `applied`: that of the image in its process. None: not known.

    Raises DivergentMetadataError.
    """
    for position in (known, applied):
        cause = None if position is None else _contradiction(view, position)
        if cause is not None:
            raise DivergentMetadataError(f"broker {node_id} knows the metadata up to {position}, but {cause}: {_CURE}")
    if applied is not None and is_of_before_recovery(view, applied):
        raise DivergentMetadataError(
            f"broker {node_id} holds metadata of the time before the recovery of this quorum, up to {applied}, and the quorum "
            f"went on from offset {view.recovery_offset} without it: start broker {node_id} again"
        )


def check_follower(view: MetadataImage, node_id: int, applied: MetadataPosition) -> None:
    """As `check_position`, by a voter that may not know everything that is committed: an observer that knows more through another
    voter does not contradict. Raises DivergentMetadataError."""
    is_behind = view.offset < applied.offset and (
        (view.recovery_epoch, view.controller_epoch) < (applied.recovery_epoch, applied.controller_epoch)
    )
    if not is_behind:
        check_position(view, node_id, known=None, applied=applied)


def is_of_before_recovery(view: MetadataDelta | MetadataImage, position: MetadataPosition) -> bool:
    """Does it include anything that the recovery lost, without knowing the recovery?

    It reaches beyond the position at which the quorum was recovered, or it left this history earlier: the last recovery was not
    the first one, or continued from a copy that ends with entries that were never committed.
    """
    return position.recovery_epoch < view.recovery_epoch and (
        position.offset >= view.recovery_offset or _other_history(view, position) is not None
    )


def _contradiction(view: MetadataDelta | MetadataImage, position: MetadataPosition) -> str | None:
    if position.recovery_epoch < view.recovery_epoch:
        return None
    if position.controller_epoch and position.recovery_epoch > view.recovery_epoch:
        return f"this quorum knows of no recovery behind {view.recovery_epoch}"
    return _other_history(view, position)


def _other_history(view: MetadataDelta | MetadataImage, position: MetadataPosition) -> str | None:
    """By the terms only: there may have been a recovery in between."""
    if position.controller_epoch == 0:
        return None
    if position.controller_epoch > view.controller_epoch:
        return f"this quorum has reached controller epoch {view.controller_epoch} only"
    later = next((term for term in view.terms if term.epoch > position.controller_epoch), None)
    if later is not None and position.offset >= later.start:
        return f"controller epoch {later.epoch} of this quorum began at offset {later.start} already"
    return _other_term(view, position)


def _other_term(view: MetadataDelta | MetadataImage, position: MetadataPosition) -> str | None:
    """The term of the position, as this quorum knows it."""
    if not view.terms or view.terms[0].epoch > position.controller_epoch:
        return None  # it is too old
    claim = next((term.claim for term in view.terms if term.epoch == position.controller_epoch), None)
    if claim is None:
        return f"this quorum has had no controller epoch {position.controller_epoch}"
    if claim and position.claim and position.claim != claim:
        return "in this quorum another controller, or another process of it, began that epoch"
    return None
