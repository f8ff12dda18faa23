"""/v3/.../brokers/{broker_id}/barnabas/folders: the data folders of a broker. Confluent's API has no equivalent."""

from typing import Final

from barnabas.net.wire.protocol.responses import StorageFolder

from ..frame import shapes
from ..frame.call import Call, Field, Json, Reply, Route, text_of
from .clusters import BROKER, broker_of

FOLDERS = f"{BROKER}/barnabas/folders"


def _folder(call: Call, node_id: int, folder: StorageFolder) -> Json:
    return call.item(
        "BarnabasFolder",
        ("brokers", node_id, "barnabas", "folders"),
        {
            "broker_id": node_id,
            "path": folder.path,
            "directory_id": folder.directory_id,
            "state": folder.state,
            "cause": folder.cause or None,
            "since_ms": folder.since_ms if folder.since_ms >= 0 else None,
            "partitions_count": folder.partitions,
            "offline_partitions": list(folder.offline_partitions),
            "size_bytes": folder.size_bytes if folder.size_bytes >= 0 else None,
            "free_bytes": folder.free_bytes if folder.free_bytes >= 0 else None,
            "total_bytes": folder.total_bytes if folder.total_bytes >= 0 else None,
            "strays": list(folder.strays),
        },
    )


async def _list_folders(call: Call) -> Reply:
    node_id = broker_of(call).node_id
    found = await call.ask(lambda admin: admin.describe_storage(node_id))
    data = [_folder(call, node_id, folder) for folder in found.folders]
    return call.listed("BarnabasFolderList", ("brokers", node_id, "barnabas", "folders"), data)


async def _bring_back(call: Call) -> Reply:
    node_id = broker_of(call).node_id
    path = text_of(call.body, "path")
    found = await call.ask(lambda admin: admin.bring_back_folder(node_id, path))
    return Reply(body=_folder(call, node_id, found.folders[0]))


_FOLDER: Final = shapes.item(
    "BarnabasFolder",
    shapes.whole("broker_id", "The broker."),
    shapes.text("path", "The folder on its machine."),
    shapes.text("directory_id", "The id of the folder in the cluster."),
    shapes.text("state", "online, offline, or full."),
    shapes.text("cause", "Why it is not online.", null=True),
    shapes.whole("since_ms", "Since when, in milliseconds since 1970.", null=True),
    shapes.whole("partitions_count", "Partitions in it."),
    shapes.texts("offline_partitions", "Partitions that cannot be used, as TOPIC-NUMBER."),
    shapes.whole("size_bytes", "Bytes of partitions; null: unknown.", null=True),
    shapes.whole("free_bytes", "Free bytes of its file system.", null=True),
    shapes.whole("total_bytes", "Size of its file system.", null=True),
    shapes.texts("strays", "Folders that belong to no partition of the cluster."),
)

ROUTES = (
    Route(
        method="GET",
        path=FOLDERS,
        handler=_list_folders,
        summary="The data folders of a broker",
        answer=shapes.listed("BarnabasFolderList", _FOLDER),
    ),
    Route(
        method="POST",
        path=f"{FOLDERS}:bring-back",
        handler=_bring_back,
        summary="Use a data folder again after a disk repair",
        answer=_FOLDER,
        body=(Field(name="path", type="string", description="the folder, as the list shows it", required=True),),
    ),
)
