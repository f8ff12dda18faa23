"""What one request after the other tells a leader about the partitions that a broker follows. Pure: times are arguments.

Without a session, each request names all partitions. In a fetch session (KIP-227), the leader keeps the position of each, and a
request names those with another one: a thousand idle partitions cost nothing beside one that is busy. An offset that the leader
keeps is as good as one that is named again, because it is the acknowledgement of a log that has not changed since.

A partition is looked at before a request if an answer had it, if something has happened to it, if it is restless (the leader
does not count it as in sync, or it could not be fetched), and every `LOOK_AGAIN_S` in any case: what nobody has thought of
is noticed then.

An answer counts for a partition only if its request had the present position. A request that overtakes another one (a partition
has come, and must not wait for the end of a long poll) looks only at what has happened, and names all of that again: what the
answer of the overtaken request says of it is dropped, and the leader answers it anew.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from msgspec.structs import replace

from barnabas.log.replication.follower import FetchPosition
from barnabas.log.replication.replica import UNKNOWN_OFFSET
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.requests import FINAL_EPOCH, INITIAL_EPOCH, FetchPartition, epoch_after

from ...base.limits import MAX_DATA_ITEMS

LOOK_AGAIN_S: Final = 10.0
MAX_LOOKS_AGAIN: Final = 200  # before one request, of those that nothing has happened to
MAX_FORGOTTEN: Final = MAX_DATA_ITEMS  # in one request; with more, the session begins again


class FollowerSession:
    def __init__(self, *, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self.session_id = 0  # 0: the next request names all partitions, and begins a session if one is wanted
        self._next_epoch = INITIAL_EPOCH
        self.number = 0  # of the newest request
        # What the leader has. Empty: the request asks for nothing.
        self.named: dict[TopicPartition, FetchPartition] = {}
        # Positions that no answer had yet, and the number of the first request with each; a subset of `named`
        self._asked: dict[TopicPartition, tuple[FetchPosition, int]] = {}
        # Partitions to which something has happened that may change what to ask for. The owner adds them.
        self.happened: dict[TopicPartition, None] = {}
        self._restless: dict[TopicPartition, None] = {}
        # Of `named`: the last answer did not say that all records are here, and committed, or there was none in this session. The
        # owner adds those that were answered.
        self.unsettled: dict[TopicPartition, None] = {}
        self._looked_at_s: dict[TopicPartition, float] = {}  # of `named`, the longest ago first

    def close(self) -> None:
        """The leader may not have received the last request, or its answer is lost."""
        self.session_id, self._next_epoch = 0, INITIAL_EPOCH

    # --- requests ----------------------------------------------------------------------------------------------------

    def to_look_at(
        self, partitions: Iterable[TopicPartition], now_s: float, *, overtakes: bool
    ) -> list[TopicPartition]:
        """Begin a request, and return the partitions to look at: each is then `keep` or `leave`. `partitions`: all."""
        self.number += 1
        happened, self.happened = self.happened, {}
        if not self.session_id:
            for kept in (self.named, self._asked, self._restless, self.unsettled, self._looked_at_s):
                kept.clear()
            return list(partitions)
        if not overtakes:
            if self._restless:
                happened |= self._restless
            for topic_partition, looked_at_s in islice(self._looked_at_s.items(), MAX_LOOKS_AGAIN):
                if looked_at_s + LOOK_AGAIN_S > now_s:
                    break
                happened[topic_partition] = None
        return list(happened)

    def keep(
        self,
        topic_partition: TopicPartition,
        item: FetchPartition,
        position: FetchPosition,
        now_s: float,
        *,
        names: bool,
        is_restless: bool,
    ) -> bool:
        """The partition is fetched from this position. Return whether the request must name it; `names`: in any case."""
        self._asked[topic_partition] = (position, self.number)
        self._looked_at_s.pop(topic_partition, None)
        self._looked_at_s[topic_partition] = now_s
        if is_restless:
            self._restless[topic_partition] = None
        elif self._restless:
            self._restless.pop(topic_partition, None)
        if not (names or is_restless) and self.named.get(topic_partition) == item:
            return False
        if self.session_id and topic_partition not in self.named:
            self.unsettled[topic_partition] = None
        self.named[topic_partition] = item
        return True

    def leave(self, topic_partition: TopicPartition, *, is_restless: bool) -> FetchPartition | None:
        """The partition is not fetched now; `is_restless`: look again before the next request. Return what the leader must
        forget."""
        self._asked.pop(topic_partition, None)
        self._looked_at_s.pop(topic_partition, None)
        self.unsettled.pop(topic_partition, None)
        if is_restless:
            self._restless[topic_partition] = None
        else:
            self._restless.pop(topic_partition, None)
        return self.named.pop(topic_partition, None)

    def sent(self) -> tuple[int, int]:
        """Session id and session epoch of the request that is ready."""
        if not self._is_wanted:
            return 0, FINAL_EPOCH
        epoch = self._next_epoch
        if self.session_id:
            self._next_epoch = epoch_after(epoch)
        return self.session_id, epoch

    # --- answers -----------------------------------------------------------------------------------------------------

    def answered(self, session_id: int) -> None:
        """The session of an answer; 0: the leader keeps none (its version is older, or it has too many)."""
        if session_id == 0 or not self._is_wanted:
            self.close()
        elif not self.session_id:
            self.session_id, self._next_epoch = session_id, 1
        elif session_id != self.session_id:
            self.close()

    def position(self, topic_partition: TopicPartition, number: int) -> FetchPosition | None:
        """The position that request `number` had; None: another one is asked for since, or an answer had it before. That one was
        to a request that this one has overtaken, and the leader says what is dropped now only if it is named again."""
        asked = self._asked.get(topic_partition)
        if asked is None:
            known = self.named.get(topic_partition)
            if known is not None:
                self.named[topic_partition] = replace(known, fetch_offset=UNKNOWN_OFFSET)
            return None
        if asked[1] > number:
            return None
        del self._asked[topic_partition]
        return asked[0]
