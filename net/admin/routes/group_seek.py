"""Move the committed offsets of a group (`group seek` over HTTP), with preview and undo."""

from collections.abc import Collection
from typing import Final

from barnabas.net.client.admin.group_seek import TARGETS, NothingCommittedError, is_target, seek_group, undo_seek
from barnabas.net.client.admin.offset_seek import SeekStep
from barnabas.net.server.access.access import require_read

from ..frame import shapes
from ..frame.call import Call, Field, Reply, Route
from ..frame.errors import bad_request
from .groups import GROUP


async def _seek(call: Call) -> Reply:
    group_id, where = call.path["consumer_group_id"], call.body["to"]
    if not is_target(where):
        raise bad_request(f"to must be one of: {TARGETS}")
    topics = call.body.get("topics") or []
    if not all(isinstance(name, str) for name in topics):
        raise bad_request("topics must be a list of topic names")
    preview = bool(call.body.get("preview"))
    try:
        moved = await call.ask(lambda admin: seek_group(admin, group_id, where, topics=topics, preview=preview))
    except NothingCommittedError as error:
        raise bad_request(error.message) from None
    return _moved(call, group_id, moved)


async def _undo(call: Call) -> Reply:
    group_id, preview = call.path["consumer_group_id"], bool(call.body.get("preview"))

    def check(topics: Collection[str]) -> None:
        if call.access is not None:
            require_read(call.access, topics)

    _, moved = await call.ask(lambda admin: undo_seek(admin, group_id, preview=preview, check=check))
    return _moved(call, group_id, moved)


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


_PREVIEW = Field(name="preview", type="boolean", description="show the changes without making them")
_MOVED: Final = shapes.listed(
    "BarnabasOffsetSeekList",
    shapes.item(
        "BarnabasOffsetSeek",
        shapes.text("consumer_group_id", "The group."),
        shapes.text("topic_name", "The topic."),
        shapes.whole("partition_id", "The partition."),
        shapes.whole("before", "The committed offset before; null: none.", null=True),
        shapes.whole("after", "The committed offset after; null: none.", null=True),
        shapes.whole("skipped", "Records that are not read."),
        shapes.whole("read_again", "Records that are read again."),
        shapes.whole("lag_after", "Records to read after it."),
    ),
)

ROUTES = (
    Route(
        method="POST",
        path=f"{GROUP}/seek",
        handler=_seek,
        summary="Move the committed offsets of a group, also while it runs",
        answer=_MOVED,
        body=(
            Field(name="to", type="string", required=True, description=TARGETS),
            Field(name="topics", type="array", description="only these topics; they may be new to the group"),
            _PREVIEW,
        ),
    ),
    Route(
        method="POST",
        path=f"{GROUP}/seek/undo",
        handler=_undo,
        summary="Undo the last seek (or the last undo) of a group",
        answer=_MOVED,
        body=(_PREVIEW,),
    ),
)
