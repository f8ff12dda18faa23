"""What producers, coordinators of transactions and partition leaders ask of each other: each message once, as it travels.

consumer_groups decides on these values, net/protocol frames them, and brokers and the SDK send them. Errors that concern a whole
request are raised as `BarnabasError`; those of one partition are codes in the answer.
"""

from .message import Items, Message

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1


class TransactionTopic(Message, frozen=True, kw_only=True):
    """Some partitions of one topic, sorted. The id tells a topic from a later one of the same name."""

    topic: str
    topic_id: str
    partitions: Items[int]
