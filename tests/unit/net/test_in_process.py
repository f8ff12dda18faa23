"""Requests within the broker's process: answers are the same values as those that come over a socket."""

import asyncio
from dataclasses import dataclass

import pytest

from barnabas.log.vocabulary.errors import ErrorCode, StorageError
from barnabas.net.broker.in_process import InProcessConnection
from barnabas.net.server.dispatcher import Dispatcher, Reply
from barnabas.net.wire.protocol.apis import KEY_OF
from barnabas.net.wire.protocol.requests import FetchRequest
from barnabas.net.wire.protocol.responses import FetchPartitionResponse, FetchResponse


@dataclass
class Region:
    """Records that still lie in a file."""

    content: bytes
    size_bytes: int
    position: int = 0
    error: Exception | None = None

    def fileno(self) -> int | None:
        return None

    def read(self) -> bytes:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()  # the disk may be slow: never on the event loop
        if self.error is not None:
            raise self.error
        return self.content


def connection_to(*records: bytes | Region) -> InProcessConnection:
    def fetch(request: FetchRequest, context: object, reply: Reply) -> None:
        items = [
            FetchPartitionResponse(topic="t", partition=number, records=found) for number, found in enumerate(records)
        ]
        reply(FetchResponse(partitions=items))

    return InProcessConnection(Dispatcher({KEY_OF[FetchRequest]: fetch}), "PLAINTEXT", "test", 0)


REQUEST = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1, partitions=())


async def test_records_in_a_file_are_read() -> None:
    answer = await connection_to(b"sent", Region(b"stored", 6)).call(REQUEST, timeout_ms=10_000)
    assert [item.records for item in answer.partitions] == [b"sent", b"stored"]


@pytest.mark.parametrize(
    ("region", "told"),
    [
        (Region(b"cut", 6), "the log of t-0 was cut while it was read"),
        (Region(b"", 6, error=OSError("Input/output error")), "records cannot be read: Input/output error"),
        (Region(b"", 6, error=StorageError("the folder is offline")), "the folder is offline"),
    ],
)
async def test_a_file_that_cannot_be_read_is_an_error_of_the_disk(region: Region, told: str) -> None:
    with pytest.raises(StorageError, match=told) as raised:
        await connection_to(region).call(REQUEST, timeout_ms=10_000)
    assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_caller_that_left_is_not_answered() -> None:
    connection = connection_to(Region(b"stored", 6))
    waiting = asyncio.ensure_future(connection.call(REQUEST, timeout_ms=10_000))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert connection.in_flight == 0
