"""`barnabas up` and `barnabas down`: a local cluster, monitored in the foreground.

Brokers are started before heavy imports, so that this process imports its client while the brokers start.
"""

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.net.base.local import local_cluster
from barnabas.net.base.local.local_cluster import Broker, ClusterError, Plan
from barnabas.net.base.local.secure_layout import CLIENT_PROPERTIES

from ..frame.command import Verb, key_value, number_from
from ..frame.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    import asyncio

    from barnabas.net.client.connection.security import SecurityOptions

READY_POLL_S: Final = 0.02
Probe = Callable[[Sequence[Broker]], Awaitable[bool]]


def _up_arguments(parser: ArgumentParser) -> None:
    _folder_argument(parser)
    parser.add_argument(
        "-n", "--brokers", type=number_from(1), default=3, metavar="N", help="number of brokers; default: 3"
    )
    parser.add_argument(
        "--port", type=number_from(0), default=9092, help="port of the first broker; 0: free ports; default: 9092"
    )
    parser.add_argument(
        "--voters", type=number_from(1), metavar="N", help="number of voters; default: all brokers, at most 3"
    )
    parser.add_argument(
        "--machines",
        type=number_from(1),
        metavar="N",
        help="spread the brokers over N machine names (broker.machine): two replicas of a partition never share one",
    )
    parser.add_argument(
        "--secure",
        action="store_true",
        help="encrypt every connection, demand logins and permissions of clients, and make the user admin",
    )
    parser.add_argument("--override", type=key_value, action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--detach", action="store_true", help="leave the brokers running; stop them with `down`")


def _folder_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path(local_cluster.DEFAULT_FOLDER),
        metavar="D",
        help=f"folder of the cluster's data and logs; default: ./{local_cluster.DEFAULT_FOLDER}",
    )


def _up(arguments: Namespace) -> int:
    started_s = time.monotonic()
    plan = Plan(
        folder=arguments.dir,
        broker_count=arguments.brokers,
        base_port=arguments.port,
        voter_count=arguments.voters,
        machine_count=arguments.machines,
        overrides=dict(arguments.override),
        die_with_parent=not arguments.detach,
        secure=arguments.secure,
    )
    if plan.secure or local_cluster.is_secure(plan.folder):
        from barnabas.net.client.arrow.extra import require

        require("cryptography", extra="security", feature="a secure cluster")
    brokers = local_cluster.start(plan)
    keep = False
    try:
        import asyncio
        import os

        if not arguments.detach:
            local_cluster.write_pid_file(plan.folder / "up.pid", os.getpid())
        watch = Watch(brokers, probe_cluster, started_s=started_s, timeout_s=arguments.timeout)
        code = asyncio.run(watch.until_ready() if arguments.detach else watch.until_stopped())
        keep = arguments.detach and code == ExitCode.OK
        return code
    finally:
        if not keep:
            local_cluster.stop_added(plan.folder, brokers)
            local_cluster.stop(brokers)
            (plan.folder / "up.pid").unlink(missing_ok=True)


