"""A decided micro-batch whose rows cannot be published is an error, however the driver and its tasks go on: never a success."""

import asyncio

import pytest
from unit.net.client.virtual_time import run
from unit.spark_connector.test_sink_commit import Died, Driver, World, dying_at

from barnabas.net.client.connection.errors import TransactionAbortedError

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
