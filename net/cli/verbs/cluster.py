"""`barnabas cluster ...`: health, brokers and quorum."""

import asyncio
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Final

from barnabas.net.wire.protocol.doubt import doubt_of
from barnabas.net.wire.protocol.responses import (
    ClusterBroker,
    DescribeQuorumResponse,
)

from ...client.admin.cluster_health import ClusterHealth, cluster_health, ignored_settings
from ..frame.command import Context, Verb, key_value, no_arguments, number_from
from ..frame.confirmation import exit_code_in, shown_doubt
from ..frame.exit_codes import CommandError, ExitCode
from ..frame.reachability import address_causes
from ..streams import backup, events
from .recover import recover, recover_arguments

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.admin.admin import Admin

BROKER_RESOURCE: Final = 4  # Kafka's resource type of broker configurations
ALL_BROKERS: Final = ""  # the resource name of the defaults for all brokers
WATCH_INTERVAL_S: Final = 0.5


def _health_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-w", "--wait", action="store_true", help="wait until the cluster is healthy, at most --timeout"
    )


async def _health(context: Context) -> int:
    """Print every problem; exit code 3 if there is one."""
    timeout_s: float = context.arguments.timeout
    causes: list[str] = []
    try:
        async with asyncio.timeout(timeout_s):
            return await _healthy(context, causes)
    except TimeoutError:
        if not causes:
            raise
    raise CommandError(
        f"waited {timeout_s:g} s for a healthy cluster: {'; '.join(causes)}; raise the limit with --timeout SECONDS",
        ExitCode.UNREACHABLE,
    )


async def _healthy(context: Context, causes: list[str]) -> int:
    """`causes` holds the result of the last check, also for a caller whose timeout has passed."""
    async with context.connector.admin(context.bootstrap) as admin:
        health = await _checked(context, admin, causes)
        while causes and context.arguments.wait:
            await asyncio.sleep(WATCH_INTERVAL_S)
            health = await _checked(context, admin, causes)
    # Lost records stay lost, so they are always reported. The exit code covers only problems that exist now.
    told = {"unclean_elections": list(health.unclean_elections)} if health.unclean_elections else {}
    told |= {"ignored_settings": list(health.ignored_settings)} if health.ignored_settings else {}
    if context.out.is_json:
        context.out.record({"healthy": not causes, "causes": causes, **told})
        return ExitCode.UNHEALTHY if causes else ExitCode.OK
    context.out.record({"healthy": not causes, **told})
    for cause in causes:
        context.out.text(f"cause: {cause}")
    return ExitCode.UNHEALTHY if causes else ExitCode.OK


async def _checked(context: Context, admin: "Admin", causes: list[str]) -> ClusterHealth:
    """Put into `causes` what the cluster knows and which addresses cannot be reached from here."""
    health = await cluster_health(admin)
    causes[:] = [*health.causes, *await address_causes(context.connector, await admin.describe_cluster())]
    return health


async def _describe(context: Context) -> int:
    async with context.connector.admin(context.bootstrap) as admin:
        cluster, quorum = await admin.describe_cluster(), await admin.describe_quorum()
    doubt = doubt_of(quorum)
    brokers = [
        {
            "broker": broker.node_id,
            "address": f"{broker.host}:{broker.port}",
            "admin": f"{broker.admin_host}:{broker.admin_port}" if broker.admin_port >= 0 else None,
            "rack": broker.rack,
            "machine": broker.machine,
            "state": _state(broker, quorum),
            "replicas": broker.replica_count,
            "controller": broker.node_id == cluster.controller_id,
            "ignored_settings": {item.key: item.of_file for item in broker.ignored_settings},
        }
        for broker in sorted(cluster.brokers, key=lambda broker: broker.node_id)
    ]
    summary = {"cluster": cluster.cluster_id, "controller": cluster.controller_id, "metadata_offset": cluster.offset}
    if context.out.is_json:
        context.out.record({**summary, "unconfirmed": doubt, "settings": cluster.settings, "brokers": brokers})
        return exit_code_in(doubt)
    settings = [f"{key}={value}" for key, value in cluster.settings.items()]
    ignored = ignored_settings(cluster)
    told = {"ignored_settings": ignored} if ignored else {}
    context.out.record({**summary, **shown_doubt(doubt), "settings": settings, **told})
    context.out.text()
    context.out.rows(brokers, ("broker", "address", "admin", "rack", "machine", "state", "replicas"))
    return exit_code_in(doubt)


def _alter_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("-c", "--config", type=key_value, action="append", default=[], metavar="KEY=VALUE")


