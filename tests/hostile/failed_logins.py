"""Failed logins by the thousand beside honest clients of a secure cluster: what they cost the honest ones.

`PYTHONPATH=tests .venv/bin/python -m hostile.failed_logins --rate 1000 --seconds 15 [--tls]`

The honest clients: a producer with acks=all, whose acknowledgements are timed, and newcomers that log in with the right password.
They come from the address of the attackers, which is the worst case for them: delays and places in line go by address. Without
--tls, the listener is SASL_PLAINTEXT: then the logins cost the brokers most, and not the handshakes. Attackers do not wait for
answers, which brokers delay.
"""

import argparse
import asyncio
import os
import signal
import ssl
import struct
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from integration.cluster import SESSION, Cluster

from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.errors import BarnabasError
from barnabas.net.client.connection.security import SecurityOptions
from barnabas.net.client.producer.producer import Producer

from .attacker import NICENESS
from .watch import Processor

TOPIC = "honest"
PACE_S = 0.02  # between two records of the producer
NEWCOMER_S = 0.5  # between two logins of honest newcomers
TICK_S = 0.02  # of the attackers
MOST_OPEN = 2_000  # connections of the attackers that wait for an answer; more are closed without having read it
SETTLED_S = 3.0
MECHANISMS = (b"PLAIN", b"SCRAM-SHA-256")
MECHANISMS_OF_BROKERS = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256"}
IN_PLAIN_TEXT = {"listener.security.protocol.map": "SASL_SSL:SASL_PLAINTEXT,BROKERS:SSL"}  # a name is only a name


@dataclass(slots=True)
class Times:
    """Of one kind of request, in seconds."""

    values: list[float] = field(default_factory=list)

    def quantile_ms(self, share: float) -> float:
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000 if ordered else float("nan")

    def __str__(self) -> str:
        told = " ".join(f"p{round(100 * share)} {self.quantile_ms(share):.1f} ms" for share in (0.5, 0.9, 0.99))
        return f"{len(self.values)}: {told} max {self.quantile_ms(1.0):.1f} ms"