class Watch:
    """Waits until the cluster is ready, then until it is stopped; reports brokers that die meanwhile."""

    def __init__(self, brokers: Sequence[Broker], probe: Probe, *, started_s: float, timeout_s: float) -> None:
        self._brokers = brokers
        self._probe = probe
        self._started_s = started_s
        self._timeout_s = timeout_s
        self._dead: set[int] = set()

    async def until_ready(self) -> int:
        """Print the line that begins with "ready". If a broker dies before that, the start fails."""
        import asyncio

        try:
            async with asyncio.timeout(self._timeout_s):
                while not await self._probe(self._brokers):
                    if self._report_deaths():
                        raise CommandError("the cluster did not start; see the broker logs above for the reason")
                    await asyncio.sleep(READY_POLL_S)
        except TimeoutError:
            raise CommandError(
                f"the brokers run but the cluster was not ready within {self._timeout_s:g} s; see {self._logs()}",
                ExitCode.UNREACHABLE,
            ) from None
        addresses = ",".join(broker.address for broker in self._brokers)
        took_s = time.monotonic() - self._started_s
        print(f"ready {addresses} in {took_s:.2f} s, logs in {self._logs()}", flush=True)
        folder = self._brokers[0].folder.parent
        if local_cluster.is_secure(folder):
            print(f"secure: clients need what {folder / CLIENT_PROPERTIES} says", flush=True)
        return ExitCode.OK

    async def until_stopped(self) -> int:
        """Run in the foreground: return on a signal, or when no broker is left."""
        import asyncio
        import signal

        loop = asyncio.get_running_loop()
        stop, changed = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGCHLD, changed.set)
        starting = asyncio.create_task(self.until_ready())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                return await self._while_running(stopping, changed)
            return ExitCode.OK
        finally:
            starting.cancel()
            stopping.cancel()
            await asyncio.gather(starting, stopping, return_exceptions=True)

    async def _while_running(self, stopping: "asyncio.Task[bool]", changed: "asyncio.Event") -> int:
        import asyncio

        while not stopping.done():
            self._report_deaths()
            # Brokers that an operator restarted are not children of this process, but they belong to the cluster.
            if len(self._dead) == len(self._brokers) and not local_cluster.any_runs(self._brokers[0].folder.parent):
                raise CommandError("no broker of the cluster runs any more")
            change = asyncio.create_task(changed.wait())
            await asyncio.wait({stopping, change}, return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
            changed.clear()
        print("stopping", file=sys.stderr, flush=True)
        return ExitCode.OK

    def _report_deaths(self) -> bool:
        """Report each broker that died once, with the end of its log."""
        for broker in self._brokers:
            code = broker.process.poll()
            if code is None or broker.node_id in self._dead:
                continue
            self._dead.add(broker.node_id)
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            print(
                f"barnabas: broker {broker.node_id} {how}; {broker.folder / 'broker.log'} ends with:", file=sys.stderr
            )
            print("".join(f"    {line}\n" for line in local_cluster.last_lines(broker)), file=sys.stderr, flush=True)
        return bool(self._dead)

    def _logs(self) -> str:
        return str(self._brokers[0].folder.parent / "*" / "broker.log")


async def probe_cluster(brokers: Sequence[Broker]) -> bool:
    """Is the cluster ready for acks=all? All brokers are registered and unfenced, and the quorum has a leader."""
    from barnabas.log.vocabulary.errors import BarnabasError

    from ..frame.connector import Connector

    if not all(_listens(broker) for broker in brokers):
        return False
    try:
        async with Connector(_security(brokers[0].folder.parent)).admin(brokers[0].address) as admin:
            cluster = await admin.describe_cluster()
    except (BarnabasError, OSError):
        return False  # not yet: the caller asks again, and applies its own timeout
    active = {item.node_id for item in cluster.brokers if not item.fenced}
    return cluster.controller_id >= 0 and active >= {broker.node_id for broker in brokers}


def _security(folder: Path) -> "SecurityOptions":
    if not local_cluster.is_secure(folder):
        return {}
    from ..frame.client_file import read_client_file

    return read_client_file(folder / CLIENT_PROPERTIES).security


def _listens(broker: Broker) -> bool:
    """Cheaper than a refused client connection, and without the client's pauses between attempts."""
    from barnabas.net.base.settings.endpoints import read_endpoints

    found = read_endpoints(str(broker.folder / "data"))
    return found is not None and found.pid == broker.process.pid


def _down(arguments: Namespace) -> int:
    if not arguments.dir.is_dir():
        raise ClusterError(f"{arguments.dir} does not exist; name the cluster's folder with --dir")
    stopped = local_cluster.stop_folder(arguments.dir)
    print(f"stopped {len(stopped)} processes" if stopped else f"nothing runs from {arguments.dir}", file=sys.stderr)
    return ExitCode.OK


VERBS = {
    "up": Verb(name="up", summary="start a local cluster", arguments=_up_arguments, serve=_up),
    "down": Verb(name="down", summary="stop a local cluster", arguments=_folder_argument, serve=_down),
}
