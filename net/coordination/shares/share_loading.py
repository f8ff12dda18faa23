"""Loads the states of share partitions from the coordinators of their groups, and has loaded ones confirmed for new sessions."""

import asyncio
from typing import Final

from barnabas.consumer_groups.share.share_partition import SharePartition
from barnabas.log.replication.partition import Partition
from barnabas.log.replication.partition_reads import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from barnabas.log.vocabulary.errors import CoordinatorNotAvailableError, NotLeaderOrFollowerError, error_for
from barnabas.log.vocabulary.share.messages import LoadShareStatesRequest, ShareStateToLoad
from barnabas.net.base.settings.group_config import ShareGroupConfig

from .led_partitions import Key, LedSharePartition, LedSharePartitions
from .share_sessions import ShareSessions
from .state_store import ShareStateStore

MAX_LED: Final = 10_000  # groups and partitions: each takes some kilobytes, and with all of its locks a hundred
READ_COMMITTED: Final = 1


class ShareLoading:
    def __init__(self, *, store: ShareStateStore, led: LedSharePartitions, sessions: ShareSessions) -> None:
        self._store = store
        self._led = led
        self._sessions = sessions
        self._loading: dict[Key, asyncio.Task[LedSharePartition]] = {}

    def close(self) -> None:
        for task in list(self._loading.values()):
            task.cancel()

    async def loaded(self, key: Key, partition: Partition, since: int, config: ShareGroupConfig) -> LedSharePartition:
        """As the coordinator has it after the moment `since`, at which a session began: an operator may have moved the group
        before that, when it had no members, and a leader keeps a state longer than its readers."""
        led = self._led.of_leadership(key, partition) or await self._loaded_once(key, partition, config)
        if led.is_confirmed(since):
            return led
        try:
            await self._led.confirm(led, self._sessions.moment())
        except NotLeaderOrFollowerError:
            return await self._loaded_once(key, partition, config)
        return led

    async def _loaded_once(self, key: Key, partition: Partition, config: ShareGroupConfig) -> LedSharePartition:
        """For all that ask meanwhile."""
        task = self._loading.get(key)
        if task is None:
            if len(self._led) + len(self._loading) >= MAX_LED:
                raise CoordinatorNotAvailableError(
                    f"this broker has loaded {MAX_LED} share partitions; try again later"
                )
            task = asyncio.get_running_loop().create_task(self._load(key[0], partition, config))
            self._loading[key] = task
            task.add_done_callback(lambda done: self._load_ended(key, done))
        return await asyncio.shield(task)

    def _load_ended(self, key: Key, task: "asyncio.Task[LedSharePartition]") -> None:
        self._loading.pop(key, None)
        if not task.cancelled():
            task.exception()  # every reader may be gone by now

    async def _load(self, group_id: str, partition: Partition, config: ShareGroupConfig) -> LedSharePartition:
        leader_epoch = partition.leader_epoch
        where = EARLIEST_TIMESTAMP if config.begins_at_earliest else LATEST_TIMESTAMP
        isolation_level = READ_COMMITTED if config.reads_committed else 0
        initial = partition.reads.list_offset(where, isolation_level=isolation_level).offset
        wanted = ShareStateToLoad(
            topic=partition.topic_partition.topic,
            topic_id=partition.topic_id,
            partition=partition.topic_partition.partition,
            leader_epoch=leader_epoch,
            initial_offset=initial,
        )
        asked = self._sessions.moment()
        answer = await self._store.load(LoadShareStatesRequest(group_id=group_id, states=(wanted,)))
        (state,) = answer.states
        if state.error:
            raise error_for(state.error, state.message)
        if not partition.role.is_leader or partition.leader_epoch != leader_epoch:
            raise partition.role.does_not_lead()
        machine = SharePartition(start_offset=state.start_offset, ranges=state.ranges, settings=config.settings)
        machine.log_ends_at(_common_end(partition, state.written_epoch))
        led = LedSharePartition(
            group_id=group_id,
            partition=partition,
            leader_epoch=leader_epoch,
            load_id=state.load_id,
            machine=machine,
            asked=asked,
        )
        self._led.put(led)
        self._led.store_later(led)  # if the log has lost its end
        return led


def _common_end(partition: Partition, written_epoch: int) -> int:
    """Where this log and that of the leader in `written_epoch` part: what either has behind it, the other has not (KIP-101)."""
    if 0 <= written_epoch < partition.leader_epoch:
        _, end_offset = partition.reads.end_offset_for_epoch(written_epoch)
        if end_offset >= 0:
            return min(end_offset, partition.log_end_offset)
    return partition.log_end_offset
