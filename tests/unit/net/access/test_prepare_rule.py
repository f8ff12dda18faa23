"""Who may prepare a transaction, which no timeout ends."""

from __future__ import annotations

from msgspec.structs import replace
from unit.net.access.access_world import AccessWorld, allow

from barnabas.kraft.metadata.feature_levels import TWO_PHASE_LEVEL
from barnabas.log.vocabulary.access.acls import Operation, ResourceKind
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.transaction_messages import PrepareTransactionRequest
from barnabas.net.wire.protocol import responses as r

TRANSACTION = ResourceKind.TRANSACTIONAL_ID


def test_to_prepare_a_transaction_needs_a_permission_beside_write() -> None:
    """WRITE alone would let a program hold up readers of committed records for ever."""
    request = PrepareTransactionRequest(transactional_id="x", producer_id=1, producer_epoch=0)
    write, commit = allow(Operation.WRITE, TRANSACTION, "x"), allow(Operation.TWO_PHASE_COMMIT, TRANSACTION, "x")
    world = AccessWorld()
    for acls, denied in (
        ((write,), "TWO_PHASE_COMMIT"),
        ((commit,), "WRITE"),
        ((write, replace(commit, name="y")), "TWO_PHASE_COMMIT"),
        ((write, commit), None),
        ((allow(Operation.ALL, TRANSACTION, "x"),), None),
    ):
        world.reached.clear()
        world.audit.denials.clear()
        world.set(*acls)
        answer = world.ask(request)
        assert bool(world.reached) == (denied is None), acls
        assert world.audit.denials == ([] if denied is None else [(denied, "TRANSACTIONAL_ID", "x")])
        if denied is not None:
            error = answer.answer()
            assert isinstance(error, r.ErrorResponse)
            assert error.error == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_write_suffices_to_prepare_while_a_broker_does_not_know_the_other_permission() -> None:
    """It cannot be given before the last broker is upgraded, and jobs must not fail until then."""
    request = PrepareTransactionRequest(transactional_id="x", producer_id=1, producer_epoch=0)
    world = AccessWorld()
    for levels, is_allowed in (((TWO_PHASE_LEVEL, TWO_PHASE_LEVEL - 1), True), ((TWO_PHASE_LEVEL,) * 2, False)):
        world.reached.clear()
        world.levels = levels
        world.set(allow(Operation.WRITE, TRANSACTION, "x"))
        world.ask(request)
        assert bool(world.reached) == is_allowed, levels
