"""The limits of the network, each with a name and its reason. All sizes are bytes, all times milliseconds."""

from dataclasses import dataclass

MAX_FRAME_BYTES = 100 * 1024 * 1024  # Kafka's socket.request.max.bytes: no honest client needs more.
MAX_HELLO_BYTES = 16 * 1024  # A hello is three short fields; whoever has not said hello may not make us buffer more.
IDLE_BUFFER_BYTES = 32 * 1024  # Receive memory of a client's idle connection; a server's has none.
STREAM_BUFFER_BYTES = 1024 * 1024  # A connection that keeps its buffer full gets this much: more frames per wake-up.
RETAINED_BUFFER_BYTES = (
    8 * 1024 * 1024
)  # A buffer that grew beyond this for one huge frame is given back right after it.
MAX_ENVELOPE_BYTES = (
    16 * 1024 * 1024
)  # msgpack in front of the raw batches; the largest honest one is a metadata answer.
MAX_MESSAGE_ITEMS = 262_144  # Of all arrays of one Kafka answer: a frame of 100 MiB may name fifty million empty ones.
# Of Kafka's requests that name more than one thing for each that is done (replicas, keys), and of Metadata, whose handler tells a
# client with too many topics so: a tenth of a second of decoding.
MAX_WIDE_ITEMS = 65_536
# Of any other request: to read, look up and answer an item costs the loop 2 to 20 microseconds, and no client has as many
# partitions or groups to name at a time.
MAX_DATA_ITEMS = 20_000
MAX_FRAMES_PER_TURN = 64  # Of one connection, fewer in a crowd (fair_reads); then it is the others' turn.
SENDFILE_MIN_BYTES = 256 * 1024  # Below it one pread and one write are faster than sendfile (measured).
SENDMSG_MIN_BYTES = 64 * 1024  # From here on, joining buffers for one write costs more than a gathering write.
WRITE_RUN_BYTES = 512 * 1024  # Handed to the socket at once: bounds what a blocked transport holds in its own buffer.
UNLIMITED_DESCRIPTORS = 2**31  # No descriptor has such a number: for networks without descriptors, and for tests.
SWEEP_INTERVAL_MS = 1_000  # How often a server looks for idle, stalled and silent connections.
TIGHT_BUFFERED_BYTES = 64 * 1024  # In place of max_buffered_bytes while the memory of all connections is short.
MIN_PROGRESS_BYTES = 4 * 1024  # Between two sweeps. Who sends or reads less, though memory is held for it, is stalled.
SHORT_STALL_MS = 2_000  # A stalled connection is closed after this where others wait for the memory that it holds ...
MIN_PACE_BYTES = 256 * 1024  # ... and one whose request comes with less than this in each second behind that time ...
SHORT_FRAME_MS = 30_000  # ... or takes longer than this, whatever its progress.
LONG_STALL_MS = 30_000  # A stalled connection with an unfinished request is closed after this in any case.
MAX_LOGGED_PEERS = 256  # Peers remembered for "log once": a scan from many addresses must not grow this map.
LOG_AGAIN_AFTER_MS = 60_000  # The same peer's garbage is logged once a minute, not once a connection.


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What a server allows its clients."""

    max_connections: int = 10_000
    max_descriptor: int = (
        UNLIMITED_DESCRIPTORS  # Ordinary clients get descriptors below it; those beyond are for files and brokers.
    )
    max_frame_bytes: int = MAX_FRAME_BYTES
    max_requests_in_flight: int = 1_000  # Per connection; unanswered or unsent. Beyond it the connection is not read.
    max_buffered_bytes: int = 8 * 1024 * 1024  # Per connection, answers not yet sent. Beyond it, it is not read.
    handshake_timeout_ms: int = 10_000
    idle_timeout_ms: int = 600_000  # Kafka's connections.max.idle.ms.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """What a client allows itself and takes from a server."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    max_requests_in_flight: int = 1_000  # Per connection.
    silence_ms: int = 1_000  # Without a byte while answers are due, before the peer is asked for a sign of life.
    reconnect_backoff_ms: int = 50  # Kafka's reconnect.backoff.ms, doubled per failure ...
    reconnect_backoff_max_ms: int = 1_000  # ... up to Kafka's reconnect.backoff.max.ms.
