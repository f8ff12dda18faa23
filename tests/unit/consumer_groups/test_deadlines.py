"""Timers against a plain dict, and the bounded ring of causes."""

from hypothesis import given
from hypothesis import strategies as st

from barnabas.consumer_groups.deadlines import Deadlines
from barnabas.consumer_groups.rebalance_log import REBALANCES_KEPT_PER_GROUP, Rebalance, RebalanceCause, RebalanceLog

keys = st.sampled_from([("g", "a"), ("g", "b"), ("h", "")])
operations = st.lists(
    st.tuples(st.sampled_from(["set", "cancel", "expire", "look"]), keys, st.integers(min_value=0, max_value=20))
)


@given(operations)
def test_deadlines_behave_like_a_dict_that_is_searched(steps: list[tuple[str, tuple[str, str], int]]) -> None:
    deadlines, model = Deadlines(), dict[tuple[str, str], int]()
    for name, key, at_ms in steps:
        if name == "set":
            deadlines.set(key, at_ms)
            model[key] = at_ms
        elif name == "cancel":
            deadlines.cancel(key)
            model.pop(key, None)
        elif name == "expire":
            expired = sorted((due, one) for one, due in model.items() if due <= at_ms)
            assert deadlines.take_expired(at_ms) == [one for _, one in expired]
            for _, one in expired:
                del model[one]
        assert deadlines.next_deadline_ms() == min(model.values(), default=None)
        assert (key in deadlines) == (key in model)


def test_the_log_of_a_group_is_a_bounded_ring() -> None:
    log = RebalanceLog()
    for epoch in range(REBALANCES_KEPT_PER_GROUP + 5):
        rebalance = Rebalance(
            at_ms=epoch,
            cause=RebalanceCause.MEMBER_JOINED,
            member_id="a",
            group_epoch=epoch,
            assignment_epoch=epoch,
        )
        log.add("g", rebalance)
    assert [item.group_epoch for item in log.of("g")] == list(range(5, REBALANCES_KEPT_PER_GROUP + 5))
    assert log.of("other") == ()
    log.forget("g")
    assert log.of("g") == ()
