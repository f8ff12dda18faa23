"""`barnabas partition ...`: which brokers hold a partition, and which of them leads."""

from argparse import ArgumentParser

from .command import Context, Verb
from .exit_codes import CommandError, ExitCode


def _partition_argument(parser: ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="the topic")
    parser.add_argument("partition", metavar="PARTITION", type=int, help="the partition")


def _move_arguments(parser: ArgumentParser) -> None:
    _partition_argument(parser)
    parser.add_argument("--replicas", required=True, metavar="N,N,...", help="brokers, the preferred leader first")


async def _move(context: Context) -> int:
    wanted = context.arguments
    try:
        replicas = [int(item) for item in wanted.replicas.split(",")]
    except ValueError:
        raise CommandError(f"--replicas {wanted.replicas}: give node ids, 1,2,3", ExitCode.USAGE) from None
    async with context.connector.admin(context.bootstrap) as admin:
        await admin.assign_replicas(wanted.topic, wanted.partition, replicas)
    context.out.line(
        f"{wanted.topic}-{wanted.partition} moves to {wanted.replicas}; `topic describe` shows how far it is",
        {"topic": wanted.topic, "partition": wanted.partition, "replicas": replicas},
    )
    return ExitCode.OK


def _transfer_arguments(parser: ArgumentParser) -> None:
    _partition_argument(parser)
    parser.add_argument("--to", type=int, metavar="N", help="the broker; default: the preferred leader")


async def _transfer(context: Context) -> int:
    wanted = context.arguments
    async with context.connector.admin(context.bootstrap) as admin:
        await admin.elect_leader(wanted.topic, wanted.partition, wanted.to)
        partitions = (await admin.describe_topic(wanted.topic)).partitions
    leader = partitions[wanted.partition].leader
    context.out.line(
        f"{wanted.topic}-{wanted.partition} is led by broker {leader}",
        {"topic": wanted.topic, "partition": wanted.partition, "leader": leader},
    )
    return ExitCode.OK


VERBS = (
    Verb(name="move", summary="put a partition on other brokers", arguments=_move_arguments, run=_move),
    Verb(name="transfer-leadership", summary="make another replica lead", arguments=_transfer_arguments, run=_transfer),
)
