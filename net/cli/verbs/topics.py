"""`barnabas topic ...`: topics, except for their records (`produce`, `consume`)."""

import asyncio
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.log.vocabulary.errors import BarnabasError, OffsetOutOfRangeError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.doubt import doubt_of
from barnabas.net.wire.protocol.group_responses import UnreadPartitionResponse
from barnabas.net.wire.protocol.responses import TopicMetadata

from ..frame.command import Context, Verb, key_value, number_from
from ..frame.confirmation import exit_code_in, shown_doubt
from ..frame.exit_codes import CommandError, ExitCode
from ..frame.output import Row
from ..streams import consume, produce, table_file
from .configs import check_removed

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.admin.admin import Admin

OFFSETS_WAIT_S: Final = 3.0  # for the leaders' answers about offsets; the rest of a description does not need them
Answers = Mapping[tuple[TopicPartition, int], UnreadPartitionResponse]
_COMMITTED_END = -1  # DeleteRecords: up to the high watermark


def _create_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the topics", nargs="+")
    parser.add_argument(
        "-p",
        "--partitions",
        type=number_from(1),
        default=-1,
        metavar="N",
        help="number of partitions; default: the cluster's",
    )
    parser.add_argument(
        "-r",
        "--replicas",
        type=number_from(1),
        default=-1,
        metavar="N",
        help="replicas of each partition; default: the cluster's",
    )
    parser.add_argument("-c", "--config", type=key_value, action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--if-not-exists", action="store_true", help="an existing topic is not an error")
    parser.add_argument("--dry-run", action="store_true", help="validate only, create nothing")


async def _create(context: Context) -> int:
    wanted = context.arguments
    async with context.connector.admin(context.bootstrap) as admin:
        existing = set(await admin.list_topics(include_internal=True)) if wanted.if_not_exists else set()
        for name in wanted.name:
            if name in existing:
                context.out.note(f"{name} exists")
                continue
            created = await admin.create_topic(
                name,
                partitions=wanted.partitions,
                replication_factor=wanted.replicas,
                configs=dict(wanted.config),
                validate_only=wanted.dry_run,
            )
            done = "could create" if wanted.dry_run else "created"
            context.out.line(
                f"{done} {name}: {created.partition_count} partitions, {created.replication_factor} replicas each",
                {
                    "topic": name,
                    "topic_id": created.topic_id,
                    "partitions": created.partition_count,
                    "replication_factor": created.replication_factor,
                },
            )
    return ExitCode.OK


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("-i", "--internal", action="store_true", help="show internal topics too")


async def _list(context: Context) -> int:
    async with context.connector.admin(context.bootstrap) as admin:
        topics = await admin.describe_topics()
        doubt = doubt_of(await admin.describe_quorum())
    shown = [topic for topic in topics if context.arguments.internal or not topic.internal]
    context.out.rows([_summary(topic) for topic in sorted(shown, key=lambda topic: topic.name)], _LIST_COLUMNS)
    if doubt is not None:
        context.out.note(doubt["message"])
    return exit_code_in(doubt)


_LIST_COLUMNS = ("topic", "partitions", "replicas", "under_replicated", "offline")


def _summary(topic: TopicMetadata) -> Row:
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "replicas": max((len(partition.replicas) for partition in topic.partitions), default=0),
        "under_replicated": sum(len(partition.isr) < len(partition.replicas) for partition in topic.partitions),
        "offline": sum(partition.leader < 0 for partition in topic.partitions),
        "topic_id": topic.topic_id,
        "internal": topic.internal,
    }


def _describe_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the topic")
    parser.add_argument(
        "--rate",
        type=number_from(1),
        metavar="SECONDS",
        help="watch the offsets for SECONDS, and show records per second",
    )


