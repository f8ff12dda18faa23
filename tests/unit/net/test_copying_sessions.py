"""Sessions of `barnabas mirror` and `barnabas collect`: which errors begin a new one."""

import asyncio
import logging

import pytest
from unit.net.shell_world import simulated

from barnabas.log.vocabulary.errors import (
    BarnabasError,
    InvalidConfigError,
    InvalidProducerEpochError,
    NetworkError,
    ProducerFencedError,
)
from barnabas.net.client.connection.errors import TransactionAbortedError
from barnabas.net.programs.copying.kept_positions import ReplacedError
from barnabas.net.programs.copying.sessions import run_sessions


def aborted_by(cause: BarnabasError) -> BarnabasError:
    error = TransactionAbortedError("aborted")
    error.__cause__ = cause
    return error


async def sessions(*errors: BarnabasError) -> int:
    """How many were begun until one ended well."""
    left, begun = list(errors), 0

    async def session() -> None:
        nonlocal begun
        begun += 1
        if left:
            raise left.pop(0)

    await run_sessions(
        session,
        stopping=asyncio.Event(),
        records_done=lambda: 0,
        replaced=lambda: ReplacedError("another one"),
        logger=logging.getLogger("test"),
    )
    return begun


@pytest.mark.parametrize(
    "error",
    [
        NetworkError("cut"),
        InvalidProducerEpochError("epoch 8, not 6"),
        aborted_by(InvalidProducerEpochError("epoch 8, not 6")),
    ],
    ids=repr,
)
def test_a_new_session_begins(error: BarnabasError) -> None:
    """An epoch that was over ended the program with an error that did not say why."""

    @simulated
    async def main() -> None:
        assert await sessions(error) == 2

    main()


@pytest.mark.parametrize(
    "error, told",
    [(ProducerFencedError("fenced"), ReplacedError), (InvalidConfigError("wrong"), InvalidConfigError)],
    ids=["replaced", "for ever"],
)
def test_what_does_not_pass_is_raised(error: BarnabasError, told: type[BarnabasError]) -> None:
    @simulated
    async def main() -> None:
        with pytest.raises(told):
            await sessions(error)

    main()
