"""Names of the APIs. Kafka's numbers where Kafka has the API, so that both protocols meet in the same handlers."""

from enum import IntEnum


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    CREATE_TOPIC = 19
    DELETE_TOPIC = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    ADD_PARTITIONS = 37
    DELETE_GROUP = 42
    ELECT_LEADER = 43
    ALTER_CONFIG = 44
    ASSIGN_REPLICAS = 45
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    UNREGISTER_BROKER = 64
    CONSUMER_GROUP_HEARTBEAT = 68
    # Ours: above every key that Kafka has or plans.
    CONTROLLER_CALL = 1000
    METADATA_FEED = 1001
    RESET_OFFSETS = 1002
    BROKER_SHUTDOWN = 1003
    DESCRIBE_STORAGE = 1004
    BRING_BACK_FOLDER = 1005
    ALTER_VOTERS = 1006
    QUORUM_ROLE = 1007
    DESCRIBE_MOVES = 1008
    # 1009, 1010 and later ones: FORWARDED of log/vocabulary/cluster_changes.
    UNDO_OFFSET_RESET = 1011
    UNREAD = 1012
