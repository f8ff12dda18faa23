"""`barnabas broker add` and `decommission`: grow and shrink a running cluster.

The cluster does the work. These commands start it, show its progress, and do the last steps. An interrupted command can
simply be run again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.base.local import local_cluster
from barnabas.net.wire.protocol.responses import ClusterBroker

from ..frame.command import Context
from ..frame.exit_codes import CommandError, ExitCode
from .partitions import POLL_S, Progress, until_moved

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.admin.admin import Admin

JOIN_POLL_S: Final = 0.05


async def add(context: Context) -> int:
    wanted = context.arguments
    if wanted.dir is not None and wanted.node is not None:
        raise CommandError("--node does not go with --dir: a new broker there gets the next free id", ExitCode.USAGE)
    if wanted.dir is not None:
        return await _add_local(context)
    async with context.connector.admin(context.bootstrap) as admin:
        if wanted.node is None:
            return await _tell_how(context, admin)
        await _until(lambda: _is_active(admin, wanted.node), wanted.timeout, f"broker {wanted.node} did not join")
        return await _fill(context, admin, wanted.node, "")


async def _add_local(context: Context) -> int:
    """Start one more broker process of a `barnabas up` cluster."""
    wanted = context.arguments
    broker = local_cluster.add(wanted.dir, dict(wanted.override))

    async def is_active() -> bool:
        if broker.process.poll() is not None:
            told = " ".join(local_cluster.last_lines(broker)[-1:])
            local_cluster.discard(broker)
            raise CommandError(f"broker {broker.node_id} ended: {told}")
        async with context.connector.admin(broker.address) as admin:
            return await _is_active(admin, broker.node_id)

    await _until(is_active, wanted.timeout, f"broker {broker.node_id} did not join; see {broker.folder}/broker.log")
    async with context.connector.admin(broker.address) as admin:
        return await _fill(context, admin, broker.node_id, broker.address)


async def _fill(context: Context, admin: "Admin", node_id: int, address: str) -> int:
    moves = 0
    if context.arguments.rebalance:
        moves = await admin.fill_broker(node_id, throttle_bytes_per_s=context.arguments.throttle)
        await until_moved(context, admin, lambda move: node_id in move.adding)
    filled = f", {moves} partitions have moved to it" if context.arguments.rebalance else ""
    context.out.line(
        f"broker {node_id} takes part{' at ' + address if address else ''}{filled}",
        {"broker": node_id, "address": address or None, "moves": moves},
    )
    return ExitCode.OK


async def _tell_how(context: Context, admin: "Admin") -> int:
    cluster, quorum = await admin.describe_cluster(), await admin.describe_quorum()
    node = max((broker.node_id for broker in cluster.brokers), default=-1) + 1
    addresses = {broker.node_id: broker.host for broker in cluster.brokers}
    voters = ", ".join(f"{voter} on {addresses.get(voter, 'an unknown host')}" for voter in quorum.voters)
    context.out.line(
        f"A broker joins when it starts. On the new machine: node.id={node}, log.dirs, listeners, and the same\n"
        f"controller.quorum.voters as the running brokers ({voters}); then\n"
        f"barnabas broker start --config server.properties; and to move its share of the replicas to it\n"
        f"barnabas broker add --node {node} --rebalance\n"
        f"With `barnabas up --dir D`, one command does all of this: barnabas broker add --dir D --rebalance",
        {"node_id": node, "voters": quorum.voters},
    )
    return ExitCode.OK


async def decommission(context: Context) -> int:
    wanted = context.arguments
    node: int = wanted.node
    async with context.connector.admin(context.bootstrap) as admin:
        await admin.decommission_broker(node, cancel=wanted.cancel, throttle_bytes_per_s=wanted.throttle)
        if wanted.cancel or wanted.no_wait:
            text = f"broker {node} stays" if wanted.cancel else f"broker {node} is being emptied"
            context.out.line(text, {"broker": node, "decommissioning": not wanted.cancel})
            return ExitCode.OK
        await _until_empty(context, admin, node)
        await _leave(admin, node, wanted.timeout)
    context.out.line(f"broker {node} has left the cluster", {"broker": node, "left": True})
    return ExitCode.OK


async def _until_empty(context: Context, admin: "Admin", node: int) -> None:
    progress = Progress()
    while True:
        broker = await _find(admin, node)
        if broker is None or (broker.replica_count == 0 and broker.slot_count == 0):
            return
        if not broker.decommissioning:
            raise CommandError(f"the decommission of broker {node} was cancelled; run this command again to restart it")
        moves = [move for move in (await admin.describe_moves()).moves if node in move.removing]
        left = f"broker {node} holds {broker.replica_count} replicas and {broker.slot_count} group slots; "
        context.out.note(left + progress.sentence(moves, asyncio.get_running_loop().time()))
        await asyncio.sleep(POLL_S)


async def _leave(admin: "Admin", node: int, timeout_s: float) -> None:
    """Shut down the broker if it still runs, then unregister it from the cluster."""
    broker = await _find(admin, node)
    if broker is None:
        return
    if not broker.fenced:
        await admin.shut_down_broker(node)

    async def has_stopped() -> bool:
        found = await _find(admin, node)
        return found is None or found.fenced

    await _until(
        has_stopped, timeout_s, f"broker {node} is empty but does not stop; stop its process, then run this again"
    )
    await admin.unregister_broker(node)


async def _find(admin: "Admin", node: int) -> ClusterBroker | None:
    return next((broker for broker in (await admin.describe_cluster()).brokers if broker.node_id == node), None)


async def _is_active(admin: "Admin", node: int) -> bool:
    broker = await _find(admin, node)
    return broker is not None and not broker.fenced


async def _until(condition: Callable[[], Awaitable[bool]], timeout_s: float, otherwise: str) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                if await _holds(condition):
                    return
                await asyncio.sleep(JOIN_POLL_S)
    except TimeoutError:
        raise CommandError(f"{otherwise} (waited {timeout_s:g} s)", ExitCode.UNREACHABLE) from None


async def _holds(condition: Callable[[], Awaitable[bool]]) -> bool:
    """A broker that is starting or stopping refuses or closes the connection; that counts as "not yet"."""
    try:
        return await condition()
    except (BarnabasError, OSError) as error:
        if isinstance(error, BarnabasError) and not error.retriable:
            raise
        return False
