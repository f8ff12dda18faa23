"""`barnabas top`: rates of topics and lag of groups, again and again: a table on a terminal, otherwise plain lines."""

import asyncio
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..frame.command import Context, Verb, number_from
from ..frame.exit_codes import ExitCode, message_of
from ..frame.output import Row
from ..verbs.groups import lags_of

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.admin.admin import Admin

MAX_PARTITIONS: Final = 10_000  # asked for their offsets in each round
MAX_GROUPS: Final = 100
ROWS: Final = 20  # of each table: those with the highest rates, and the longest lags
CLEAR: Final = "\x1b[H\x1b[J"
_TOPIC_COLUMNS: Final = ("topic", "partitions", "records_per_s", "end", "under_replicated", "leaderless")
_GROUP_COLUMNS: Final = ("group", "state", "members", "lag", "lag_seconds")


class Picture(NamedTuple):
    """One look at the cluster. `ends`: of the partitions whose leaders answered."""

    at_s: float
    topics: Sequence[Row]  # without rates
    ends: Mapping[TopicPartition, int]
    groups: Sequence[Row]
    omitted: int  # partitions beyond MAX_PARTITIONS


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-i", "--interval", type=number_from(1), default=2, metavar="SECONDS", help="default: %(default)s"
    )
    parser.add_argument("-n", "--num", type=number_from(1), metavar="N", help="stop after N rounds; default: at Ctrl-C")


async def _run(context: Context) -> int:
    wanted = context.arguments
    is_terminal = context.out.stdout.isatty() and not context.out.is_json
    rounds = 0
    async with context.connector.admin(context.bootstrap) as admin:
        before = await _bounded(admin, wanted.timeout)
        while wanted.num is None or rounds < wanted.num:
            await asyncio.sleep(wanted.interval)
            try:
                after = await _bounded(admin, wanted.timeout)
            except (BarnabasError, TimeoutError) as error:
                if wanted.num is not None:
                    raise
                context.out.note(f"no answer, trying again: {message_of(error)}")
                continue
            _show(context, before, after, is_terminal=is_terminal)
            before = after
            rounds += 1
    return ExitCode.OK


async def _bounded(admin: "Admin", timeout_s: float) -> Picture:
    async with asyncio.timeout(timeout_s):
        return await look(admin, wait_s=timeout_s / 3)


async def look(admin: "Admin", *, wait_s: float) -> Picture:
    """Leaders and groups that do not answer within `wait_s` are left out."""
    from ...client.positions.offset_lookup import unread_now

    topics = [topic for topic in await admin.describe_topics() if not topic.internal]
    places = [(TopicPartition(topic.name, number), 0) for topic in topics for number in range(len(topic.partitions))]
    ends: dict[TopicPartition, int] = {}
    try:
        async with asyncio.timeout(wait_s):
            answers = await unread_now(admin.client, places[:MAX_PARTITIONS])
        ends = {place: answer.log_end_offset for (place, _), answer in answers.items()}
    except (TimeoutError, BarnabasError):
        pass  # Rates are unknown in this round; topics and groups are shown all the same.
    at_s = time.monotonic()
    listed = (await admin.list_groups())[:MAX_GROUPS]
    lags = await lags_of(admin, [group.group_id for group in listed], wait_s)
    rows: list[Row] = [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "under_replicated": sum(len(one.isr) < len(one.replicas) for one in topic.partitions),
            "leaderless": sum(one.leader < 0 for one in topic.partitions),
        }
        for topic in topics
    ]
    groups: list[Row] = [
        {"group": one.group_id, "state": one.state, "members": one.member_count, **lags[one.group_id]} for one in listed
    ]
    return Picture(at_s, rows, ends, groups, max(0, len(places) - MAX_PARTITIONS))


def rates(before: Picture, after: Picture) -> list[Row]:
    """The topics with their rates, the busiest first. A partition that was not known in both looks counts as idle."""
    seconds = max(after.at_s - before.at_s, 1e-9)
    grown: dict[str, int] = {}
    end: dict[str, int] = {}
    for place, offset in after.ends.items():
        grown[place.topic] = grown.get(place.topic, 0) + max(0, offset - before.ends.get(place, offset))
        end[place.topic] = end.get(place.topic, 0) + offset
    found: list[tuple[float, Row]] = []
    for row in after.topics:
        name = str(row["topic"])
        rate = round(grown.get(name, 0) / seconds, 1)
        found.append((rate, {**row, "records_per_s": rate if name in end else None, "end": end.get(name)}))
    return [row for _, row in sorted(found, key=lambda item: -item[0])]


def _lag(row: Row) -> int:
    lag = row["lag"]
    return lag if isinstance(lag, int) else -1


def _show(context: Context, before: Picture, after: Picture, *, is_terminal: bool) -> None:
    out = context.out
    topics, groups = rates(before, after), sorted(after.groups, key=_lag, reverse=True)
    at = time.strftime("%H:%M:%SZ", time.gmtime())
    if out.is_json:
        out.record({"at": at, "topics": topics, "groups": groups})
    elif is_terminal:
        out.stdout.write(CLEAR)
        out.text(f"{at}  {len(topics)} topics, {len(groups)} groups; Ctrl-C ends")
        for rows, columns in ((topics, _TOPIC_COLUMNS), (groups, _GROUP_COLUMNS)):
            out.text()
            out.rows(rows[:ROWS], columns)
    else:
        for row in topics[:ROWS]:
            out.text(f"{at} topic={row['topic']} records_per_s={row['records_per_s']} end={row['end']}")
        for row in groups[:ROWS]:
            out.text(f"{at} group={row['group']} lag={row['lag']} lag_seconds={row['lag_seconds']}")
    if after.omitted:
        out.note(f"{after.omitted} partitions are left out: rates are shown for {MAX_PARTITIONS}")
    out.stdout.flush()


VERBS = {
    "top": Verb(
        name="top", summary="rates of topics and lag of groups, live", arguments=_arguments, run=_run, timed=False
    )
}
