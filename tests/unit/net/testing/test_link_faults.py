"""Connections that are cut and delayed, over real sockets of one loop."""

import asyncio
import datetime
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from barnabas.log.disk.secret_files import write_secret
from barnabas.net.base.local.certificates import AUTHORITY, broker_certificate, make_authority
from barnabas.net.testing.faults.link_faults import BrokerLinks, FaultyNetwork, Link
from barnabas.net.wire.tcp import TcpNetwork
from barnabas.net.wire.tls import TlsContexts, TlsFiles

DEADLINE_S = 20.0


class Peer(asyncio.Protocol):
    """Keeps what arrives."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.lost = asyncio.get_running_loop().create_future()
        self.is_paused = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.got += data

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


class BufferedPeer(asyncio.BufferedProtocol):
    """Reads into a buffer of three bytes: what was delayed must be given in parts."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.buffer = bytearray(3)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        pass

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self.buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        pass


class Pair:
    """One that dials, and one that accepts; both ends have rules of their own."""

    def __init__(self, tls: TlsContexts | None = None) -> None:
        self.network = TcpNetwork(tls)
        self.dialing, self.accepting = BrokerLinks(), BrokerLinks()
        self.accepted: list[Peer | BufferedPeer] = []
        self.make: Callable[[], Peer | BufferedPeer] = Peer

    async def open(self) -> Peer:
        if not hasattr(self, "address"):
            listener = await FaultyNetwork(self.network, self.accepting).listen(self._accept, "127.0.0.1", 0)
            self.address = listener.address
        dialed = await FaultyNetwork(self.network, self.dialing).connect(Peer, *self.address)
        assert isinstance(dialed, Peer)
        await until(lambda: bool(self.accepted))
        return dialed

    def _accept(self) -> Peer | BufferedPeer:
        self.accepted.append(self.make())
        return self.accepted[-1]

    def cut(self, *, is_cut: bool = True) -> None:
        self.dialing.change(cut=frozenset({self.address} if is_cut else ()), delay_s=0.0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - protocols without an event
            await asyncio.sleep(0)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    found = Pair()
    yield found
    found.dialing.die()
    found.accepting.die()
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_a_cut_holds_both_directions_back_and_loses_nothing(pair: Pair) -> None:
    dialed = await pair.open()
    (accepted,) = pair.accepted
    assert isinstance(accepted, Peer)
    dialed.transport.write(b"before ")
    accepted.transport.write(b"hello ")
    await until(lambda: bool(accepted.got and dialed.got))
    pair.cut()
    dialed.transport.write(b"meanwhile ")
    assert dialed.is_paused and dialed.transport.get_write_buffer_size() == len(b"meanwhile ")
    accepted.transport.write(b"you")
    waiting = asyncio.ensure_future(FaultyNetwork(TcpNetwork(), pair.dialing).connect(Peer, *pair.address))
    # What crosses another connection of the same machine has had its time.
    other = await FaultyNetwork(TcpNetwork(), BrokerLinks()).connect(Peer, *pair.address)
    assert isinstance(other, Peer)
    other.transport.write(b"x")
    await until(lambda: len(pair.accepted) == 2 and bool(pair.accepted[1].got))
    assert (bytes(accepted.got), bytes(dialed.got), waiting.done()) == (b"before ", b"hello ", False)
    pair.cut(is_cut=False)
    dialed.transport.write(b"after")
    await until(lambda: accepted.got == b"before meanwhile after" and dialed.got == b"hello you")
    assert not dialed.is_paused
    await asyncio.wait_for(waiting, DEADLINE_S)
    other.transport.abort()
    await other.lost


async def test_who_gives_up_during_a_cut_is_told_at_once_and_the_peer_when_it_ends(pair: Pair) -> None:
    dialed = await pair.open()
    (accepted,) = pair.accepted
    assert isinstance(accepted, Peer)
    pair.cut()
    dialed.transport.write(b"never arrives")
    dialed.transport.abort()
    await asyncio.wait_for(dialed.lost, DEADLINE_S)
    assert dialed.transport.is_closing() and not accepted.lost.done()
    pair.cut(is_cut=False)
    await asyncio.wait_for(accepted.lost, DEADLINE_S)
    assert accepted.got == b""


async def test_a_delay_keeps_order_and_the_end_comes_last(pair: Pair) -> None:
    pair.make = BufferedPeer
    dialed = await pair.open()
    (accepted,) = pair.accepted
    loop = asyncio.get_running_loop()
    pair.accepting.change(cut=frozenset(), delay_s=0.15)
    began_s = loop.time()
    dialed.transport.write(b"0123456789")
    await until(lambda: accepted.got == b"0123456789")
    assert loop.time() - began_s >= 0.15
    dialed.transport.write(b"late")
    pair.accepting.change(cut=frozenset(), delay_s=0.0)
    dialed.transport.write(b" and at once")
    await until(lambda: accepted.got == b"0123456789late and at once")


async def test_a_reader_that_pauses_gets_the_rest_when_it_goes_on(pair: Pair) -> None:
    dialed = await pair.open()
    (accepted,) = pair.accepted
    assert isinstance(accepted, Peer)
    pair.accepting.change(cut=frozenset(), delay_s=0.02)
    dialed.transport.write(b"one")
    await until(lambda: accepted.got == b"one")
    accepted.transport.pause_reading()
    dialed.transport.write(b" two")
    dialed.transport.close()
    await dialed.lost
    assert accepted.got == b"one"
    accepted.transport.resume_reading()
    await until(lambda: accepted.got == b"one two" and accepted.lost.done())


async def test_a_dead_process_closes_its_connections_and_hears_no_more(pair: Pair) -> None:
    dialed = await pair.open()
    (accepted,) = pair.accepted
    assert isinstance(accepted, Peer)
    pair.accepting.die()
    await asyncio.wait_for(dialed.lost, DEADLINE_S)
    assert not accepted.lost.done()  # its code does not run any more
    with pytest.raises(OSError):
        await FaultyNetwork(TcpNetwork(), pair.dialing).connect(Peer, *pair.address)
    with pytest.raises(ConnectionRefusedError, match="killed"):
        await FaultyNetwork(TcpNetwork(), pair.accepting).connect(Peer, *pair.address)


async def test_what_would_bypass_the_transport_is_hidden(pair: Pair) -> None:
    dialed = await pair.open()
    assert dialed.transport.get_extra_info("socket") is None
    assert dialed.transport.get_extra_info("peername") == pair.address
    (link,) = pair.dialing.here().links
    assert isinstance(link, Link) and link.inner is dialed


async def test_a_broker_dials_on_two_loops_and_both_go_on_after_a_cut(pair: Pair) -> None:
    """The quorum's thread dials voters while the broker's loop asks them. When one waited for the other's event, the dialing of
    the quorum ended for ever."""
    await pair.open()
    pair.cut()
    is_dialing = threading.Event()

    async def in_thread() -> None:
        waiting = asyncio.ensure_future(FaultyNetwork(TcpNetwork(), pair.dialing).connect(Peer, *pair.address))
        await asyncio.sleep(0)
        is_dialing.set()
        peer = await asyncio.wait_for(waiting, DEADLINE_S)
        assert isinstance(peer, Peer)
        peer.transport.abort()
        await peer.lost

    here = asyncio.ensure_future(FaultyNetwork(TcpNetwork(), pair.dialing).connect(Peer, *pair.address))
    await asyncio.sleep(0)
    there = asyncio.ensure_future(asyncio.to_thread(asyncio.run, in_thread()))
    await asyncio.to_thread(is_dialing.wait, DEADLINE_S)
    assert not here.done() and not there.done()
    pair.cut(is_cut=False)
    await asyncio.wait_for(here, DEADLINE_S)
    await asyncio.wait_for(there, DEADLINE_S)


async def test_a_loop_that_comes_later_keeps_to_what_holds_already(pair: Pair) -> None:
    """The quorum of a broker process begins on its own loop when the first faults may be there."""
    await pair.open()
    pair.cut()
    network = FaultyNetwork(TcpNetwork(), pair.dialing)

    async def cut_there() -> frozenset[tuple[str, int]]:
        return pair.dialing.here().cut

    assert await asyncio.to_thread(asyncio.run, cut_there()) == {pair.address}
    pair.cut(is_cut=False)
    pair.dialing.die()
    with pytest.raises(ConnectionRefusedError, match="killed"):
        await asyncio.to_thread(asyncio.run, network.connect(Peer, *pair.address))


async def test_what_a_cut_has_held_back_leaves_first_also_where_another_thread_ends_the_cut(pair: Pair) -> None:
    dialed = await pair.open()
    (accepted,) = pair.accepted
    assert isinstance(accepted, Peer)
    pair.cut()
    dialed.transport.write(b"held ")
    healing = threading.Thread(target=pair.cut, kwargs={"is_cut": False})
    healing.start()
    healing.join()  # it has told this loop, which has not run meanwhile
    dialed.transport.write(b"later")
    await until(lambda: len(accepted.got) == len(b"held later"))
    assert accepted.got == b"held later"


async def test_encrypted_bytes_arrive_as_they_were_sent(tmp_path: Path) -> None:
    """asyncio fills a buffer of its protocol from several records of TLS."""
    now = datetime.datetime.now(datetime.UTC)
    authority = make_authority(tmp_path, "test", now=now)
    write_secret(tmp_path / "broker.pem", broker_certificate(authority, 0, ("127.0.0.1",), now=now))
    files = TlsFiles(certificate=str(tmp_path / "broker.pem"), authorities=str(tmp_path / AUTHORITY))
    pair = Pair(TlsContexts(files))
    dialed = await pair.open()
    (accepted,) = pair.accepted
    sent = b"".join(b"%07d" % number for number in range(20_000))
    for first in range(0, len(sent), 1_000):
        dialed.transport.write(sent[first : first + 1_000])
    await until(lambda: len(accepted.got) >= len(sent))
    assert bytes(accepted.got) == sent
    dialed.transport.abort()
    await until(lambda: not pair.dialing.here().links and not pair.accepting.here().links)
    pair.dialing.die()
    pair.accepting.die()
