"""How a broker that is no voter finds the cluster: it asks any voter's quorum port for the directory."""

import asyncio
import ssl

from barnabas.log.errors import BarnabasError, ErrorCode

from .raft_network import RaftNetwork
from .raft_wire import MAX_HELLO_BYTES, Directory, Hello, WireError, decode_directory, encode_hello, split_frames

ANSWER_TIMEOUT_S = 2.0  # it takes one round trip; then the next voter is asked


class DirectoryUnavailableError(BarnabasError):
    """This address gave no directory; another voter may."""

    code = ErrorCode.BROKER_NOT_AVAILABLE
    retriable = True


class _Question(asyncio.Protocol):
    def __init__(self, answer: "asyncio.Future[Directory]") -> None:
        self._answer = answer
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        transport.write(encode_hello(Hello(voter_id=None)))

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            frames = split_frames(self._received, MAX_HELLO_BYTES)
            if frames and not self._answer.done():
                self._answer.set_result(decode_directory(frames[0]))
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
    network: RaftNetwork, host: str, port: int, *, tls: ssl.SSLContext | None = None, server_hostname: str | None = None
) -> Directory:
    """Ask one voter. Raises DirectoryUnavailableError."""
    answer: asyncio.Future[Directory] = asyncio.get_running_loop().create_future()
    question = _Question(answer)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await network.connect(lambda: question, host, port, tls=tls, server_hostname=server_hostname)
            try:
                return await answer
            finally:
                question.abort()
    except (OSError, TimeoutError, WireError, EOFError) as error:
        raise DirectoryUnavailableError(f"no directory from the voter at {host}:{port}: {error!r}") from error
