"""`barnabas broker ...`: run one broker in the foreground, and operate on running brokers."""

import gc
import importlib
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ..frame.command import Context, Verb, key_value, number_from
from ..frame.data_folders import show_folders
from ..frame.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:  # `broker start` must not import the client's modules
    from barnabas.net.client.admin.admin import Admin


def _start_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="server.properties, with Kafka's keys")
    parser.add_argument("--override", type=key_value, action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--check", action="store_true", help="read the configuration, print it and stop")


def _start(arguments: Namespace) -> int:
    """Run a broker until it receives a stop signal. This process imports nothing that a broker does not need."""
    from barnabas.log.settings.without_effect import BROKER_KEYS_WITHOUT_EFFECT
    from barnabas.net.base.local import local_cluster
    from barnabas.net.base.settings import config as configuration

    config = configuration.load(arguments.config, dict(arguments.override), os.environ)
    for key in config.ignored:
        print(f"barnabas: {key} has no effect: {BROKER_KEYS_WITHOUT_EFFECT[key].no_effect}", file=sys.stderr)
    if arguments.check:
        for key in sorted(config.sources):
            print(f"{key}={config.text(key)}")
        return ExitCode.OK
    # By name: the broker is the composition root above all others, and help must not import it.
    with local_cluster.own_pid_file(arguments.config, config.node_id) as mark_decommissioned:
        return int(load_uncollected("barnabas.net.broker.broker_process").run(config, mark_decommissioned))


def load_uncollected(module: str) -> ModuleType:
    """Import a module without collections of cyclic garbage: what modules make stays, and each collection walks all of it."""
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        gc.enable()


def _node_argument(parser: ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", type=number_from(0), help="the broker's node id")


@asynccontextmanager
async def _telling_which_exist(admin: "Admin", node: int) -> AsyncIterator[None]:
    """An unreachable broker may be down; a broker that the cluster does not know will never answer."""
    from barnabas.log.vocabulary.errors import BrokerNotAvailableError

    try:
        yield
    except BrokerNotAvailableError:
        known = sorted(broker.node_id for broker in (await admin.describe_cluster()).brokers)
        if node not in known:
            raise CommandError(f"there is no broker {node}; the brokers are {', '.join(map(str, known))}") from None
        raise


async def _drain(context: Context) -> int:
    """A controlled shutdown: the broker hands over its leaderships first."""
    node = context.arguments.node
    async with context.connector.admin(context.bootstrap) as admin, _telling_which_exist(admin, node):
        await admin.shut_down_broker(node)
    context.out.line(f"broker {node} hands over its partitions and stops", {"broker": node, "draining": True})
    return ExitCode.OK


def _bring_back_arguments(parser: ArgumentParser) -> None:
    _node_argument(parser)
    parser.add_argument("--folder", metavar="PATH", required=True, help="the data folder, as `broker storage` shows it")


async def _storage(context: Context) -> int:
    """Exit code 3 if a folder is offline or has a problem."""
    node = context.arguments.node
    async with context.connector.admin(context.bootstrap) as admin, _telling_which_exist(admin, node):
        found = await admin.describe_storage(node)
    show_folders(context.out, found)
    is_well = all(folder.state == "online" and not folder.offline_partitions for folder in found.folders)
    return ExitCode.OK if is_well else ExitCode.UNHEALTHY


async def _bring_back(context: Context) -> int:
    """After a disk repair or replacement: the broker recovers flushed data and fetches the rest from the leaders."""
    node, folder = context.arguments.node, context.arguments.folder
    async with context.connector.admin(context.bootstrap) as admin, _telling_which_exist(admin, node):
        found = await admin.bring_back_folder(node, folder)
    show_folders(context.out, found)
    return ExitCode.OK


def _throttle(text: str) -> int:
    from .partitions import bytes_per_second

    return bytes_per_second(text)


_THROTTLE_HELP = "copy limit of each broker in bytes per second, such as 10MB or 500K, until all moves have ended"


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, metavar="D", help="the folder of a cluster that `barnabas up` runs")
    parser.add_argument("--node", type=number_from(0), metavar="NODE", help="a broker that is already running")
    parser.add_argument("--override", type=key_value, action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rebalance", action="store_true", help="move a fair share of replicas to the new broker")
    parser.add_argument("--throttle", type=_throttle, default=0, metavar="RATE", help=_THROTTLE_HELP)


async def _add(context: Context) -> int:
    from . import membership

    return await membership.add(context)


def _decommission_arguments(parser: ArgumentParser) -> None:
    _node_argument(parser)
    parser.add_argument(
        "--cancel",
        action="store_true",
        help="cancel the decommission; replicas that have already moved stay where they are",
    )
    parser.add_argument(
        "--no-wait", action="store_true", help="start the decommission only; run the command again to finish it"
    )
    parser.add_argument("--throttle", type=_throttle, default=0, metavar="RATE", help=_THROTTLE_HELP)


async def _decommission(context: Context) -> int:
    from . import membership

    return await membership.decommission(context)


VERBS = (
    Verb(name="start", summary="run a broker in the foreground", arguments=_start_arguments, serve=_start),
    Verb(
        name="add", summary="add a broker to this cluster, or show how", arguments=_add_arguments, run=_add, timed=False
    ),
    Verb(name="drain", summary="hand over leaderships and stop the broker", arguments=_node_argument, run=_drain),
    Verb(name="storage", summary="data folders of a broker and their problems", arguments=_node_argument, run=_storage),
    Verb(
        name="bring-back",
        summary="use a data folder again after a disk repair",
        arguments=_bring_back_arguments,
        run=_bring_back,
    ),
    Verb(
        name="decommission",
        summary="empty a broker, stop it and remove it from the cluster",
        arguments=_decommission_arguments,
        run=_decommission,
        timed=False,
    ),
)