def _frame(key: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", key, version, 1, 1) + b"x"
    return struct.pack(">i", len(head) + len(body)) + head + body


def failing_login(number: int) -> bytes:
    """Both requests of a login, sent without waiting: a wrong password, or a first message that is none."""
    mechanism = MECHANISMS[number % len(MECHANISMS)]
    message = b"\0admin\0wrong" if mechanism == b"PLAIN" else b"n,,n=admin"
    handshake = _frame(17, 1, struct.pack(">h", len(mechanism)) + mechanism)
    return handshake + _frame(36, 1, struct.pack(">i", len(message)) + message)


class _Attempt(asyncio.Protocol):
    def __init__(self, attack: "Storm", message: bytes) -> None:
        self._attack, self._message = attack, message

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._attack.opened(transport)
        transport.write(self._message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._attack.counts["ended"] += 1


class Storm:
    """So many failing logins a second, spread over the brokers."""

    def __init__(self, addresses: list[tuple[str, int]], rate: int, tls: ssl.SSLContext | None) -> None:
        self._addresses, self._rate, self._tls = addresses, rate, tls
        self._open: dict[asyncio.Transport, None] = {}
        self.counts: Counter[str] = Counter()

    def opened(self, transport: asyncio.Transport) -> None:
        self._open[transport] = None
        while len(self._open) > MOST_OPEN:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.abort()

    async def run(self) -> None:
        began_s, number, connecting = time.monotonic(), 0, set[asyncio.Task[None]]()
        while True:
            while number < (time.monotonic() - began_s) * self._rate:
                task = asyncio.create_task(self._one(number))
                connecting.add(task)
                task.add_done_callback(connecting.discard)
                number += 1
            await asyncio.sleep(TICK_S)

    async def _one(self, number: int) -> None:
        host, port = self._addresses[number % len(self._addresses)]
        message = failing_login(number // len(self._addresses))
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: _Attempt(self, message), host, port, ssl=self._tls
            )
            self.counts["sent"] += 1
        except OSError:
            self.counts["refused"] += 1


async def _honest(bootstrap: str, options: SecurityOptions, seconds: float) -> tuple[Times, Times, int]:
    """Acknowledgements, logins of newcomers, and how many of these failed."""
    acknowledged, logins, failed = Times(), Times(), 0
    until_s = time.monotonic() + seconds

    async def newcomers() -> None:
        nonlocal failed
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            try:
                async with Admin(bootstrap, **options):
                    logins.values.append(time.monotonic() - began_s)
            except BarnabasError:
                failed += 1
            await asyncio.sleep(NEWCOMER_S)

    beside = asyncio.create_task(newcomers())
    async with Producer(bootstrap, acks="all", linger_ms=0, **options) as producer:
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            await (await producer.send(TOPIC, b"x" * 100))
            acknowledged.values.append(time.monotonic() - began_s)
            await asyncio.sleep(PACE_S)
    await beside
    return acknowledged, logins, failed


async def _attack(addresses: list[tuple[str, int]], rate: int, seconds: float, tls: ssl.SSLContext | None) -> None:
    storm = Storm(addresses, rate, tls)
    task = asyncio.create_task(storm.run())
    await asyncio.sleep(seconds)
    task.cancel()
    print(", ".join(f"{name} {count / seconds:.0f}/s" for name, count in sorted(storm.counts.items())), flush=True)


async def measure(folder: Path, rate: int, seconds: float, *, tls: bool) -> bool:
    """Print a line for each phase. Was every honest client served?"""
    overrides = {**SESSION, **MECHANISMS_OF_BROKERS, **({} if tls else IN_PLAIN_TEXT)}
    with Cluster(folder / "c", 3, overrides=overrides, secure=True) as cluster:
        await cluster.ready()
        options = SecurityOptions(**cluster.login)
        if not tls:
            options["security_protocol"] = "SASL_PLAINTEXT"
            del options["ssl_cafile"]
        async with cluster.admin() as admin:
            await admin.create_topic(TOPIC, partitions=3, replication_factor=3, configs={"min.insync.replicas": "2"})
        is_served = True
        for name in ("before", "attack", "after"):
            command = ["--attack", cluster.logins, "--rate", str(rate), "--seconds", str(seconds + SETTLED_S)]
            attacker = await _start(*command, *(["--tls"] if tls else [])) if name == "attack" else None
            await asyncio.sleep(SETTLED_S / 2)
            loops = [Processor.of_loop(node.process.pid) for node in cluster.nodes]
            acknowledged, logins, failed = await _honest(cluster.logins, options, seconds)
            used = [
                Processor.of_loop(node.process.pid).since(one) for node, one in zip(cluster.nodes, loops, strict=True)
            ]
            print(f"{name:<7} produce {acknowledged}; logins {logins}; {failed} failed", flush=True)
            shares = (
                f"{one.busy_s / seconds:.0%} busy, {one.starved_s / seconds:.0%} without a processor" for one in used
            )
            print(f"        loops: {'; '.join(shares)}", flush=True)
            if attacker is not None:
                print(f"        attackers: {(await attacker.communicate())[0].decode().strip()}", flush=True)
            is_served = is_served and not failed and bool(acknowledged.values)
        return is_served


async def _start(*arguments: str) -> asyncio.subprocess.Process:
    """Attackers are a process of their own, so that their work is not measured as that of honest clients."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hostile.failed_logins", *arguments, stdout=asyncio.subprocess.PIPE
    )


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stopped run must not leave brokers behind
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=1_000, help="failed logins a second")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each phase")
    parser.add_argument("--tls", action="store_true", help="logins over TLS")
    parser.add_argument("--attack", metavar="HOST:PORT,...", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        os.nice(NICENESS)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        brokers = [(host, int(port)) for host, _, port in (one.rpartition(":") for one in options.attack.split(","))]
        asyncio.run(_attack(brokers, options.rate, options.seconds, context if options.tls else None))
        return 0
    with tempfile.TemporaryDirectory(prefix="barnabas-logins-") as folder:
        return 0 if asyncio.run(measure(Path(folder), options.rate, options.seconds, tls=options.tls)) else 1


if __name__ == "__main__":
    sys.exit(main())
