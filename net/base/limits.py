"""The limits of the network, each with a name and its reason. All sizes are bytes, all times milliseconds."""

from collections.abc import Sized
from dataclasses import dataclass

from barnabas.log.vocabulary.errors import InvalidRequestError

MAX_FRAME_BYTES = 100 * 1024 * 1024  # Kafka's socket.request.max.bytes: no well-behaved client needs more.
MAX_LOGIN_FRAME_BYTES = 64 * 1024  # before a login: a token is the largest thing that a client needs to send
MAX_HELLO_BYTES = 16 * 1024  # A hello is three short fields; before it, a client must not make the server buffer more.
IDLE_BUFFER_BYTES = 32 * 1024  # Receive memory of a client's idle connection; a server's has none.
STREAM_BUFFER_BYTES = 1024 * 1024  # A connection that keeps its buffer full gets this much: more frames per wake-up.
RETAINED_BUFFER_BYTES = 8 * 1024 * 1024  # A buffer that grew beyond this for one huge frame is released right after it.
MAX_ENVELOPE_BYTES = (
    16 * 1024 * 1024
)  # msgpack in front of the raw batches; the largest legitimate one is a metadata response.
MAX_MESSAGE_ITEMS = 262_144  # Of all arrays of one Kafka answer: a frame of 100 MiB may name fifty million empty ones.
# Of Kafka's requests with more than one element for each item of work (replicas, keys), and of Metadata, whose handler returns an
# error to a client with too many topics: a tenth of a second of decoding.
MAX_WIDE_ITEMS = 65_536
# Of any other request: to read, look up and answer an item takes the loop 2 to 20 microseconds, and no client needs to name so
# many partitions or groups in one request.
MAX_DATA_ITEMS = 20_000
# Of a request of our own protocol that may name every partition of a group or a transaction: 100,000 of them, and their topics.
MAX_GROUP_ITEMS = 131_072
MAX_MARKERS = (
    2_000  # Of one request; coordinators send 200. Each takes some 50 microseconds to write, and has lists of its own.
)
# Clients name so many offsets of a group in one request. MAX_DATA_ITEMS of them, decided and applied as one, take a coordinator's
# loop and the thread of each voter some 60 ms.
OFFSETS_PER_REQUEST = 10_000
MAX_FRAMES_PER_TURN = 64  # Per connection; fewer if many connections are busy (fair_reads). Then others are served.
SENDFILE_MIN_BYTES = 256 * 1024  # Below this size, one pread and one write are faster than sendfile (measured).
SENDMSG_MIN_BYTES = 64 * 1024  # From this size on, joining buffers for one write costs more than a gathering write.
WRITE_RUN_BYTES = 512 * 1024  # Passed to the socket at once: bounds the data in the own buffer of a blocked transport.
SWEEP_INTERVAL_MS = 1_000  # How often a server looks for idle, stalled and silent connections.
TIGHT_BUFFERED_BYTES = 64 * 1024  # Replaces queued.max.request.bytes while the memory of all connections is short.
MIN_PROGRESS_BYTES = 4 * 1024  # Between two sweeps. A client that sends or reads less while it holds memory is stalled.
SHORT_STALL_MS = 2_000  # A stalled connection is closed after this if others wait for the memory that it holds ...
MIN_PACE_BYTES = 256 * 1024  # ... and so is one that sends a request with fewer bytes per second after that time ...
SHORT_FRAME_MS = 30_000  # ... or takes longer than this, whatever its progress.
LONG_STALL_MS = 30_000  # A stalled connection with an unfinished request is closed after this in any case.
MAX_LOGGED_PEERS = 256  # Peers that "log once" remembers: a scan from many addresses must not make this map grow.
LOG_AGAIN_AFTER_MS = 60_000  # Invalid data of one peer is logged once a minute, not once per connection.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """The limits that a client sets for itself and for a server."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    max_requests_in_flight: int = 1_000  # Per connection.
    silence_ms: int = 1_000  # Without a received byte while responses are due; then the client sends a probe.
    close_ms: int = 1_000  # At a close, what was written is dropped if the peer takes nothing of it for so long.
    reconnect_backoff_ms: int = 50  # Kafka's reconnect.backoff.ms, doubled per failure ...
    reconnect_backoff_max_ms: int = 1_000  # ... up to Kafka's reconnect.backoff.max.ms.


def check_count(items: Sized) -> None:
    """Raises InvalidRequestError for more partitions, or topics, than one request may name. Called before they are walked
    through: the values of our own protocol have no limit when they are decoded."""
    if len(items) > MAX_DATA_ITEMS:  # not by `check_number`: each produce and fetch comes by here
        check_number(len(items))


def check_number(partitions: int) -> None:
    """`check_count` of partitions that stand in several lists."""
    if partitions > MAX_DATA_ITEMS:
        raise InvalidRequestError(f"{partitions} partitions are named in one request; name {MAX_DATA_ITEMS} at most")
