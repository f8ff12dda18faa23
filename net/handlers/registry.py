"""Which handler serves which API: the table that a dispatcher is made of."""

from collections.abc import Callable

from barnabas.log.vocabulary.cluster_changes import (
    FORWARDED,
    AlterUsersRequest,
    CreateAclsRequest,
    DecommissionBrokerRequest,
    DeleteAclsRequest,
)
from barnabas.net.logs.storage_service import StorageService
from barnabas.net.server.dispatcher import Handler, answering
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.apis import key_of
from barnabas.net.wire.protocol.kafka.apis import KafkaApi

from .common.changes import ForwardingHandler
from .common.services import Services
from .kafka.cluster import KafkaClusterHandlers
from .kafka.configs import KafkaConfigHandlers
from .kafka.fetch import FetchByTopicId
from .kafka.group_admin import KafkaGroupAdminHandlers
from .kafka.groups import KafkaGroupHandlers
from .kafka.metadata import KafkaMetadataHandler
from .kafka.offsets import KafkaOffsetHandlers
from .kafka.partitions import KafkaPartitionHandlers
from .kafka.quorum import KafkaQuorumHandlers
from .kafka.topics import KafkaTopicHandlers
from .kafka.transactions import KafkaTransactionHandlers
from .kafka.versions import api_versions
from .own.classic_groups import ClassicGroupHandlers
from .own.cluster import ClusterHandlers
from .own.configs import ConfigHandlers
from .own.controller import ControllerHandlers
from .own.groups import GroupHandlers
from .own.metadata import MetadataHandler
from .own.moves import MoveHandlers
from .own.offsets import OffsetHandlers
from .own.producer_ids import ProducerIdHandler
from .own.storage import StorageHandlers
from .own.topics import TopicHandlers
from .own.transactions import TransactionHandlers, TransactionOperationHandlers
from .own.voters import VoterHandlers
from .records.fetch import FetchHandler
from .records.produce import ProduceHandler
from .records.unread import UnreadHandler
from .security.acls import AclHandlers, KafkaAclHandlers
from .security.kafka_users import KafkaUserHandlers
from .security.quotas import KafkaQuotaHandlers, QuotaHandlers
from .security.sasl import KafkaSaslHandlers
from .security.users import LoginHandler, UserHandlers
from .shares.kafka import KafkaShareHandlers
from .shares.kafka_admin import KafkaShareAdminHandlers
from .shares.own import ShareHandlers