async def _describe(context: Context) -> int:
    async with context.connector.admin(context.bootstrap) as admin:
        topic = await admin.describe_topic(context.arguments.name)
        entries = await admin.describe_configs(topic.name)
        doubt = doubt_of(await admin.describe_quorum())
        extents, sizes = await asyncio.gather(_extents(context, admin, topic), _sizes(context, admin, topic))
    configs = {entry.key: entry.value for entry in entries if entry.source == "topic"}
    partitions: list[Row] = [
        {
            "partition": index,
            "leader": partition.leader if partition.leader >= 0 else None,
            "epoch": partition.leader_epoch,
            "replicas": partition.replicas,
            "isr": partition.isr,
            "offline": partition.offline,
            "eligible": partition.eligible,
            "unclean": partition.unclean_elections,
            **extents[index],
            "bytes": sizes.get(index, {}).get(partition.leader),
            "bytes_of": {str(node): size for node, size in sorted(sizes.get(index, {}).items())},
        }
        for index, partition in enumerate(topic.partitions)
    ]
    if context.out.is_json:
        context.out.record({**_summary(topic), "configs": configs, "unconfirmed": doubt, "partitions": partitions})
        return exit_code_in(doubt)
    shown = {"configs": [f"{key}={value}" for key, value in configs.items()], **shown_doubt(doubt)}
    context.out.record({**_summary(topic), **shown})
    context.out.text()
    context.out.rows(partitions, _partition_columns(partitions))
    return exit_code_in(doubt)


async def _sizes(context: Context, admin: "Admin", topic: TopicMetadata) -> dict[int, dict[int, int]]:
    from barnabas.net.client.admin.admin import topic_sizes  # commands import no client before they use one

    brokers = {node for partition in topic.partitions for node in partition.replicas}
    return await topic_sizes(admin, topic.name, brokers, wait_s=min(OFFSETS_WAIT_S, context.arguments.timeout / 3))


async def _extents(context: Context, admin: "Admin", topic: TopicMetadata) -> list[Row]:
    """First offset and end of each partition; None where the leader does not answer in time. With --rate, also the rate."""
    watch_s = context.arguments.rate
    wait_s = min(OFFSETS_WAIT_S, context.arguments.timeout / 3)  # The rest of the command needs its time, too.
    places = [(TopicPartition(topic.name, number), 0) for number in range(len(topic.partitions))]
    before = await _answers(admin, places, wait_s)
    after = before
    if watch_s is not None:
        await asyncio.sleep(watch_s)
        after = await _answers(admin, places, wait_s)
    rows: list[Row] = []
    for place in places:
        found, last = before.get(place), after.get(place)
        row: dict[str, object] = {
            "start": last.log_start_offset if last is not None else None,
            "end": last.log_end_offset if last is not None else None,
        }
        if watch_s is not None:
            grown = None if found is None or last is None else last.log_end_offset - found.log_end_offset
            row["records_per_s"] = None if grown is None else round(grown / watch_s, 1)
        rows.append(row)
    return rows


async def _answers(admin: "Admin", places: Sequence[tuple[TopicPartition, int]], wait_s: float) -> Answers:
    """A leader that is down, or stands still, must not keep the rest of the description."""
    from ...client.positions.offset_lookup import unread_now

    try:
        async with asyncio.timeout(wait_s):
            return await unread_now(admin.client, places)
    except (TimeoutError, BarnabasError):
        return {}


def _partition_columns(partitions: list[Row]) -> tuple[str, ...]:
    """Show rare fields only where they are set."""
    rare = tuple(column for column in ("eligible", "unclean") if any(row[column] for row in partitions))
    rate = ("records_per_s",) if any("records_per_s" in row for row in partitions) else ()
    return ("partition", "leader", "epoch", "replicas", "isr", "offline", "start", "end", "bytes", *rate, *rare)


def _alter_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the topic")
    parser.add_argument("-c", "--config", type=key_value, action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "-d",
        "--delete-config",
        action="append",
        default=[],
        metavar="KEY",
        help="reset KEY to its default (repeatable)",
    )


async def _alter(context: Context) -> int:
    changes: dict[str, str | None] = dict(context.arguments.config)
    changes.update(dict.fromkeys(context.arguments.delete_config))
    if not changes:
        raise CommandError("nothing to alter; give -c KEY=VALUE or -d KEY", ExitCode.USAGE)
    async with context.connector.admin(context.bootstrap) as admin:
        await check_removed(admin, context.arguments.name, changes)
        await admin.alter_config(context.arguments.name, changes)
    context.out.line(f"altered {context.arguments.name}", {"topic": context.arguments.name, "changes": changes})
    return ExitCode.OK


