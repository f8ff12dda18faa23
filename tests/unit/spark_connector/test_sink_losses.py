"""A decided micro-batch whose rows cannot be published is an error, however the driver and its tasks go on: never a success."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from unit.net.client.fake_cluster import FakeLog
from unit.net.client.virtual_time import run
from unit.spark_connector.test_sink_commit import SINK, Died, Driver, World, dying_at

from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.errors import ErrorCode, InvalidConfigError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import TransactionAbortedError
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.spark_connector.common.sink_ledger import LEDGER_TOPIC, Decision

LEDGER = TopicPartition(LEDGER_TOPIC, 0)
DAY_S = 86_400


@pytest.mark.parametrize("days", [0, 6])
def test_an_operators_abort_of_what_is_decided_is_an_error_although_the_tasks_have_run_again(days: int) -> None:
    """Spark runs the tasks of the micro-batch again before its commit, and they go on under the same transactional ids."""

    async def main() -> None:
        world = World()
        async with Driver(world, "first") as driver:
            with pytest.raises(Died):
                await driver.commit(0, probe=dying_at("decided"))
        for name in world.open():
            world.coordinator.abort(name)
        await asyncio.sleep(days * DAY_S)
        async with Driver(world, "second") as driver:
            for _ in range(3):
                with pytest.raises(TransactionAbortedError, match="by an operator"):
                    await driver.commit(0)

    run(main())


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_ledger_that_does_not_keep_its_decisions_is_refused_with_the_cure(policy: str) -> None:
    """As a topic that somebody else has created, or that the brokers create by themselves."""

    async def main() -> None:
        world = World()
        world.cluster.configs[LEDGER_TOPIC] = {"cleanup.policy": policy}
        async with Driver(world, "one") as driver:
            with pytest.raises(
                InvalidConfigError, match=r"barnabas config set cleanup.policy=compact -t __spark_sinks"
            ):
                await driver.commit(0)
            world.cluster.configs[LEDGER_TOPIC] = {"cleanup.policy": "compact"}
            assert await driver.commit(0)
        world.check_once({0: "one"})

    run(main())


def test_a_driver_that_may_not_see_the_configuration_of_the_ledger_goes_on() -> None:
    async def main() -> None:
        world = World()
        denied = r.ErrorResponse(error=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED), message="no permission")
        world.cluster.answers[ApiKey.DESCRIBE_CONFIGS] = lambda *_: denied
        async with Driver(world, "one") as driver:
            assert await driver.commit(0)
        world.check_once({0: "one"})

    run(main())


def test_a_ledger_that_was_deleted_and_created_again_loses_no_later_micro_batch() -> None:
    async def main() -> None:
        world = World()
        async with Driver(world, "one") as driver:
            for batch_id in range(3):
                assert await driver.commit(batch_id)
            world.cluster.logs[LEDGER] = FakeLog()
            assert await driver.commit(3)
        world.check_once(dict.fromkeys(range(4), "one"))

    run(main())


def test_a_ledger_that_was_made_again_and_is_longer_than_the_old_one_is_read_from_its_start() -> None:
    """The decisions of another driver are before the position of this one in the old ledger."""

    async def main() -> None:
        world = World()
        async with Driver(world, "one") as one, Driver(world, "other") as other:
            for batch_id in range(3):
                assert await one.commit(batch_id)
            world.cluster.make_anew(LEDGER_TOPIC)
            for batch_id in range(3, 6):
                assert await other.commit(batch_id)
            assert not await one.commit(5), "the other one has published it"
        world.check_once(dict.fromkeys(range(3), "one") | dict.fromkeys(range(3, 6), "other"))

    run(main())


@pytest.mark.parametrize("when", [1, 2, 3])
def test_an_answer_that_tells_an_old_end_of_the_ledger_hides_no_decision(when: int) -> None:
    """Brokers refuse such a question right after an election. It is the answer to the read before the decision, to that behind
    the decision, or to that behind the record of publication."""

    async def main() -> None:
        world = World()
        async with Driver(world, "one") as driver:
            assert await driver.commit(0)
            count = 0
            answer: Any = world.cluster.answers[ApiKey.LIST_OFFSETS]

            def old_end(node_id: int, request: Any) -> Any:
                nonlocal count
                count += 1
                found = answer(node_id, request)
                if count != when:
                    return found
                behind = tuple(replace(item, offset=item.offset - 1) for item in found.partitions)
                return replace(found, partitions=behind)

            world.cluster.answers[ApiKey.LIST_OFFSETS] = old_end
            assert await driver.commit(1)
            assert await driver.commit(2)
            assert count > when
        world.check_once(dict.fromkeys(range(3), "one"))

    run(main())


def test_the_older_micro_batch_of_another_driver_is_not_taken_for_the_own_one() -> None:
    async def main() -> None:
        world = World()
        async with Driver(world, "behind") as behind, Driver(world, "ahead") as ahead:
            prepared = await behind.write(1)

            def decided_meanwhile(step: str) -> None:
                if step == "staged":
                    older = Decision(sink_id=SINK, batch_id=1, attempt="behind", transactions=tuple(prepared))
                    world.cluster.logs[LEDGER].append(
                        encode_batch([older.to_bytes()], keys=[older.key], timestamps_ms=0)
                    )

            assert await ahead.commit(2, probe=decided_meanwhile)
        world.check_once({1: "behind", 2: "ahead"})

    run(main())