def build_handlers(services: Services, *, shut_down: Callable[[], None], storage: StorageService) -> dict[int, Handler]:
    disks = StorageHandlers(services.node_id, storage)
    topics = TopicHandlers(services)
    cluster = ClusterHandlers(services, shut_down=shut_down)
    voters = VoterHandlers(services)
    controller = ControllerHandlers(services)
    configs = ConfigHandlers(services)
    groups = GroupHandlers(services)
    classic_groups = ClassicGroupHandlers(services)
    offsets = OffsetHandlers(services)
    moves = MoveHandlers(services, voters)
    forwarding = ForwardingHandler(services)
    fetch = FetchHandler(services)
    metadata = MetadataHandler(services)
    return {
        ApiKey.PRODUCE: ProduceHandler(services),
        ApiKey.INIT_PRODUCER_ID: answering(ProducerIdHandler(services.producer_ids).init),
        ApiKey.FETCH: fetch,
        ApiKey.LIST_OFFSETS: offsets.list_offsets,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.end_of_epoch,
        ApiKey.DELETE_RECORDS: offsets.delete_records,
        ApiKey.UNREAD: UnreadHandler(services),
        ApiKey.METADATA: answering(metadata),
        ApiKey.CREATE_TOPIC: answering(topics.create, survives_disconnect=True),
        ApiKey.DELETE_TOPIC: answering(topics.delete, survives_disconnect=True),
        ApiKey.ADD_PARTITIONS: answering(topics.add_partitions, survives_disconnect=True),
        ApiKey.ASSIGN_REPLICAS: answering(topics.assign_replicas, survives_disconnect=True),
        ApiKey.ELECT_LEADER: answering(topics.elect_leader, survives_disconnect=True),
        ApiKey.DESCRIBE_CONFIGS: answering(configs.describe),
        ApiKey.ALTER_CONFIG: answering(configs.alter, survives_disconnect=True),
        ApiKey.DESCRIBE_CLUSTER: answering(cluster.describe_cluster),
        ApiKey.EVENTS: answering(cluster.events),
        ApiKey.DESCRIBE_QUORUM: answering(voters.describe),
        ApiKey.ALTER_VOTERS: answering(voters.alter),
        ApiKey.QUORUM_ROLE: answering(voters.role, survives_disconnect=True),
        ApiKey.UNREGISTER_BROKER: answering(cluster.unregister, survives_disconnect=True),
        ApiKey.BROKER_SHUTDOWN: answering(cluster.shut_down),
        ApiKey.DESCRIBE_STORAGE: answering(disks.describe),
        ApiKey.DESCRIBE_BROKER: answering(services.figures.describe),
        ApiKey.GROUP_LAGS: answering(services.figures.group_lags_request),
        ApiKey.BRING_BACK_FOLDER: answering(disks.bring_back, survives_disconnect=True),
        ApiKey.DESCRIBE_MOVES: answering(moves.describe),
        **{row.api_key: answering(forwarding, survives_disconnect=True) for row in FORWARDED},
        key_of(DecommissionBrokerRequest): answering(moves.decommission, survives_disconnect=True),
        ApiKey.CONTROLLER_CALL: answering(controller.call, survives_disconnect=True),
        ApiKey.METADATA_FEED: answering(controller.feed),
        ApiKey.FIND_COORDINATOR: answering(groups.find_coordinator),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: answering(groups.heartbeat),
        ApiKey.JOIN_GROUP: answering(classic_groups.join),
        ApiKey.SYNC_GROUP: answering(classic_groups.sync),
        ApiKey.HEARTBEAT: answering(classic_groups.heartbeat),
        ApiKey.LEAVE_GROUP: answering(classic_groups.leave, survives_disconnect=True),
        ApiKey.OFFSET_COMMIT: answering(groups.commit_offsets, survives_disconnect=True),
        ApiKey.OFFSET_FETCH: answering(groups.fetch_offsets),
        ApiKey.LIST_GROUPS: answering(groups.list_groups),
        ApiKey.DESCRIBE_GROUPS: answering(groups.describe_group),
        ApiKey.DELETE_GROUP: answering(groups.delete_group, survives_disconnect=True),
        ApiKey.RESET_OFFSETS: answering(groups.reset_offsets, survives_disconnect=True),
        ApiKey.DELETE_OFFSETS: answering(groups.delete_offsets, survives_disconnect=True),
        ApiKey.UNDO_OFFSET_RESET: answering(groups.undo_reset, survives_disconnect=True),
        **_user_handlers(services),
        **_kafka_handlers(services, groups, classic_groups),
        **_transaction_handlers(services),
        **_kafka_admin_handlers(services, metadata, storage, voters),
        **_kafka_topic_handlers(services, fetch, topics, offsets),
        **_acl_handlers(services),
        **_quota_handlers(services),
        **_share_handlers(services),
    }


def _share_handlers(services: Services) -> dict[int, Handler]:
    own = ShareHandlers(services)
    kafka = KafkaShareHandlers(services, own)
    admin = KafkaShareAdminHandlers(services)
    return {
        ApiKey.SHARE_GROUP_HEARTBEAT: answering(own.heartbeat),
        ApiKey.SHARE_FETCH: answering(own.fetch),
        ApiKey.SHARE_ACKNOWLEDGE: answering(own.acknowledge, survives_disconnect=True),
        ApiKey.LOAD_SHARE_STATES: answering(own.load_states, survives_disconnect=True),
        ApiKey.WRITE_SHARE_STATES: answering(own.write_states, survives_disconnect=True),
        ApiKey.SHARE_VIEWS: answering(own.views),
        KafkaApi.SHARE_GROUP_HEARTBEAT: answering(kafka.heartbeat),
        KafkaApi.SHARE_FETCH: answering(kafka.fetch),
        KafkaApi.SHARE_ACKNOWLEDGE: answering(kafka.acknowledge, survives_disconnect=True),
        KafkaApi.SHARE_GROUP_DESCRIBE: answering(admin.describe),
        KafkaApi.DESCRIBE_SHARE_GROUP_OFFSETS: answering(admin.describe_offsets),
        KafkaApi.ALTER_SHARE_GROUP_OFFSETS: answering(admin.alter_offsets, survives_disconnect=True),
        KafkaApi.DELETE_SHARE_GROUP_OFFSETS: answering(admin.delete_offsets, survives_disconnect=True),
    }


