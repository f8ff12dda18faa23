"""Who owns the positions, which records count, and when a session follows another one."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from barnabas.log.vocabulary.errors import (
    BarnabasError,
    InvalidConfigError,
    InvalidProducerEpochError,
    NetworkError,
    ProducerFencedError,
)
from barnabas.net.client.connection.errors import TransactionAbortedError
from barnabas.net.client.producer.producer import Producer
from barnabas.net.programs.copying.kept_positions import KeptPositions, PositionsLostError, ReplacedError, owner_key
from barnabas.net.programs.copying.sessions import run_sessions
from barnabas.testing import Cluster

logger = logging.getLogger("barnabas.mirror")


def kept(bootstrap: str = "nowhere:9092", stopping: asyncio.Event | None = None) -> KeptPositions:
    return KeptPositions(
        "places", "n", program="mirror", after_loss="start anew", bootstrap=bootstrap, security={},
        stopping=stopping or asyncio.Event(),
    )  # fmt: skip


async def test_the_owner_is_who_wrote_last() -> None:
    stopping = asyncio.Event()
    mine = kept(stopping=stopping)
    own = (owner_key("n"), mine._owner)
    mine.check_owner([(owner_key("n"), b"before"), own, (owner_key("m"), b"of another name")])
    with pytest.raises(ReplacedError, match="another mirror with the name 'n'"):
        mine.check_owner([own, (owner_key("n"), b"after")])
    with pytest.raises(PositionsLostError, match="start anew"):
        mine.check_owner([(b"n/t/0", b"5")])
    stopping.set()
    mine.check_owner([])  # not all of them were read


async def test_positions_of_an_aborted_transaction_do_not_count() -> None:
    with Cluster(brokers=1) as cluster:
        places = kept(cluster.bootstrap_servers)
        await places.make_topic()
        await places.make_topic()
        async with Producer(cluster.bootstrap_servers, transactional_id="t") as producer:
            async with producer.transaction() as transaction:
                await transaction.send("places", b"3", key=b"n/t/0", partition=0)
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction() as transaction:
                    await transaction.send("places", b"9", key=b"n/t/0", partition=0)
                    await producer.flush()
                    raise ZeroDivisionError
        assert await places.records() == [(b"n/t/0", b"3")]


def aborted_by(cause: BarnabasError) -> BarnabasError:
    error = TransactionAbortedError("a part of it failed")
    error.__cause__ = cause
    return error


class Replaced(BarnabasError):
    pass


@pytest.mark.parametrize(
    "error, ends_with",
    [
        (NetworkError("away"), None),
        (TransactionAbortedError("open for too long"), None),
        (InvalidConfigError("wrong"), InvalidConfigError),
        (ProducerFencedError("fenced"), Replaced),
        (InvalidProducerEpochError("at epoch 7, not 5"), None),
        (aborted_by(ProducerFencedError("fenced")), Replaced),
        (aborted_by(InvalidProducerEpochError("at epoch 7, not 5")), None),
        (aborted_by(NetworkError("away")), None),
        (aborted_by(InvalidConfigError("wrong")), TransactionAbortedError),
    ],
    ids=str,
)
async def test_a_session_follows_another_one_if_that_may_help(
    error: BarnabasError, ends_with: type[BarnabasError] | None
) -> None:
    sessions = 0

    async def session() -> None:
        nonlocal sessions
        sessions += 1
        if sessions == 1:
            raise error

    def running(one: Callable[[], Awaitable[None]]) -> Awaitable[None]:
        return run_sessions(
            one, stopping=asyncio.Event(), records_done=lambda: 0, replaced=lambda: Replaced("taken"), logger=logger
        )

    async with asyncio.timeout(10):
        if ends_with is None:
            await running(session)
            assert sessions == 2
        else:
            with pytest.raises(ends_with):
                await running(session)
            assert sessions == 1
