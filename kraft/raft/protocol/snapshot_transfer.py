"""A snapshot on its way from a leader to a voter that is too far behind: in chunks, no faster than the voter takes them. Pure."""

from collections.abc import Callable

from ...quorum.snapshot_format import Snapshot, unpack_snapshot
from .messages import Chunk

TRANSFER_CHUNK_BYTES = 256 * 1024  # well below a frame, so that heartbeats get between two chunks
TRANSFER_WINDOW_BYTES = 4 * 1024 * 1024  # unsent bytes to one peer before we wait: bounds memory, not throughput
MAX_SNAPSHOT_BYTES = 1 << 30  # a transfer is assembled in memory; a million offsets are 8 MB


class SnapshotSender:
    """The leader's end: at most one transfer to each peer, paced by what the peer takes."""

    def __init__(self, read: Callable[[], bytes | None], backlog_bytes: Callable[[int], int]) -> None:
        self._read = read
        self._backlog_bytes = backlog_bytes
        self._transfers: dict[int, tuple[bytes, int]] = {}

    def next_chunk(self, node_id: int) -> Chunk | None:
        """Return the next chunk for this peer, or None when it must first take what it was sent."""
        if self._backlog_bytes(node_id) > TRANSFER_WINDOW_BYTES:
            return None
        if node_id not in self._transfers:
            data = self._read()
            if data is None:
                return None
            self._transfers[node_id] = (data, 0)
        data, position = self._transfers[node_id]
        end = min(position + TRANSFER_CHUNK_BYTES, len(data))
        is_last = end == len(data)
        if is_last:
            del self._transfers[node_id]
        else:
            self._transfers[node_id] = (data, end)
        return (len(data), position, data[position:end]), position == 0, is_last

    def cancel(self, node_id: int) -> None:
        self._transfers.pop(node_id, None)

    def is_sending_to(self, node_id: int) -> bool:
        return node_id in self._transfers


class SnapshotReceiver:
    """Assembles a transfer. Chunks that do not continue it are dropped: the leader will begin again."""

    def __init__(self) -> None:
        self._data = bytearray()

    def receive(self, chunk: Chunk) -> Snapshot | None:
        """Return the snapshot when `chunk` completes it. Raises DamagedSnapshot; the next transfer starts from the beginning."""
        (size_bytes, position, data), is_first, is_last = chunk
        if is_first:
            self._data = bytearray()
        if position != len(self._data) or size_bytes > MAX_SNAPSHOT_BYTES:
            self._data = bytearray()
            return None
        self._data += data
        if not is_last:
            return None
        whole, self._data = bytes(self._data), bytearray()
        return unpack_snapshot(whole) if len(whole) == size_bytes else None
