"""`BatchGrowth`: how large the batches of one partition become. Pure.

A batch of `batch_size` leaves soon. A larger one shares the cost of a request, of three appends and of the followers' fetches
among more records: with 1 MB instead of 64 KB, clients and brokers need about half the processor time per record. So an open
batch that is full leaves if its broker can take it now, and grows otherwise, since it would only wait:

    full, broker has room ------> sealed, sent
    full, broker is busy -------> grows by batch_size, up to the partition's limit; leaves as soon as the broker has room
    full, at the limit ---------> sealed, waits

Brokers do not tell a producer `max.message.bytes` of a topic. So the limit falls to half of a batch that was refused for its
size, and stays there.
"""

# Requests in flight to a broker; with fewer, a batch leaves at once. Two would keep a broker busier, and cost all brokers an
# eighth more processor time per record, which is what limits them. Batches of the largest size do not wait for this.
BUSY_REQUESTS = 1


class BatchGrowth:
    """Sizes are uncompressed, without the batch's header. `step_bytes` is also the room of a first batch."""

    __slots__ = ("_is_refused", "_limit_bytes", "_step_bytes")

    def __init__(self, *, step_bytes: int, max_bytes: int) -> None:
        self._step_bytes = step_bytes
        self._limit_bytes = max(step_bytes, max_bytes)
        self._is_refused = False  # a batch was too large for the topic

    @property
    def first_bytes(self) -> int:
        """The room of a new batch."""
        return min(self._step_bytes, self._limit_bytes)

    def whole_bytes(self, wanted_bytes: int) -> int:
        """The size of a batch whose records are all at hand: `wanted_bytes`, unless the topic takes less."""
        return min(wanted_bytes, self._limit_bytes) if self._is_refused else wanted_bytes

    def room_of_full(self, room_bytes: int, *, requests: int, sealed: int) -> int:
        """The room of an open batch that is full, from now on; unchanged if it is to be sealed.

        `requests` are in flight to its broker, and `sealed` batches of the partition wait before it.
        """
        if requests < BUSY_REQUESTS and not sealed:
            return room_bytes
        return max(room_bytes, min(room_bytes + self._step_bytes, self._limit_bytes))

    def exceeds(self, size_bytes: int) -> bool:
        """Whether the topic would refuse a batch of this size."""
        return self._is_refused and size_bytes > self._limit_bytes

    def refused(self, size_bytes: int) -> None:
        """The topic does not take batches of this size."""
        self._is_refused = True
        self._limit_bytes = max(1, min(self._limit_bytes, size_bytes // 2))
