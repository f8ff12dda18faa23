"""Single records on their way into open batches, without a coroutine."""

import asyncio
import gc
import inspect
import weakref
from collections.abc import Coroutine
from types import SimpleNamespace

import pytest

TIME_MS = 5


class World:
    """Open batches of the topic "t": one of its sticky partition, and one of the key b"k"."""

    def __init__(self, implementation, limit_bytes=200):
        self._implementation = implementation
        self._limit_bytes = limit_bytes
        self.later_calls = []
        self.sticky, self.keyed = self.batch(), self.batch()
        self.topics = {"t": SimpleNamespace(by_key={b"k": SimpleNamespace(open=self.keyed)})}
        self.open_batches = {"t": self.sticky}
        self.intake = implementation.Intake(self.open_batches, self.topics, self.later)

    def batch(self):
        batch = SimpleNamespace(records=self._implementation.Accumulator(self._limit_bytes))
        time = self._implementation.PassTime()
        time.now_ms = TIME_MS
        batch.records.belong_to(batch, self._implementation.Receipt, time, TIME_MS)
        return batch

    async def later(self, *record):
        self.intake.is_behind = False
        self.later_calls.append(record)
        return "later"


def test_a_record_is_taken_at_once_into_the_batch_of_its_topic_or_key(implementation):
    async def main():
        world = World(implementation)
        first = await world.intake.send("t", b"value")
        second = await world.intake.send("t", b"value", key=b"k")
        third = await world.intake.send(topic="t", value=None, key=None)
        assert (first.batch, first.position) == (world.sticky, 0)
        assert (second.batch, second.position) == (world.keyed, 0)
        assert third == "later", "None is not bytes"

    asyncio.run(main())


def test_all_that_is_unusual_is_left_to_the_coroutine(implementation):
    async def main():
        world = World(implementation)

        def send(*args, **named):
            world.intake.is_behind = False
            return world.intake.send(*args, **named)

        calls = {
            "a header": send("t", b"v", headers=[("h", b"1")]),
            "a partition": send("t", b"v", partition=0),
            "a time": send("t", b"v", timestamp_ms=0),
            "another topic": send("u", b"v"),
            "another key": send("t", b"v", key=b"other"),
            "a key of text": send("t", b"v", key="k"),
            "a topic that is none": send(7, b"v", key=b"k"),
        }
        for reason, call in calls.items():
            assert inspect.iscoroutine(call), reason
            assert await call == "later", reason
        assert len(world.later_calls) == len(calls)
        assert world.later_calls[0] == ("t", b"v", None, [("h", b"1")], None, None)
        assert world.later_calls[2] == ("t", b"v", None, None, None, 0)
        assert not world.keyed.records.count and not world.sticky.records.count

    asyncio.run(main())


def test_a_topic_that_cannot_be_looked_up_is_an_error_of_the_call(implementation):
    world = World(implementation)
    with pytest.raises(TypeError):
        world.intake.send(["t"], b"v")
    with pytest.raises(TypeError):
        world.intake.send("t")
    with pytest.raises(TypeError):
        world.intake.send("t", b"v", b"k")
    with pytest.raises(TypeError):
        world.intake.send("t", b"v", keys=b"k")


def test_a_record_does_not_overtake_one_before_it_that_waits_to_begin(implementation):
    async def main():
        world = World(implementation)
        await world.intake.send("t", b"x")
        calls = [
            world.intake.send("t", b"x" * 150),
            world.intake.send("t", b"y"),
            world.intake.send("t", b"y", key=b"k"),
        ]
        assert await asyncio.gather(*calls) == ["later"] * 3
        assert [record[1] for record in world.later_calls] == [b"x" * 150, b"y", b"y"]
        assert (await world.intake.send("t", b"z")).position == 1, "all have begun"

    asyncio.run(main())


def test_what_is_ready_is_a_coroutine_for_all_of_asyncio(implementation):
    async def main():
        ready = implementation.Ready
        assert isinstance(ready("r"), Coroutine) and asyncio.iscoroutine(ready("r"))
        assert await asyncio.create_task(ready("r")) == "r"
        assert await asyncio.wait_for(ready((1, 2)), 1) == (1, 2)
        inner = StopIteration("inner")
        assert await ready(inner) is inner
        assert await asyncio.gather(ready(None), ready(())) == [None, ()]
        async with asyncio.TaskGroup() as group:
            task = group.create_task(ready(b"bytes"))
        assert task.result() == b"bytes"
        cancelled = asyncio.create_task(ready("r"))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    asyncio.run(main())


def test_what_is_ready_follows_the_protocol_of_coroutines(implementation):
    ready = implementation.Ready("result")
    with pytest.raises(StopIteration) as stopped:
        ready.send(None)
    assert stopped.value.value == "result"
    with pytest.raises(StopIteration) as stopped:
        next(ready.__await__())
    assert stopped.value.value == "result"
    with pytest.raises(KeyError, match="thrown"):
        ready.throw(KeyError("thrown"))
    with pytest.raises(KeyError):
        ready.throw(KeyError)
    assert ready.close() is None


def test_nothing_is_kept_alive(implementation):
    class Kept:
        pass

    async def main():
        kept = Kept()
        seen = weakref.ref(kept)
        for _ in range(100):
            assert await implementation.Ready(kept) is kept
        del kept
        gc.collect()
        assert seen() is None

    asyncio.run(main())


def test_an_intake_that_its_owner_and_it_refer_to_is_collected(implementation):
    class Owner:
        def __init__(self):
            self.intake = implementation.Intake({}, {}, self.later)
            self.send = self.intake.send

        async def later(self, *record):
            pass

    owner = Owner()
    seen = weakref.ref(owner)
    del owner
    gc.collect()
    assert seen() is None
