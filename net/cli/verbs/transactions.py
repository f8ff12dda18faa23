"""`barnabas transaction ...`: transactions of producers, and those that keep readers of committed records waiting."""

from argparse import ArgumentParser
from typing import Final

from barnabas.log.vocabulary.transaction_messages import STORED_STATES
from barnabas.net.wire.protocol.transaction_operations import ANY_EPOCH, ListedTransaction

from ..frame.command import Context, Verb, name_argument, number_from
from ..frame.exit_codes import CommandError, ExitCode
from ..frame.output import Row

_COLUMNS: Final = (
    "transactional_id", "state", "producer_id", "epoch", "coordinator", "duration_s", "timeout_s", "partitions", "groups",
)  # fmt: skip
_HANGING_COLUMNS: Final = ("topic", "partition", "producer_id", "epoch", "first_offset", "age_s")


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--state",
        action="append",
        default=[],
        choices=[state.value for state in STORED_STATES],
        help="only this state; may be repeated",
    )
    parser.add_argument(
        "--producer-id", action="append", default=[], type=number_from(0), metavar="N", help="only this producer id"
    )
    parser.add_argument(
        "--longer-than", type=number_from(0), metavar="SECONDS", help="only transactions that are open for as long"
    )


async def _list(context: Context) -> int:
    wanted = context.arguments
    longer_than_ms = -1 if wanted.longer_than is None else wanted.longer_than * 1000
    async with context.connector.admin(context.bootstrap) as admin:
        found = await admin.transactions.list(
            states=wanted.state, producer_ids=wanted.producer_id, longer_than_ms=longer_than_ms
        )
    context.out.rows([_row(item) for item in found.transactions], _COLUMNS)
    if found.left_out:
        context.out.note(f"{found.left_out} more are not shown; use --state, --producer-id or --longer-than")
    return ExitCode.OK


def _row(item: ListedTransaction) -> Row:
    return {
        "transactional_id": item.transactional_id,
        "state": item.state,
        "producer_id": item.producer_id,
        "epoch": item.producer_epoch,
        "coordinator": item.coordinator,
        "duration_s": None if item.duration_ms < 0 else item.duration_ms / 1000,
        "timeout_s": item.timeout_ms / 1000,
        "partitions": item.partition_count,
        "groups": item.group_count,
    }


async def _describe(context: Context) -> int:
    async with context.connector.admin(context.bootstrap) as admin:
        found = await admin.transactions.describe(context.arguments.name)
    partitions: list[Row] = [
        {
            "topic": item.partition.topic,
            "partition": item.partition.partition,
            "last_stable_offset": item.last_stable_offset,
            "high_watermark": item.high_watermark,
            "lag": item.lag,
        }
        for item in found.partitions
    ]
    waits_for = {"prepared_for": found.summary.prepared_for} if found.summary.prepared_for else {}
    summary = {
        **_row(found.summary),
        **waits_for,
        "started_ms": None if found.said.started_ms < 0 else found.said.started_ms,
    }
    if context.out.is_json:
        context.out.record({**summary, "groups": list(found.said.groups), "partitions": partitions})
        return ExitCode.OK
    context.out.record({**summary, "groups": list(found.said.groups)})
    if partitions:
        context.out.text()
        context.out.rows(partitions, tuple(partitions[0]))
    return ExitCode.OK


def _abort_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="TRANSACTIONAL-ID", nargs="?", help="abort its open transaction, and fence its producer"
    )
    parser.add_argument("--topic", help="abort a hanging transaction in one partition: the topic")
    parser.add_argument("--partition", type=number_from(0), metavar="N", help="its partition")
    parser.add_argument("--producer-id", type=number_from(0), metavar="N", help="its producer id")
    parser.add_argument(
        "--producer-epoch", type=number_from(0), default=ANY_EPOCH, metavar="N", help="its producer epoch, to be sure"
    )


async def _abort(context: Context) -> int:
    wanted = context.arguments
    place = (wanted.topic, wanted.partition, wanted.producer_id)
    if (wanted.name is None) == (None in place) or (wanted.name is not None and any(x is not None for x in place)):
        raise CommandError(
            "give either a transactional id, or --topic, --partition and --producer-id of a transaction that "
            "`barnabas transaction hanging` shows",
            ExitCode.USAGE,
        )
    async with context.connector.admin(context.bootstrap) as admin:
        if wanted.name is not None:
            await admin.transactions.abort(wanted.name)
            context.out.line(
                f"aborted the transaction of {wanted.name}; its producer is fenced",
                {"transactional_id": wanted.name, "aborted": True},
            )
            return ExitCode.OK
        await admin.transactions.abort_hanging(
            wanted.topic, wanted.partition, producer_id=wanted.producer_id, producer_epoch=wanted.producer_epoch
        )
    context.out.line(
        f"aborted the transaction of producer {wanted.producer_id} in {wanted.topic}-{wanted.partition}",
        {"topic": wanted.topic, "partition": wanted.partition, "producer_id": wanted.producer_id, "aborted": True},
    )
    return ExitCode.OK


def _hanging_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--older-than", type=number_from(0), default=10, metavar="SECONDS", help="ignore younger ones (default: 10)"
    )


async def _hanging(context: Context) -> int:
    """Exit code 3 if there are some."""
    async with context.connector.admin(context.bootstrap) as admin:
        found = await admin.transactions.hanging(older_than_ms=context.arguments.older_than * 1000)
    rows: list[Row] = [
        {
            "topic": item.topic,
            "partition": item.partition,
            "producer_id": item.producer_id,
            "epoch": item.producer_epoch,
            "first_offset": item.first_offset,
            "age_s": item.age_ms / 1000,
        }
        for item in found
    ]
    context.out.rows(rows, _HANGING_COLUMNS)
    if not rows:
        context.out.note("no transaction hangs")
        return ExitCode.OK
    first = rows[0]
    context.out.note(
        f"abort one: barnabas transaction abort --topic {first['topic']} --partition {first['partition']} "
        f"--producer-id {first['producer_id']}"
    )
    return ExitCode.UNHEALTHY


VERBS = (
    Verb(
        name="list", summary="list the transactional ids and their transactions", arguments=_list_arguments, run=_list
    ),
    Verb(
        name="describe",
        summary="one transactional id, and the partitions of its open transaction",
        arguments=name_argument("TRANSACTIONAL-ID"),
        run=_describe,
    ),
    Verb(
        name="abort",
        summary="abort an open transaction and fence its producer, or abort one that hangs in a partition",
        arguments=_abort_arguments,
        run=_abort,
    ),
    Verb(
        name="hanging",
        summary="transactions in partitions that no coordinator knows: readers of committed records wait for them",
        arguments=_hanging_arguments,
        run=_hanging,
    ),
)