async def _alter(context: Context) -> int:
    """Change the configuration of all brokers: settings with one value for the cluster, and throttles."""
    changes: dict[str, str | None] = dict(context.arguments.config)
    if not changes:
        raise CommandError("nothing to alter; give -c KEY=VALUE", ExitCode.USAGE)
    async with context.connector.admin(context.bootstrap) as admin:
        await admin.alter_config(ALL_BROKERS, changes, resource_type=BROKER_RESOURCE)
    context.out.line("altered the cluster", {"changes": changes})
    return ExitCode.OK


def _state(broker: ClusterBroker, quorum: DescribeQuorumResponse) -> str:
    """The broker's state from the metadata, unless that is not confirmed and the broker does not answer."""
    if broker.node_id in quorum.unreachable_voters:
        return "unreachable"
    if broker.fenced:
        return "fenced"
    if broker.in_controlled_shutdown:
        return "stopping"
    return "leaving" if broker.decommissioning else "active"


async def _quorum(context: Context) -> int:
    """Show leader and voters. If there is a leader, also show each voter's log end and a change in progress."""
    async with context.connector.admin(context.bootstrap) as admin:
        quorum = await admin.describe_quorum()
    summary = {
        "leader": quorum.leader_id if quorum.leader_id >= 0 else None,
        "term": quorum.term,
        "committed_index": quorum.committed_index,
        "voters": quorum.voters,
        "observers": quorum.observers,
        "change": quorum.change or None,
    }
    doubt = doubt_of(quorum)
    if context.out.is_json:
        context.out.record({**summary, "unconfirmed": doubt, "peers": _peers(quorum)})
    else:
        context.out.record({**summary, **shown_doubt(doubt)})
        if quorum.peers:
            context.out.text()
            context.out.rows(_peers(quorum), PEER_COLUMNS)
    return ExitCode.OK if quorum.leader_id >= 0 and doubt is None else ExitCode.UNHEALTHY


PEER_COLUMNS: Final = ("node", "role", "address", "live", "lag_entries")


def _peers(quorum: DescribeQuorumResponse) -> list[dict[str, object]]:
    return [
        {
            "node": peer.node_id,
            "role": "leader" if peer.node_id == quorum.leader_id else "voter" if peer.is_voter else "learner",
            "address": f"{peer.host}:{peer.port}",
            "live": peer.is_live,
            "lag_entries": peer.lag_entries if peer.lag_entries >= 0 else None,
        }
        for peer in quorum.peers
    ]


def _voters_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("change", choices=("list", "describe", "add", "remove"))
    parser.add_argument("node", type=number_from(0), nargs="?", metavar="NODE", help="the node id of a broker")


async def _voters(context: Context) -> int:
    """Change one voter at a time, online. To replace a lost machine: remove the dead voter, then add the new broker."""
    change, node = context.arguments.change, context.arguments.node
    if change in ("add", "remove") and node is None:
        raise CommandError(f"`cluster voters {change}` needs the node id of a broker", ExitCode.USAGE)
    if change == "list" and node is not None:
        raise CommandError(f"`cluster voters list` takes no node id; give `describe {node}`", ExitCode.USAGE)
    async with context.connector.admin(context.bootstrap) as admin:
        if change == "add":
            state = await admin.add_voter(node)
        elif change == "remove":
            state = await admin.remove_voter(node)
        else:
            quorum = await admin.describe_quorum()
            if quorum.leader_id < 0:  # Only the leader knows all voters and their log ends.
                raise CommandError("the quorum has no leader: most of its voters must be up", ExitCode.UNHEALTHY)
            context.out.rows([peer for peer in _peers(quorum) if node in (None, peer["node"])], PEER_COLUMNS)
            return ExitCode.OK
    done = "added to" if change == "add" else "removed from"
    context.out.line(f"node {node} is {done} the voters; {state}", {"node": node, "change": change, "state": state})
    return ExitCode.OK


VERBS = (
    Verb(
        name="health",
        summary="list problems; exit code 3 if there is one",
        arguments=_health_arguments,
        run=_health,
        timed=False,  # it applies --timeout itself, to report what it waited for
    ),
    Verb(name="describe", summary="list the brokers", arguments=no_arguments, run=_describe),
    Verb(
        name="events",
        summary="what has happened: elections, ISRs, topics, brokers, logins; --follow",
        arguments=events.arguments,
        run=events.events,
        timed=False,  # --follow has no end
    ),
    Verb(name="alter", summary="change settings of the cluster", arguments=_alter_arguments, run=_alter),
    Verb(name="quorum", summary="leader and voters of the quorum", arguments=no_arguments, run=_quorum),
    Verb(
        name="recover",
        summary="make one voter's folder the whole quorum; loses metadata",
        arguments=recover_arguments,
        serve=recover,
    ),
    *backup.VERBS,
    Verb(name="voters", summary="list, add or remove voters", arguments=_voters_arguments, run=_voters),
)
