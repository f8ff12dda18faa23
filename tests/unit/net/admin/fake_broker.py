"""A broker behind the HTTP API: a small cluster in memory that answers from a table, and notes what it was asked."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from unit.net.described_groups import described_group

from barnabas.kraft.metadata.image import SLOT_COUNT, BrokerImage, Endpoint, MetadataImage, PartitionImage, TopicImage
from barnabas.log.settings.principal_rules import DEFAULT_RULES, PrincipalRules
from barnabas.log.vocabulary.access.acls import Acl, AclsOfFilter
from barnabas.log.vocabulary.access.quotas import EntityQuotas
from barnabas.log.vocabulary.cluster_changes import (
    AlterQuotasRequest,
    CreateAclsRequest,
    CreateTopicResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from barnabas.log.vocabulary.errors import ErrorCode, SaslAuthenticationError
from barnabas.log.vocabulary.group_messages import (
    CommittedOffset,
    OwnerChange,
    RebalanceEvent,
    RebalanceReason,
    UnownedPartition,
)
from barnabas.log.vocabulary.principal import Principal
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import TransactionTopic
from barnabas.net.admin.frame.backend import Sample
from barnabas.net.broker.in_process import InProcessConnection
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.client import Client, Home
from barnabas.net.client.connection.ports import Connection
from barnabas.net.server.access.access import AccessControl
from barnabas.net.server.dispatcher import Dispatcher, Reply
from barnabas.net.wire.protocol import group_responses, requests, responses
from barnabas.net.wire.protocol.apis import APIS
from barnabas.net.wire.protocol.transaction_operations import (
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    OpenTransaction,
    OpenTransactionsRequest,
    OpenTransactionsResponse,
)


def an_image() -> MetadataImage:
    brokers = {
        node: BrokerImage(
            node_id=node,
            broker_epoch=node + 1,
            incarnation=str(node),
            endpoints=(Endpoint(listener="PLAINTEXT", host="h", port=9092 + node),),
            fenced=node == 2,
        )
        for node in range(3)
    }
    partitions = (
        PartitionImage(replicas=(0, 1), isr=(0, 1), leader=0, leader_epoch=3),
        PartitionImage(replicas=(1, 2), isr=(1,), leader=1, adding_replicas=(2,)),
        PartitionImage(replicas=(2,), isr=(2,), leader=-1),
    )
    topic = TopicImage(name="t", topic_id="a" * 32, partitions=partitions)
    return MetadataImage(cluster_id="c1", controller_id=0, brokers=brokers, topics={"t": topic})


class FakeBroker:
    """Answers from a table of functions by request class and remembers what it was asked."""

    def __init__(self) -> None:
        self.node_id = 0
        self.ready = (True, "")
        self.origins: tuple[str, ...] = ()
        self.console = "on"
        self.schema_registry = ""
        self.are_metrics_public = False
        self.topics = dict(an_image().topics)  # as clients are told
        self.access: AccessControl | None = None
        self.acls: tuple[Acl, ...] = ()
        self.quotas: tuple[EntityQuotas, ...] = ()
        self.quorum = responses.DescribeQuorumResponse(leader_id=0, term=1, committed_index=1, voters=(0, 1, 2))
        self.asked: list[requests.Request] = []
        self.transactions: tuple[ListedTransaction, ...] = ()
        self.opened: tuple[OpenTransaction, ...] = ()  # in partitions
        self.dispatcher = Dispatcher(dict.fromkeys(APIS, self._answer))
        self.answers: dict[type, Callable[[Any], responses.Response]] = {
            requests.ListGroupsRequest: lambda _: group_responses.ListGroupsResponse(
                groups=(group_responses.ListedGroup(group_id="g", state="Stable", protocol="consumer", member_count=1),)
            ),
            requests.DescribeGroupRequest: described,
            requests.OffsetFetchRequest: lambda _: group_responses.OffsetFetchResponse(
                partitions=(
                    CommittedOffset(topic="t", partition=0, offset=40),
                    CommittedOffset(topic="t", partition=1, offset=95),
                )
            ),
            requests.ListOffsetsRequest: _offsets,
            requests.UnreadRequest: _unread,
            requests.DescribeConfigsRequest: lambda request: responses.DescribeConfigsResponse(
                entries=(_entry("retention.ms", "5", "topic"), _entry("segment.bytes", "9", "default"))
            ),
            requests.ProduceRequest: _produced,
            requests.DescribeAclsRequest: lambda request: responses.DescribeAclsResponse(acls=self.acls),
            requests.DescribeQuotasRequest: lambda request: responses.DescribeQuotasResponse(
                quotas=tuple(one for one in self.quotas if request.wanted.matches(one.entity))
            ),
            AlterQuotasRequest: lambda request: responses.EmptyResponse(),
            CreateAclsRequest: lambda request: responses.EmptyResponse(),
            DeleteAclsRequest: lambda request: DeleteAclsResponse(removed=(AclsOfFilter(acls=self.acls),)),
            requests.DescribeClusterRequest: lambda request: responses.DescribeClusterResponse(
                cluster_id="c1", controller_id=0, offset=1, brokers=()
            ),
            requests.FetchRequest: lambda request: responses.FetchResponse(
                partitions=tuple(
                    responses.FetchPartitionResponse(
                        topic=item.topic, partition=item.partition, error=ErrorCode.OFFSET_OUT_OF_RANGE
                    )
                    for item in request.partitions
                )
            ),
            requests.DescribeMovesRequest: lambda request: responses.DescribeMovesResponse(moves=()),
            requests.DescribeStorageRequest: lambda request: responses.DescribeStorageResponse(node_id=0, folders=()),
            ListTransactionsRequest: lambda request: ListTransactionsResponse(
                transactions=tuple(item for item in self.transactions if item.duration_ms >= request.min_duration_ms),
                slots=tuple(range(SLOT_COUNT)),
            ),
            DescribeTransactionRequest: lambda request: DescribeTransactionResponse(
                summary=self.transactions[0],
                started_ms=5,
                topics=(TransactionTopic(topic="t", topic_id="a" * 32, partitions=(0,)),),
                groups=("g",),
            ),
            OpenTransactionsRequest: lambda request: OpenTransactionsResponse(transactions=self.opened),
            requests.CreateTopicRequest: lambda request: CreateTopicResponse(
                name=request.name, topic_id="b" * 32, partition_count=4, replication_factor=2
            ),
        }

    def image(self) -> MetadataImage:
        return an_image()

    def host_names(self) -> set[str]:
        return {"broker-0.example"}

    def allowed_origins(self) -> tuple[str, ...]:
        return self.origins

    def is_ready(self) -> tuple[bool, str]:
        return self.ready

    def metrics(self) -> list[Sample]:
        return [
            Sample(name="barnabas_requests_total", type="counter", help="Requests.", value=3, labels={"api": 'a"b\n'})
        ]

    async def log_in(self, authorization: str, client_host: str, again: Principal | None = None) -> Principal:
        if authorization != "Basic " + base64.b64encode(b"alice:pencil").decode():
            raise SaslAuthenticationError("Authentication failed: invalid credentials with SASL mechanism PLAIN")
        return Principal(name="alice")

    @property
    def principal_rules(self) -> PrincipalRules:
        return DEFAULT_RULES

    @property
    def here(self) -> Connection:
        return InProcessConnection(self.dispatcher, "PLAINTEXT", "admin-api", 0)

    def admin(self) -> Admin:
        """All brokers of this cluster are the same one. No retry fits into the time: each refusal is told at once."""
        home = Home(self.node_id, ("here", 0))
        client = Client(new_pool=lambda: OneBroker(self.here), home=home, retry_backoff_ms=60_000)
        return Admin(client=client, timeout_ms=30_000)

    def _answer(self, request: requests.Request, context: object, reply: Reply) -> None:
        if isinstance(request, requests.DescribeQuorumRequest):
            return reply(self.quorum)
        if isinstance(request, requests.MetadataRequest):
            return reply(_metadata(request, self.topics))
        if isinstance(request, requests.FindCoordinatorRequest):
            return reply(group_responses.FindCoordinatorResponse(node_id=0, host="h", port=9092))
        self.asked.append(request)
        return reply(self.answers.get(type(request), lambda _: responses.EmptyResponse())(request))


class OneBroker:
    """A pool whose every address leads to the same broker."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def peek(self, host: str, port: int) -> Connection:
        return self._connection

    async def get(self, host: str, port: int) -> Connection:
        return self._connection

    async def close(self) -> None:
        """Nothing was opened."""


