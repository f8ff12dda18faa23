"""The groups and the transactions of one slot share one timer."""

from itertools import count

import pytest
from unit.consumer_groups.coordinator_bench import SLOT, Bench

from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.consumer_groups.slot_coordinator import SlotCoordinator
from barnabas.consumer_groups.transactions.settings import TransactionSettings
from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.log.vocabulary.errors import InvalidRequestError, NonEmptyGroupError
from barnabas.log.vocabulary.group_messages import OffsetToCommit
from barnabas.log.vocabulary.share.messages import ShareGroupHeartbeatRequest
from barnabas.log.vocabulary.transaction_messages import (
    AddToTransactionRequest,
    InitTransactionsRequest,
    ProducerIdentity,
    TransactionTopic,
)

TX = next(name for name in map(str, count()) if slot_of(name) == SLOT)
SHARED = TX  # names of groups and of transactions do not meet


def begin_transaction(slot: SlotCoordinator, now_ms: int, *, timeout_ms: int) -> int:
    """Return when it times out."""
    request = InitTransactionsRequest(transactional_id=TX, timeout_ms=timeout_ms)
    who = slot.transactions.init(request, fresh_producer_id=9, now_ms=now_ms).response
    assert isinstance(who, ProducerIdentity)
    slot.transactions.add(
        AddToTransactionRequest(
            transactional_id=TX,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            topics=(TransactionTopic(topic="t", topic_id="t1", partitions=(0,)),),
            groups=(),
        ),
        now_ms=now_ms,
    )
    return now_ms + timeout_ms


def slot_of_bench(bench: Bench) -> SlotCoordinator:
    return SlotCoordinator(groups=bench.coordinator, settings=TransactionSettings(), now_ms=bench.now_ms)


def test_a_transaction_times_out_where_no_group_has_a_timer() -> None:
    bench = Bench()
    slot = slot_of_bench(bench)
    assert slot.next_deadline_ms() is None
    assert begin_transaction(slot, bench.now_ms, timeout_ms=500) == 1_500
    assert slot.groups.next_deadline_ms() is None and slot.next_deadline_ms() == 1_500


def test_the_earlier_timer_counts() -> None:
    for timeout_ms in (1, 900_000):
        bench = Bench()
        slot = slot_of_bench(bench)
        bench.join("m")
        of_groups = slot.groups.next_deadline_ms()
        assert of_groups is not None and slot.next_deadline_ms() == of_groups
        times_out_ms = begin_transaction(slot, bench.now_ms, timeout_ms=timeout_ms)
        assert slot.next_deadline_ms() == min(of_groups, times_out_ms)


def test_the_timers_of_share_groups_count_too() -> None:
    for share_ms, other_ms in ((45_000, 60_000), (60_000, 45_000)):
        bench = Bench(settings=GroupSettings(share_session_timeout_ms=share_ms, session_timeout_ms=other_ms))
        slot = slot_of_bench(bench)
        request = ShareGroupHeartbeatRequest(group_id=SHARED, member_id="s", member_epoch=0, subscribed_topics=("t",))
        slot.shares.heartbeat(request, bench.now_ms, principal="User:a")
        slot.tick(bench.now_ms)
        assert slot.next_deadline_ms() == bench.now_ms + share_ms
        bench.join("m")
        slot.tick(bench.now_ms)
        of_groups = slot.groups.next_deadline_ms()
        assert of_groups is not None
        assert slot.next_deadline_ms() == min(bench.now_ms + share_ms, of_groups)


def test_where_a_share_group_begins_is_reset_as_offsets_are() -> None:
    bench = Bench()
    slot = slot_of_bench(bench)

    def reset(*offsets: tuple[int, int]) -> None:
        wanted = tuple(OffsetToCommit(topic="t", partition=partition, offset=offset) for partition, offset in offsets)
        slot.reset_offsets(group_id=SHARED, offsets=wanted, topic_ids={"t": "t1"}, now_ms=bench.now_ms)

    def starts() -> dict[int, int]:
        return {state.partition: state.start_offset for state in slot.shares.states.of_group(SHARED).response}

    def beat(epoch: int) -> None:
        member = ShareGroupHeartbeatRequest(
            group_id=SHARED, member_id="s", member_epoch=epoch, subscribed_topics=("t",)
        )
        slot.shares.heartbeat(member, bench.now_ms, principal="User:a")

    beat(0)
    with pytest.raises(NonEmptyGroupError):
        reset((0, 7))
    beat(-1)
    reset((0, 7))
    assert starts() == {0: 7}
    with pytest.raises(InvalidRequestError, match="t-9: the partition does not exist"):
        reset((0, 8), (9, 8))
    assert starts() == {0: 7}, "all or nothing"
    with pytest.raises(InvalidRequestError, match="cannot be undone"):
        slot.undo_reset(group_id=SHARED, now_ms=bench.now_ms, by="me", validate_only=True, topics=None)
