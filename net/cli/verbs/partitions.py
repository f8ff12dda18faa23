"""`barnabas partition ...`: the replicas of a partition, and its leader."""

import asyncio
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from barnabas.log.vocabulary.errors import UnknownTopicOrPartitionError
from barnabas.net.wire.protocol.responses import DescribeMovesResponse, PartitionMove

from ..frame.command import Context, Verb, no_arguments, number_from
from ..frame.exit_codes import CommandError, ExitCode
from ..frame.output import Row
from ..streams.consume import chosen_partitions

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.admin.admin import Admin

POLL_S: Final = 0.5
ETA_SAMPLE_S: Final = 1.0  # time between the two samples of a rate
_UNITS: Final = {"": 1, "K": 1_000, "M": 1_000_000, "G": 1_000_000_000}
_COLUMNS: Final = ("partition", "leader", "replicas", "adding", "removing", "records_left", "bytes_left", "eta_s")


def _partition_argument(parser: ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="the topic")
    parser.add_argument("partition", metavar="PARTITION", type=number_from(0), help="the partition")


@asynccontextmanager
async def _telling_which_exist(admin: "Admin", topic: str, partition: int) -> AsyncIterator[None]:
    """Call this only after a refusal: the broker that describes a topic may lag the controller."""
    try:
        yield
    except UnknownTopicOrPartitionError:
        chosen_partitions(await admin.describe_topic(topic), [partition])
        raise


def throttle_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--throttle",
        type=bytes_per_second,
        default=0,
        metavar="RATE",
        help="copy limit of each broker in bytes per second, such as 10MB or 500K, until all moves have ended",
    )


def bytes_per_second(text: str) -> int:
    """The argparse type of --throttle: 10MB, 500K, 1000000."""
    plain = text.strip().upper().removesuffix("/S").removesuffix("B")
    unit = plain[-1:] if plain[-1:] in ("K", "M", "G") else ""
    number = plain.removesuffix(unit)
    if not number.isdecimal() or int(number) == 0:
        raise ArgumentTypeError(f"{text}: give bytes per second, such as 10MB or 500K")
    return int(number) * _UNITS[unit]


def _move_arguments(parser: ArgumentParser) -> None:
    _partition_argument(parser)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument(
        "--to", "--replicas", metavar="N,N,...", help="node ids of the new replicas, the preferred leader first"
    )
    wanted.add_argument("--cancel", action="store_true", help="cancel a move in progress and keep the old replicas")
    throttle_argument(parser)
    parser.add_argument(
        "-w", "--wait", action="store_true", help="show the progress, and return when the move has ended"
    )


async def _move(context: Context) -> int:
    wanted = context.arguments
    try:
        replicas = [] if wanted.cancel else [int(item) for item in wanted.to.split(",")]
    except ValueError:
        raise CommandError(f"--to {wanted.to}: give node ids, such as 1,2,3", ExitCode.USAGE) from None
    name = f"{wanted.topic}-{wanted.partition}"
    async with context.connector.admin(context.bootstrap) as admin:
        async with _telling_which_exist(admin, wanted.topic, wanted.partition):
            await admin.assign_replicas(wanted.topic, wanted.partition, replicas, throttle_bytes_per_s=wanted.throttle)
        if wanted.wait:
            await until_moved(
                context, admin, lambda move: (move.topic, move.partition) == (wanted.topic, wanted.partition)
            )
    text = f"{name} moves to {wanted.to}" if replicas else f"{name} stays where it was"
    if wanted.wait and replicas:
        text = f"{name} has moved to {wanted.to}"
    elif replicas:
        text += "; `barnabas partition moves` shows the progress"
    context.out.line(text, {"topic": wanted.topic, "partition": wanted.partition, "replicas": replicas})
    return ExitCode.OK


async def until_moved(context: Context, admin: "Admin", concerns: Callable[[PartitionMove], bool]) -> None:
    """Return when no such move is in progress any more; print what is left meanwhile."""
    progress = Progress()
    while True:
        moves = [move for move in (await admin.describe_moves()).moves if concerns(move)]
        if not moves:
            return
        context.out.note(progress.sentence(moves, time.monotonic()))
        await asyncio.sleep(POLL_S)


class Progress:
    """What is left, and the estimated time at the average rate: a throttle passes one second's worth at a time."""

    def __init__(self) -> None:
        self._began: tuple[float, int] | None = None  # when most bytes were left, and how many

    def sentence(self, moves: Sequence[PartitionMove], now_s: float) -> str:
        left = sum(max(0, item.bytes_left) for move in moves for item in move.catching_up)
        if self._began is None or left >= self._began[1]:
            self._began = now_s, left
        began_s, began_left = self._began
        bytes_per_s = (began_left - left) / (now_s - began_s) if now_s > began_s else 0.0
        eta = f", about {left / bytes_per_s:.0f} s" if bytes_per_s >= 1 else ""
        return f"{len(moves)} partitions move, {left} bytes left{eta}"