def _metadata(request: requests.MetadataRequest, topics: Mapping[str, TopicImage]) -> responses.MetadataResponse:
    return responses.MetadataResponse(
        cluster_id="c1",
        controller_id=0,
        offset=1,
        brokers=tuple(responses.BrokerMetadata(node_id=node, host="h", port=9092 + node) for node in range(2)),
        topics=tuple(_topic(name, topics.get(name)) for name in request.topics or ()),
    )


def _topic(name: str, topic: TopicImage | None) -> responses.TopicMetadata:
    if topic is None:
        return responses.TopicMetadata(
            error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, topic_id="", partitions=()
        )
    partitions = tuple(
        responses.PartitionMetadata(
            error=0, leader=one.leader, leader_epoch=one.leader_epoch, replicas=one.replicas, isr=one.isr
        )
        for one in topic.partitions
    )
    return responses.TopicMetadata(error=0, name=name, topic_id=topic.topic_id, partitions=partitions)


def described(request: requests.DescribeGroupRequest) -> responses.Response:
    if request.group_id != "g":
        return responses.ErrorResponse(error=ErrorCode.GROUP_ID_NOT_FOUND, message="no such group")
    event = RebalanceEvent(
        at_ms=60,
        cause="member_expired",
        member_id="m0",
        group_epoch=2,
        rebalance_id=4,
        reasons=(RebalanceReason(at_ms=60, cause="member_expired", member_id="m0"),),
        moves=(OwnerChange(topic="t", partition=0, from_member="m0", to_member="m1", at_ms=70, pause_ms=45_000),),
        moved_count=1,
        stable_after_ms=12,
    )
    return described_group(
        "g",
        TopicPartition("t", 0),
        event,
        member_id="m1",
        client_id="app",
        client_host="/127.0.0.1",
        unowned=(UnownedPartition(topic="t", partition=1, reason="member_away", text="it is away"),),
    )