def _add_partitions_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the topic")
    count = parser.add_mutually_exclusive_group(required=True)
    count.add_argument("-n", "--num", type=number_from(1), metavar="N", help="how many partitions to add")
    count.add_argument("--total", type=number_from(1), metavar="N", help="the new number of partitions")


async def _add_partitions(context: Context) -> int:
    name = context.arguments.name
    async with context.connector.admin(context.bootstrap) as admin:
        total = context.arguments.total
        if total is None:
            total = len((await admin.describe_topic(name)).partitions) + context.arguments.num
        await admin.add_partitions(name, total)
    context.out.line(f"{name} now has {total} partitions", {"topic": name, "partitions": total})
    return ExitCode.OK


def _delete_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the topics", nargs="+")


async def _delete(context: Context) -> int:
    async with context.connector.admin(context.bootstrap) as admin:
        for name in context.arguments.name:
            await admin.delete_topic(name)
            context.out.line(f"deleted {name}", {"topic": name, "deleted": True})
    return ExitCode.OK


def _delete_records_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the topic")
    parser.add_argument(
        "-p",
        "--partition",
        type=number_from(0),
        action="append",
        metavar="P",
        help="only this partition (repeatable); default: all",
    )
    parser.add_argument(
        "--before",
        type=_offset_or_end,
        required=True,
        metavar="OFFSET|end",
        help="delete records before this offset; `end`: all records",
    )


def _offset_or_end(text: str) -> int:
    if text == "end":
        return _COMMITTED_END
    if not text.isascii() or not text.isdigit():
        raise ArgumentTypeError(f"{text} is neither an offset nor `end`")
    return int(text)


async def _delete_records(context: Context) -> int:
    """Delete in one partition after the other. A refused partition keeps its records and does not stop the others."""
    name, before = context.arguments.name, context.arguments.before
    refused = []
    async with context.connector.admin(context.bootstrap) as admin:
        topic = await admin.describe_topic(name)
        for _, partition in consume.chosen_partitions(topic, context.arguments.partition):
            try:
                start = await admin.delete_records(name, partition, before_offset=before)
            except OffsetOutOfRangeError as error:
                refused.append(error.message)
                continue
            told = {"topic": name, "partition": partition, "log_start_offset": start}
            context.out.line(f"{name}-{partition} begins at offset {start} now", told)
    if refused:
        raise CommandError("; ".join(refused), ExitCode.FAILED)
    return ExitCode.OK


VERBS = (
    Verb(name="create", summary="create a topic", arguments=_create_arguments, run=_create),
    Verb(name="list", summary="list the topics", arguments=_list_arguments, run=_list),
    Verb(
        name="describe",
        summary="partitions, leaders, offsets and configs",
        arguments=_describe_arguments,
        run=_describe,
    ),
    Verb(name="alter", summary="change configs of a topic", arguments=_alter_arguments, run=_alter),
    Verb(name="add-partitions", summary="add partitions", arguments=_add_partitions_arguments, run=_add_partitions),
    Verb(
        name="delete-records",
        summary="delete the oldest records",
        arguments=_delete_records_arguments,
        run=_delete_records,
    ),
    Verb(name="delete", summary="delete topics and all that is in them", arguments=_delete_arguments, run=_delete),
    Verb(
        name="produce",
        summary="send lines as records",
        arguments=produce.arguments,
        run=produce.run,
        timed=False,
        has_templates=True,
    ),
    Verb(
        name="consume",
        summary="print records as lines",
        arguments=consume.arguments,
        run=consume.run,
        timed=False,
        has_templates=True,
    ),
    Verb(
        name="export",
        summary="write records to a Parquet, CSV or NDJSON file",
        arguments=table_file.export_arguments,
        run=table_file.run_export,
        timed=False,
    ),
    Verb(
        name="import",
        summary="send the rows of a Parquet, CSV or NDJSON file as records",
        arguments=table_file.import_arguments,
        run=table_file.run_import,
        timed=False,
    ),
)
