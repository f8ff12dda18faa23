"""Questions to a voter's quorum port, one per connection: the directory, by which a broker that is no voter finds the cluster,
and whether the voter has dialed us with a token."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode

from .network import RaftNetwork
from .wire import (
    MAX_HELLO_BYTES,
    Directory,
    Hello,
    WireError,
    decode_confirmation,
    decode_directory,
    encode_hello,
    split_frames,
)

T = TypeVar("T")

ANSWER_TIMEOUT_S = 2.0  # it takes one round trip; then the next voter is asked


class DirectoryUnavailableError(BarnabasError):
    """This address gave no directory; another voter may."""

    code = ErrorCode.BROKER_NOT_AVAILABLE
    retriable = True


class _Question(asyncio.Protocol, Generic[T]):
    def __init__(self, hello: Hello, decode: Callable[[bytes], T], answer: "asyncio.Future[T]") -> None:
        self._hello = hello
        self._decode = decode
        self._answer = answer
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # Its class is the loop's own business.
        self._transport.write(encode_hello(self._hello))

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            frames = split_frames(self._received, MAX_HELLO_BYTES)
            if frames and not self._answer.done():
                self._answer.set_result(self._decode(frames[0]))
                self._transport.close()
        except WireError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or EOFError("closed without an answer"))

    def abort(self) -> None:
        self._transport.abort()

    def _fail(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)


async def ask_directory(
    network: RaftNetwork,
    host: str,
    port: int,
    *,
    cluster_id: str = "",
    tls: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
) -> Directory:
    """Ask one voter. The request contains our cluster id; a voter of another cluster logs the mismatch. Raises
    DirectoryUnavailableError."""
    question = Hello(voter_id=None, cluster_id=cluster_id)
    return await _ask(network, host, port, question, decode_directory, tls=tls, server_hostname=server_hostname)


async def ask_confirmation(network: RaftNetwork, host: str, port: int, token: int) -> bool:
    """Has the voter at this address dialed with that token? Raises DirectoryUnavailableError."""
    return await _ask(network, host, port, Hello(voter_id=None, token=token), decode_confirmation)


async def _ask(
    network: RaftNetwork,
    host: str,
    port: int,
    hello: Hello,
    decode: Callable[[bytes], T],
    *,
    tls: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
) -> T:
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    question = _Question(hello, decode, answer)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await network.connect(lambda: question, host, port, tls=tls, server_hostname=server_hostname)
            try:
                return await answer
            finally:
                question.abort()
    except (OSError, TimeoutError, WireError, EOFError) as error:
        raise DirectoryUnavailableError(f"no answer from the voter at {host}:{port}: {error!r}") from error
