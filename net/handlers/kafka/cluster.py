"""DescribeCluster (60) and DescribeLogDirs (35), for Kafka's clients.

Versions: 0-2, 1-4. Behaviour: describes the cluster from the image of the broker that is asked, with fenced brokers only on
request; describes the data folders of that broker alone, an offline one with KAFKA_STORAGE_ERROR. Every operation is reported as
authorized; with an authorizer, `net/server/access` leaves those that this client has.

Our own DescribeCluster (`own.cluster`) has another handler because its meaning differs: it always lists all brokers, with details
for operators of Barnabas (replicas, group slots, troubled folders, ignored settings). A Kafka client needs addresses to connect
to: of unfenced brokers, once the metadata is known, and of one kind of endpoint.
"""

from __future__ import annotations

from collections import defaultdict

from barnabas.kraft.metadata.image import FOLDER_OFFLINE
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.logs.storage_service import DescribedFolder, StorageService
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import OPERATIONS_NOT_ASKED, KafkaRequest, KafkaResponse
from barnabas.net.wire.protocol.kafka.metadata_api import listed_controller

from ..common.services import Services
from ..own.metadata import KNOWN_WITHIN_MS
from .access import ALL_CLUSTER_OPERATIONS

_BROKERS, _CONTROLLERS = 1, 2  # endpoint types


class KafkaClusterHandlers:
    def __init__(self, services: Services, storage: StorageService) -> None:
        self._services = services
        self._storage = storage

    async def describe(
        self, request: KafkaRequest[bodies.DescribeClusterRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DescribeClusterResponse]:
        body = request.body
        if body.endpoint_type != _BROKERS:
            return KafkaResponse(body=_wrong_endpoint(body.endpoint_type))
        if not (body.include_fenced_brokers and self._services.metadata.image.brokers):
            await self._services.metadata.wait_until_known(timeout_ms=KNOWN_WITHIN_MS)
        image = self._services.metadata.image
        brokers = []
        for broker in sorted(image.brokers.values(), key=lambda broker: broker.node_id):
            if broker.fenced and not body.include_fenced_brokers:
                continue
            endpoint = broker.endpoint(context.listener_name)
            brokers.append(
                bodies.DescribeClusterResponse.DescribeClusterBroker(
                    broker_id=broker.node_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=broker.rack,
                    is_fenced=broker.fenced,
                )
            )
        active = [broker.broker_id for broker in brokers if not broker.is_fenced]
        answer = bodies.DescribeClusterResponse(
            cluster_id=image.cluster_id,
            controller_id=listed_controller(image.controller_id, active),
            brokers=brokers,
            cluster_authorized_operations=(
                ALL_CLUSTER_OPERATIONS if body.include_cluster_authorized_operations else OPERATIONS_NOT_ASKED
            ),
        )
        return KafkaResponse(body=answer)

    async def describe_log_dirs(
        self, request: KafkaRequest[bodies.DescribeLogDirsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DescribeLogDirsResponse]:
        asked = request.body.topics
        wanted = None if asked is None else {(item.topic, number) for item in asked for number in item.partitions}
        results = [self._folder(folder, wanted) for folder in await self._storage.describe()]
        return KafkaResponse(body=bodies.DescribeLogDirsResponse(results=results))

    def _folder(
        self, described: DescribedFolder, wanted: set[tuple[str, int]] | None
    ) -> bodies.DescribeLogDirsResponse.DescribeLogDirsResult:
        answer, folder = bodies.DescribeLogDirsResponse, described.folder
        result = answer.DescribeLogDirsResult(
            log_dir=folder.path, total_bytes=folder.total_bytes, usable_bytes=folder.free_bytes
        )
        if folder.state == FOLDER_OFFLINE:
            result.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)
            return result
        by_topic: dict[str, list[bodies.DescribeLogDirsResponse.DescribeLogDirsPartition]] = defaultdict(list)
        for topic_partition, size_bytes in sorted(described.sizes.items()):
            if wanted is None or topic_partition in wanted:
                by_topic[topic_partition.topic].append(
                    answer.DescribeLogDirsPartition(
                        partition_index=topic_partition.partition,
                        partition_size=size_bytes,
                        offset_lag=self._behind(topic_partition),
                    )
                )
        result.topics = [answer.DescribeLogDirsTopic(name=name, partitions=found) for name, found in by_topic.items()]
        return result

    def _behind(self, topic_partition: TopicPartition) -> int:
        """The lag of a replica's log behind the high watermark, in records."""
        partition = self._services.replication.manager.find(topic_partition)
        return 0 if partition is None else max(0, partition.high_watermark - partition.log.log_end_offset)


def _wrong_endpoint(endpoint_type: int) -> bodies.DescribeClusterResponse:
    is_known = endpoint_type == _CONTROLLERS
    return bodies.DescribeClusterResponse(
        error_code=int(ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        error_message="this is a broker, and it forwards requests to the controller: bootstrap from brokers"
        if is_known
        else f"endpoint type {endpoint_type} is unknown",
        endpoint_type=_BROKERS,
    )
