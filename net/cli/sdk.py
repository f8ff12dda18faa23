"""The part of the SDK that the commands use, as ports: `sdk_adapter` puts the real one behind them, tests put fakes there."""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from barnabas.log.topic_partition import TopicPartition
from barnabas.net.protocol.group_responses import DescribeGroupResponse, ListedGroup, UndoOffsetResetResponse
from barnabas.net.protocol.responses import (
    ConfigEntry,
    CreateTopicResponse,
    DescribeClusterResponse,
    DescribeMovesResponse,
    DescribeQuorumResponse,
    DescribeStorageResponse,
    TopicMetadata,
)

TOPIC_RESOURCE = 2  # Kafka's numbers of the kinds of resource that have a configuration
BROKER_RESOURCE = 4
ALL_BROKERS = ""  # the resource of what holds for all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far a group has come in one partition. `committed` -1: nothing is committed."""

    topic: str
    partition: int
    committed: int
    log_start_offset: int
    log_end_offset: int
    lag_seconds: float | None = None
    lag_is_estimate: bool = False

    @property
    def lag(self) -> int:
        """Records that the group has still to read; without a commit, all that there are."""
        return max(self.log_end_offset - max(self.committed, self.log_start_offset), 0)


class ConsumedRecord(Protocol):
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """How a broker introduces itself."""

    cluster_id: str
    node_id: int


class AdminPort(Protocol):
    async def create_topic(
        self, name: str, *, partitions: int, replication_factor: int, configs: Mapping[str, str], validate_only: bool
    ) -> CreateTopicResponse: ...
    async def list_topics(self) -> Sequence[TopicMetadata]: ...
    async def describe_topic(self, name: str) -> TopicMetadata: ...
    async def delete_topic(self, name: str) -> None: ...
    async def add_partitions(self, name: str, total_count: int) -> None: ...
    async def delete_records(self, topic: str, partition: int, before_offset: int) -> int: ...
    async def alter_config(self, resource_type: int, resource: str, changes: Mapping[str, str | None]) -> None: ...
    async def describe_configs(self, resource_type: int, resource: str) -> Sequence[ConfigEntry]: ...
    async def elect_leader(self, topic: str, partition: int, target: int | None) -> None: ...
    async def assign_replicas(
        self, topic: str, partition: int, replicas: Sequence[int], *, throttle_bytes_per_s: int
    ) -> None: ...
    async def describe_moves(self) -> DescribeMovesResponse: ...
    async def decommission_broker(self, node_id: int, *, cancel: bool, throttle_bytes_per_s: int) -> None: ...
    async def fill_broker(self, node_id: int, *, throttle_bytes_per_s: int) -> int: ...
    async def unregister_broker(self, node_id: int) -> None: ...
    async def shut_down_broker(self, node_id: int) -> None: ...
    async def describe_cluster(self) -> DescribeClusterResponse: ...
    async def add_voter(self, node_id: int) -> str: ...
    async def remove_voter(self, node_id: int) -> str: ...
    async def describe_quorum(self) -> DescribeQuorumResponse: ...
    async def describe_storage(self, node_id: int) -> DescribeStorageResponse: ...
    async def bring_back_folder(self, node_id: int, path: str) -> DescribeStorageResponse: ...
    async def list_groups(self) -> Sequence[ListedGroup]: ...
    async def describe_group(self, group: str) -> DescribeGroupResponse: ...
    async def explain_group(self, group: str) -> DescribeGroupResponse: ...
    async def group_offsets(self, group: str) -> Sequence[PartitionLag]: ...
    async def reset_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None: ...
    async def undo_reset(self, group: str, *, validate_only: bool) -> UndoOffsetResetResponse: ...
    async def delete_group(self, group: str) -> None: ...
    async def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Partition and timestamp (or one of the protocol's negative constants) to offset; -1 where there is none."""


class ProducerPort(Protocol):
    async def send_many(
        self, topic: str, values: Sequence[bytes], keys: Sequence[bytes | None] | None
    ) -> Awaitable[object]:
        """Hand records over (waits while the buffer is full); the result completes when all are acknowledged."""

    async def flush(self) -> None: ...


class ConsumerPort(Protocol):
    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets, without a group."""

    async def positions(self) -> Mapping[TopicPartition, int]:
        """The partitions that this consumer owns now, and the offset that it reads next in each."""

    async def poll(self, max_wait_ms: int) -> Iterable[ConsumedRecord]: ...
    def take_assigned(self) -> Sequence[TopicPartition]:
        """What the group gave us since the last call: what was printed of it before is not ours to commit any more."""

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None: ...


class Connector(Protocol):
    """Opens connections; each is closed at the end of its `async with`."""

    async def greet(self, host: str, port: int) -> Greeting:
        """Who answers at an address. Raises BarnabasError where nobody does in time."""

    def admin(self, bootstrap: str) -> AbstractAsyncContextManager[AdminPort]: ...
    def producer(self, bootstrap: str, *, acks: str) -> AbstractAsyncContextManager[ProducerPort]: ...
    def consumer(
        self, bootstrap: str, *, topics: Sequence[str], group: str | None, start: str
    ) -> AbstractAsyncContextManager[ConsumerPort]: ...