def _acl_handlers(services: Services) -> dict[int, Handler]:
    own = AclHandlers(services)
    kafka = KafkaAclHandlers(own)
    return {
        ApiKey.DESCRIBE_ACLS: answering(own.describe),
        key_of(CreateAclsRequest): answering(own.create, survives_disconnect=True),
        key_of(DeleteAclsRequest): answering(own.delete, survives_disconnect=True),
        KafkaApi.DESCRIBE_ACLS: answering(kafka.describe),
        KafkaApi.CREATE_ACLS: answering(kafka.create, survives_disconnect=True),
        KafkaApi.DELETE_ACLS: answering(kafka.delete, survives_disconnect=True),
    }


def _quota_handlers(services: Services) -> dict[int, Handler]:
    own = QuotaHandlers(services)
    kafka = KafkaQuotaHandlers(own)
    return {
        ApiKey.DESCRIBE_QUOTAS: answering(own.describe),
        KafkaApi.DESCRIBE_CLIENT_QUOTAS: answering(kafka.describe),
        KafkaApi.ALTER_CLIENT_QUOTAS: answering(kafka.alter, survives_disconnect=True),
    }


def _kafka_handlers(
    services: Services, groups: GroupHandlers, classic_groups: ClassicGroupHandlers
) -> dict[int, Handler]:
    """What Kafka's clients ask of groups; the rest of what they ask goes to the handlers of our own requests."""
    kafka_groups = KafkaGroupHandlers(services, groups, classic_groups)
    kafka_offsets = KafkaOffsetHandlers(services)
    kafka_group_admin = KafkaGroupAdminHandlers(services, groups)
    return {
        KafkaApi.API_VERSIONS: api_versions(lambda: services.metadata.image.offset, services.figures.measures.greeted),
        KafkaApi.FIND_COORDINATOR: answering(kafka_groups.find_coordinator),
        KafkaApi.JOIN_GROUP: answering(kafka_groups.join),
        KafkaApi.SYNC_GROUP: answering(kafka_groups.sync),
        KafkaApi.LEAVE_GROUP: answering(kafka_groups.leave, survives_disconnect=True),
        KafkaApi.CONSUMER_GROUP_HEARTBEAT: answering(kafka_groups.consumer_heartbeat),
        KafkaApi.OFFSET_FETCH: answering(kafka_offsets.fetch),
        KafkaApi.OFFSET_DELETE: answering(kafka_offsets.delete, survives_disconnect=True),
        KafkaApi.LIST_GROUPS: answering(kafka_group_admin.list),
        KafkaApi.DESCRIBE_GROUPS: answering(kafka_group_admin.describe),
        KafkaApi.DELETE_GROUPS: answering(kafka_group_admin.delete, survives_disconnect=True),
        KafkaApi.CONSUMER_GROUP_DESCRIBE: answering(kafka_group_admin.describe_consumer_groups),
    }


def _user_handlers(services: Services) -> dict[int, Handler]:
    kafka = KafkaSaslHandlers(services.authenticator)
    kafka_users = KafkaUserHandlers(services)
    users = UserHandlers(services)
    return {
        KafkaApi.SASL_HANDSHAKE: kafka.handshake,
        KafkaApi.SASL_AUTHENTICATE: answering(kafka.authenticate),
        KafkaApi.DESCRIBE_USER_SCRAM_CREDENTIALS: answering(kafka_users.describe),
        KafkaApi.ALTER_USER_SCRAM_CREDENTIALS: answering(kafka_users.alter, survives_disconnect=True),
        ApiKey.AUTHENTICATE: answering(LoginHandler(services.authenticator)),
        ApiKey.DESCRIBE_USERS: answering(users.describe),
        key_of(AlterUsersRequest): answering(users.alter, survives_disconnect=True),
    }