async def _moves(context: Context) -> int:
    async with context.connector.admin(context.bootstrap) as admin:
        before = await admin.describe_moves()
        began_s = time.monotonic()
        if before.moves:
            await asyncio.sleep(ETA_SAMPLE_S)
            now = await admin.describe_moves()
        else:
            now = before
    elapsed_s = max(time.monotonic() - began_s, 0.001)
    rows = _rows(before, now, elapsed_s)
    if now.throttle_bytes_per_s:
        context.out.note(f"throttled to {now.throttle_bytes_per_s} bytes/s for each broker")
    if not rows:
        context.out.note("no partition moves")
    context.out.rows(rows, _COLUMNS)
    return ExitCode.OK


def _rows(before: DescribeMovesResponse, now: DescribeMovesResponse, elapsed_s: float) -> list[Row]:
    then = {(move.topic, move.partition): _bytes_left(move) for move in before.moves}
    rows: list[Row] = []
    for move in now.moves:
        left = _bytes_left(move)
        earlier = then.get((move.topic, move.partition))
        speed = 0.0 if left is None or earlier is None else (earlier - left) / elapsed_s
        rows.append(
            {
                "partition": f"{move.topic}-{move.partition}",
                "leader": move.leader if move.leader >= 0 else None,
                "replicas": move.replicas,
                "adding": move.adding,
                "removing": move.removing,
                "records_left": _sum(item.records_left for item in move.catching_up),
                "bytes_left": left,
                "eta_s": round(left / speed, 1) if left is not None and speed >= 1 else None,
            }
        )
    return rows


def _bytes_left(move: PartitionMove) -> int | None:
    return _sum(item.bytes_left for item in move.catching_up)


def _sum(values: Iterable[int]) -> int | None:
    """None if one of the values is not known."""
    known = list(values)
    return None if any(value < 0 for value in known) else sum(known)


def _transfer_arguments(parser: ArgumentParser) -> None:
    _partition_argument(parser)
    parser.add_argument("--to", type=number_from(0), metavar="N", help="the broker; default: the preferred leader")


async def _transfer(context: Context) -> int:
    wanted = context.arguments
    async with context.connector.admin(context.bootstrap) as admin:
        async with _telling_which_exist(admin, wanted.topic, wanted.partition):
            await admin.elect_leader(wanted.topic, wanted.partition, target=wanted.to)
        await _tell_leader(context, admin)
    return ExitCode.OK


async def _tell_leader(context: Context, admin: "Admin") -> None:
    """Of the partition that the arguments name."""
    wanted = context.arguments
    leader = (await admin.describe_topic(wanted.topic)).partitions[wanted.partition].leader
    context.out.line(
        f"{wanted.topic}-{wanted.partition} is led by broker {leader}",
        {"topic": wanted.topic, "partition": wanted.partition, "leader": leader},
    )


def _elect_arguments(parser: ArgumentParser) -> None:
    _partition_argument(parser)
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="elect; without this, only show the replicas and what may be lost",
    )


async def _elect(context: Context) -> int:
    """An unclean election, by which the cluster loses what only absent replicas have."""
    wanted = context.arguments
    async with context.connector.admin(context.bootstrap) as admin:
        async with _telling_which_exist(admin, wanted.topic, wanted.partition):
            partitions = (await admin.describe_topic(wanted.topic)).partitions
            if wanted.partition >= len(partitions):
                raise UnknownTopicOrPartitionError(f"{wanted.topic} has {len(partitions)} partitions")
            partition = partitions[wanted.partition]
        place = f"{wanted.topic}-{wanted.partition}"
        if partition.leader >= 0:
            raise CommandError(
                f"{place} is led by broker {partition.leader}: nothing is to be given up", ExitCode.FAILED
            )
        if not wanted.accept_loss:
            absent = sorted({*partition.isr, *partition.eligible} or {*partition.replicas})
            context.out.line(
                f"{place} has no leader, and waits for one of the brokers {', '.join(map(str, absent))}. With --accept-loss the "
                "longest log of the replicas that are there leads: acknowledged records that it does not have are lost",
                {"topic": wanted.topic, "partition": wanted.partition, "leader": -1, "waits_for": absent},
            )
            return ExitCode.OK
        await admin.elect_leader(wanted.topic, wanted.partition, unclean=True)
        await _tell_leader(context, admin)
    return ExitCode.OK


VERBS = (
    Verb(name="move", summary="move a partition to other brokers", arguments=_move_arguments, run=_move, timed=False),
    Verb(name="moves", summary="moves in progress, and how far they are", arguments=no_arguments, run=_moves),
    Verb(
        name="transfer-leadership",
        summary="make another replica the leader",
        arguments=_transfer_arguments,
        run=_transfer,
    ),
    Verb(
        name="elect",
        summary="give a partition without a leader one of the replicas that are there, and give up what the others have",
        arguments=_elect_arguments,
        run=_elect,
    ),
)
