"""Timers against a plain dict, and the bounded ring of causes."""

from hypothesis import given
from hypothesis import strategies as st

from barnabas.consumer_groups.model.deadlines import Deadlines

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
