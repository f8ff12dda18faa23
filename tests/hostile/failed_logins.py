"""Failed logins by the thousand beside honest clients of a secure cluster: what they cost the honest ones.

`PYTHONPATH=tests .venv/bin/python -m hostile.failed_logins --rate 1000 --seconds 15 --rounds 3 [--tls]`

The honest clients: a producer with acks=all, whose acknowledgements are timed, and newcomers that log in with the right password.
They come from the address of the attackers, which is the worst case for them: delays and places in line go by address. Without
--tls, the listener is SASL_PLAINTEXT: then the logins cost the brokers most, and not the handshakes. Attackers do not wait for
answers, which brokers delay.

Attackers share the processors with brokers and honest clients here, which they would not do elsewhere. Each round has a control
for this: the same attackers at the same rate, in plain text, at a process that reads a message and closes the connection. What
the attack costs more than the control is the cost of the brokers' own work.
"""

import argparse
import asyncio
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
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
    print(storm.counts["sent"] / seconds, time.process_time() / seconds, flush=True)


@dataclass(slots=True)
class Phase:
    """What honest clients saw, and what the brokers used, in all rounds."""

    acknowledged: Times = field(default_factory=Times)
    logins: Times = field(default_factory=Times)
    seconds: float = 0.0
    failed: int = 0
    attempts: int = 0  # of the attackers
    loops: Processor = field(default_factory=Processor)  # of all brokers
    processes_s: float = 0.0  # of all brokers, with their other threads
    attackers_s: float = 0.0

    def add(self, acknowledged: Times, logins: Times, failed: int) -> None:
        self.acknowledged.values += acknowledged.values
        self.logins.values += logins.values
        self.failed += failed

    def __str__(self) -> str:
        used = f"loops {self.loops.busy_s / self.seconds:.0%} busy, {self.loops.starved_s / self.seconds:.0%} without a processor"
        return f"produce {self.acknowledged}; logins {self.logins}; {self.failed} failed; {used}"


PHASES = ("before", "control", "attack", "after")


async def measure(folder: Path, rate: int, seconds: float, rounds: int, *, tls: bool) -> bool:
    """Print a line for each phase. Was every honest client served?"""
    overrides = {**SESSION, **MECHANISMS_OF_BROKERS, **({} if tls else IN_PLAIN_TEXT)}
    phases = {name: Phase() for name in PHASES}
    with Cluster(folder / "c", 3, overrides=overrides, secure=True) as cluster:
        await cluster.ready()
        options = SecurityOptions(**cluster.login)
        if not tls:
            options["security_protocol"] = "SASL_PLAINTEXT"
            del options["ssl_cafile"]
        async with cluster.admin() as admin:
            await admin.create_topic(TOPIC, partitions=3, replication_factor=3, configs={"min.insync.replicas": "2"})
        for number in range(rounds):
            for name in PHASES if number == 0 else PHASES[1:]:
                await _phase(name, phases[name], cluster, options, rate=rate, seconds=seconds, tls=tls)
                print(f"{name:<7} {phases[name]}", flush=True)
    _summarize(phases)
    return all(not phase.failed and phase.acknowledged.values for phase in phases.values())


async def _phase(
    name: str, phase: Phase, cluster: Cluster, options: SecurityOptions, *, rate: int, seconds: float, tls: bool
) -> None:
    pids = [node.process.pid for node in cluster.nodes]
    command = ["--rate", str(rate), "--seconds", str(seconds + SETTLED_S)]
    attacker = None
    with closing_ports(3) as ports:
        if name == "control":
            attacker = await _start("--attack", ports, *command)
        elif name == "attack":
            attacker = await _start("--attack", cluster.logins, *command, *(["--tls"] if tls else []))
        await asyncio.sleep(SETTLED_S / 2)
        loops, processes_s = [Processor.of_loop(pid) for pid in pids], sum(map(_used_s, pids))
        phase.add(*await _honest(cluster.logins, options, seconds))
        for pid, before in zip(pids, loops, strict=True):
            used = Processor.of_loop(pid).since(before)
            phase.loops = Processor(
                busy_s=phase.loops.busy_s + used.busy_s, starved_s=phase.loops.starved_s + used.starved_s
            )
        phase.processes_s += sum(map(_used_s, pids)) - processes_s
        phase.seconds += seconds
        if attacker is not None:
            sent_per_s, used_share = map(float, (await attacker.communicate())[0].split())
            phase.attempts += round(sent_per_s * seconds)
            phase.attackers_s += used_share * seconds


def _summarize(phases: dict[str, Phase]) -> None:
    before, control, attack = (phases[name] for name in PHASES[:3])
    p99 = {name: phase.acknowledged.quantile_ms(0.99) for name, phase in phases.items()}
    print(
        f"p99 of attack: {p99['attack'] / p99['control']:.1f} times control, {p99['attack'] / p99['before']:.1f} times before"
    )

    def each_us(in_attack_s: float, in_quiet_s: float) -> float:
        more_s = in_attack_s - in_quiet_s / before.seconds * attack.seconds
        return 1e6 * more_s / max(1, attack.attempts)

    loops_us = each_us(attack.loops.busy_s, before.loops.busy_s)
    brokers_us = each_us(attack.processes_s, before.processes_s)
    print(
        f"{attack.attempts / attack.seconds:.0f} attempts/s ({control.attempts / control.seconds:.0f} in control); "
        f"processor time for each: {loops_us:.0f} us of a loop, {brokers_us:.0f} us of a broker; attackers use "
        f"{attack.attackers_s / attack.seconds:.0%} of a processor ({control.attackers_s / control.seconds:.0%} in control)"
    )


def _used_s(pid: int) -> float:
    """The processor time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def closing_ports(count: int) -> Iterator[str]:
    """Ports of a process of its own, which reads a message of each connection and closes it."""
    command = [sys.executable, "-m", "hostile.failed_logins", "--close", str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def _close(count: int) -> None:
    def serve(listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4_096)

    listeners = [socket.create_server(("127.0.0.1", 0), backlog=512) for _ in range(count)]
    for listener in listeners:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
    print(",".join(f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners), flush=True)
    signal.pause()


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
    parser.add_argument("--rounds", type=int, default=2, help="of control and attack")
    parser.add_argument("--tls", action="store_true", help="logins over TLS")
    parser.add_argument("--attack", metavar="HOST:PORT,...", help=argparse.SUPPRESS)
    parser.add_argument("--close", metavar="PORTS", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.close:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _close(options.close)
    if options.attack:
        os.nice(NICENESS)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        brokers = [(host, int(port)) for host, _, port in (one.rpartition(":") for one in options.attack.split(","))]
        asyncio.run(_attack(brokers, options.rate, options.seconds, context if options.tls else None))
        return 0
    with tempfile.TemporaryDirectory(prefix="barnabas-logins-") as folder:
        return (
            0
            if asyncio.run(measure(Path(folder), options.rate, options.seconds, options.rounds, tls=options.tls))
            else 1
        )


if __name__ == "__main__":
    sys.exit(main())