def _transaction_handlers(services: Services) -> dict[int, Handler]:
    own = TransactionHandlers(services)
    kafka = KafkaTransactionHandlers(services, own)
    operations = TransactionOperationHandlers(services)
    return {
        ApiKey.INIT_TRANSACTIONS: answering(own.init, survives_disconnect=True),
        ApiKey.ADD_TO_TRANSACTION: answering(own.add, survives_disconnect=True),
        ApiKey.PREPARE_TRANSACTION: answering(own.prepare, survives_disconnect=True),
        ApiKey.END_TRANSACTION: answering(own.end, survives_disconnect=True),
        ApiKey.TRANSACTIONAL_OFFSET_COMMIT: answering(own.commit_offsets, survives_disconnect=True),
        ApiKey.WRITE_MARKERS: answering(own.write_markers, survives_disconnect=True),
        ApiKey.LIST_TRANSACTIONS: answering(operations.list),
        ApiKey.DESCRIBE_TRANSACTION: answering(operations.describe),
        ApiKey.ABORT_TRANSACTION: answering(operations.abort, survives_disconnect=True),
        ApiKey.OPEN_TRANSACTIONS: answering(operations.open),
        ApiKey.ABORT_HANGING: answering(operations.abort_hanging, survives_disconnect=True),
        KafkaApi.ADD_PARTITIONS_TO_TXN: answering(kafka.add_partitions, survives_disconnect=True),
        KafkaApi.ADD_OFFSETS_TO_TXN: answering(kafka.add_offsets, survives_disconnect=True),
        KafkaApi.END_TXN: answering(kafka.end, survives_disconnect=True),
        KafkaApi.WRITE_TXN_MARKERS: answering(kafka.write_markers, survives_disconnect=True),
        KafkaApi.TXN_OFFSET_COMMIT: answering(kafka.commit_offsets, survives_disconnect=True),
        KafkaApi.DESCRIBE_TRANSACTIONS: answering(kafka.describe),
        KafkaApi.LIST_TRANSACTIONS: answering(kafka.list),
    }


def _kafka_admin_handlers(
    services: Services, metadata: MetadataHandler, storage: StorageService, voters: VoterHandlers
) -> dict[int, Handler]:
    """What Kafka's clients ask of configurations, the cluster, and who may do what."""
    configs = KafkaConfigHandlers(services)
    cluster = KafkaClusterHandlers(services, storage)
    return {
        KafkaApi.METADATA: KafkaMetadataHandler(metadata),
        KafkaApi.DESCRIBE_CONFIGS: answering(configs.describe),
        KafkaApi.ALTER_CONFIGS: answering(configs.alter, survives_disconnect=True),
        KafkaApi.INCREMENTAL_ALTER_CONFIGS: answering(configs.alter_incrementally, survives_disconnect=True),
        KafkaApi.LIST_CONFIG_RESOURCES: answering(configs.list_resources),
        KafkaApi.DESCRIBE_CLUSTER: answering(cluster.describe),
        KafkaApi.DESCRIBE_LOG_DIRS: answering(cluster.describe_log_dirs),
        KafkaApi.DESCRIBE_QUORUM: answering(KafkaQuorumHandlers(voters).describe),
    }


def _kafka_topic_handlers(
    services: Services, fetch: FetchHandler, topics: TopicHandlers, offsets: OffsetHandlers
) -> dict[int, Handler]:
    """What Kafka's clients ask of topics and partitions."""
    kafka_topics = KafkaTopicHandlers(services, topics)
    kafka_partitions = KafkaPartitionHandlers(services, topics, offsets)
    return {
        KafkaApi.FETCH: FetchByTopicId(services, fetch),
        KafkaApi.CREATE_TOPICS: answering(kafka_topics.create, survives_disconnect=True),
        KafkaApi.DELETE_TOPICS: answering(kafka_topics.delete, survives_disconnect=True),
        KafkaApi.CREATE_PARTITIONS: answering(kafka_topics.add_partitions, survives_disconnect=True),
        KafkaApi.DELETE_RECORDS: kafka_partitions.delete_records,
        KafkaApi.ELECT_LEADERS: answering(kafka_partitions.elect, survives_disconnect=True),
        KafkaApi.ALTER_PARTITION_REASSIGNMENTS: answering(kafka_partitions.reassign, survives_disconnect=True),
        KafkaApi.LIST_PARTITION_REASSIGNMENTS: kafka_partitions.list_reassignments,
        KafkaApi.DESCRIBE_PRODUCERS: answering(kafka_partitions.describe_producers),
    }
