"""Moving the committed offsets of a group (`group seek` over HTTP), with a preview, and taking it back."""

import re
from collections.abc import Mapping

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.offset_seek import SeekStep, held_within, steps
from barnabas.net.protocol.group_responses import OffsetFetchResponse, UndoOffsetResetResponse
from barnabas.net.protocol.requests import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    OffsetCommitPartition,
    OffsetFetchRequest,
    ResetOffsetsRequest,
    UndoOffsetResetRequest,
)
from barnabas.net.protocol.responses import EmptyResponse

from ..frame.call import Call, Field, Reply, Route
from ..frame.errors import bad_request
from .groups import GROUP
from .metrics import offsets_at

_TARGET = re.compile(r"start|end|@?[0-9]{1,18}|[+-][0-9]{1,18}")  # 18 digits fit into 64 bits, also when added to one
Committed = Mapping[TopicPartition, int | None]


async def _seek(call: Call) -> Reply:
    group_id, where = call.path["consumer_group_id"], call.body["to"]
    if not _TARGET.fullmatch(where):
        raise bad_request("to is start, end, @timestamp in ms, N, +N or -N")
    before = await _committed(call, group_id)
    target = await _target(call, before, where)
    starts, ends = await _ends(call, target)
    after = held_within(target, starts, ends)
    if not call.body.get("preview"):
        partitions = tuple(
            OffsetCommitPartition(topic=place.topic, partition=place.partition, offset=offset)
            for place, offset in sorted(after.items())
        )
        await call.ask(ResetOffsetsRequest(group_id=group_id, partitions=partitions), EmptyResponse)
    return _moved(call, group_id, steps(before, after, starts, ends))


async def _undo(call: Call) -> Reply:
    group_id = call.path["consumer_group_id"]
    request = UndoOffsetResetRequest(group_id=group_id, validate_only=bool(call.body.get("preview")))
    undone = await call.ask(request, UndoOffsetResetResponse)
    before = {TopicPartition(item.topic, item.partition): _offset(item.before) for item in undone.offsets}
    after = {TopicPartition(item.topic, item.partition): _offset(item.after) for item in undone.offsets}
    starts, ends = await _ends(call, before)
    return _moved(call, group_id, steps(before, after, starts, ends))


def _offset(told: int) -> int | None:
    return None if told < 0 else told


async def _committed(call: Call, group_id: str) -> dict[TopicPartition, int | None]:
    topics = call.body.get("topics") or []
    if not all(isinstance(name, str) for name in topics):
        raise bad_request("topics must be a list of names")
    found: dict[TopicPartition, int | None] = {
        TopicPartition(name, partition): None
        for name in topics
        if name in call.image.topics
        for partition in range(len(call.image.topics[name].partitions))
    }
    fetched = await call.ask(OffsetFetchRequest(group_id=group_id), OffsetFetchResponse)
    for item in fetched.partitions:
        if not topics or item.topic in topics:
            found[TopicPartition(item.topic, item.partition)] = _offset(item.offset)
    if not found:
        raise bad_request(f"group {group_id} has no committed offsets; name topics")
    return found


async def _target(call: Call, before: Committed, where: str) -> dict[TopicPartition, int]:
    if where[0] in "+-":
        return {place: offset + int(where) for place, offset in before.items() if offset is not None}
    if where.isdigit():
        return dict.fromkeys(before, int(where))
    timestamp = {"start": EARLIEST_TIMESTAMP, "end": LATEST_TIMESTAMP}.get(where)
    found = await offsets_at(call, sorted(before), int(where[1:]) if timestamp is None else timestamp)
    behind = sorted(place for place, offset in found.items() if offset < 0)
    return found | await offsets_at(call, behind, LATEST_TIMESTAMP)


async def _ends(
    call: Call, places: Mapping[TopicPartition, object]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    ordered = sorted(places)
    return await offsets_at(call, ordered, EARLIEST_TIMESTAMP), await offsets_at(call, ordered, LATEST_TIMESTAMP)


def _moved(call: Call, group_id: str, moved: list[SeekStep]) -> Reply:
    path = ("consumer-groups", group_id, "seek")
    data = [
        call.item(
            "BarnabasOffsetSeek",
            (*path, step.place.topic, step.place.partition),
            {
                "consumer_group_id": group_id,
                "topic_name": step.place.topic,
                "partition_id": step.place.partition,
                "before": step.before,
                "after": step.after,
                "skipped": step.skipped,
                "read_again": step.read_again,
                "lag_after": step.lag_after,
            },
        )
        for step in moved
    ]
    return call.listed("BarnabasOffsetSeekList", path, data)


_PREVIEW = Field(name="preview", type="boolean", description="show what would change, change nothing")

ROUTES = (
    Route(
        method="POST",
        path=f"{GROUP}/seek",
        handler=_seek,
        summary="Move the committed offsets of a group, also while it runs",
        body=(
            Field(name="to", type="string", required=True, description="start, end, @timestamp in ms, N, +N or -N"),
            Field(name="topics", type="array", description="only these topics, or new ones"),
            _PREVIEW,
        ),
    ),
    Route(
        method="POST",
        path=f"{GROUP}/seek/undo",
        handler=_undo,
        summary="Take back the last seek (or the last undo) of a group",
        body=(_PREVIEW,),
    ),
)
