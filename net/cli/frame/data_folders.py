"""How commands show the data folders of a broker."""

from barnabas.net.client.admin.cluster_health import folder_cause
from barnabas.net.client.admin.finding import utc_time
from barnabas.net.wire.protocol.responses import DescribeStorageResponse, StorageFolder, TroubledFolder

from .output import Output


def show_folders(out: Output, found: DescribeStorageResponse) -> None:
    """Print a table. Each problem is printed as a separate line on stderr, because it is too long for a column."""
    rows = [_row(folder) for folder in found.folders]
    out.rows(rows, ("folder", "state", "partitions", "offline", "size_bytes", "free_bytes", "since"))
    for folder in found.folders:
        if folder.cause:
            trouble = TroubledFolder(path=folder.path, state=folder.state, cause=folder.cause, since_ms=folder.since_ms)
            out.note(folder_cause(found.node_id, trouble))
        elif folder.offline_partitions:
            out.note(
                f"{folder.path}: {len(folder.offline_partitions)} logs could not be used: "
                f"{', '.join(folder.offline_partitions[:10])}; see the broker's log, then "
                f"`barnabas broker bring-back {found.node_id} --folder {folder.path}`"
            )
        if folder.strays:
            out.note(
                f"{folder.path}: {len(folder.strays)} replicas that the cluster does not assign to broker {found.node_id} are"
                f" kept: {', '.join(folder.strays[:10])}; `rm -r` them on its machine when their records are no longer needed"
            )


def _row(folder: StorageFolder) -> dict[str, object]:
    return {
        "folder": folder.path,
        "directory_id": folder.directory_id,
        "state": folder.state,
        "partitions": folder.partitions,
        "offline": len(folder.offline_partitions),
        "offline_partitions": folder.offline_partitions,
        "size_bytes": folder.size_bytes if folder.size_bytes >= 0 else None,
        "free_bytes": folder.free_bytes if folder.free_bytes >= 0 else None,
        "total_bytes": folder.total_bytes if folder.total_bytes >= 0 else None,
        "strays": folder.strays,
        "since": utc_time(folder.since_ms) if folder.since_ms >= 0 else None,
        "cause": folder.cause or None,
    }