def _offsets(request: requests.ListOffsetsRequest) -> responses.Response:
    return responses.ListOffsetsResponse(
        partitions=tuple(
            responses.ListOffsetsPartitionResponse(
                topic=item.topic,
                partition=item.partition,
                offset=100 if item.timestamp_ms == requests.LATEST_TIMESTAMP else 10,
            )
            for item in request.partitions
        )
    )


def _unread(request: requests.UnreadRequest) -> responses.Response:
    """Record n was appended at second n; it is second 103 now."""
    return group_responses.UnreadResponse(
        partitions=tuple(
            group_responses.UnreadPartitionResponse(
                topic=item.topic,
                partition=item.partition,
                log_start_offset=10,
                log_end_offset=100,
                first_unread_ms=1_000 * max(item.offset, 10) if item.offset < 100 else -1,
                last_append_ms=99_000,
                now_ms=103_000,
            )
            for item in request.partitions
        )
    )


def _produced(request: requests.ProduceRequest) -> responses.Response:
    (item,) = request.partitions
    return responses.ProduceResponse(
        partitions=(responses.ProducePartitionResponse(topic=item.topic, partition=item.partition, base_offset=7),)
    )


def _entry(key: str, value: str, source: str) -> responses.ConfigEntry:
    return responses.ConfigEntry(key=key, value=value, source=source, default="0", documentation="what it does")
