"""The topics of the transactional load, its clients, and what they are told."""

from dataclasses import dataclass
from typing import Final, Literal

Role = Literal[
    "source",
    "librdkafka_transform",
    "aiokafka_transform",
    "sdk_transform",
    "librdkafka_bank",
    "aiokafka_bank",
    "sdk_bank",
    "librdkafka_reader",
]

SOURCE: Final = "source"
MIDDLE: Final = "middle"
SINK: Final = "sink"
COPIES: Final = "copies"  # of the source, too
BANKS: Final = ("bank-0", "bank-1")  # an account for each partition
CUT: Final = "cut"  # its records are deleted, by retention and by DeleteRecords
TOPICS: Final[dict[str, int]] = {SOURCE: 3, MIDDLE: 2, SINK: 2, COPIES: 2, BANKS[0]: 3, BANKS[1]: 3, CUT: 2}
TOPIC_CONFIG: Final[dict[str, dict[str, str]]] = {CUT: {"retention.ms": "5000", "segment.ms": "2000"}}
ACCOUNTS: Final = [(topic, number) for topic in BANKS for number in range(TOPICS[topic])]
FIRST_GROUP: Final = "first-stage"
SECOND_GROUP: Final = "second-stage"
THIRD_GROUP: Final = "copies"
STAGES: Final = ((SOURCE, MIDDLE, FIRST_GROUP), (MIDDLE, SINK, SECOND_GROUP), (SOURCE, COPIES, THIRD_GROUP))
TRANSACTIONAL: Final[tuple[Role, ...]] = (
    "librdkafka_transform",
    "aiokafka_transform",
    "sdk_transform",
    "librdkafka_bank",
    "aiokafka_bank",
    "sdk_bank",
)
TRANSACTION_TIMEOUT_MS: Final = 6_000
SESSION_TIMEOUT_MS: Final = 6_000
ABORTS: Final = 0.2  # the share of transactions that are meant to be aborted
PAUSES: Final = 0.1  # the share of transactions that stay open for a while
PAUSE_S: Final = 1.0
MAX_REREAD: Final = 300  # records of a partition that a new reader begins before the end
BATCH: Final = 40  # records of one transaction of a transform, at most
CALL_S: Final = 10.0  # of one call of a client, which is then repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a process is told."""

    role: Role
    slot: int
    process: str  # unique: no other process, before or after, has this name
    bootstrap: str
    journal: str
    seed: int
    pace_s: float

    @property
    def transactional_id(self) -> str:
        """The same for every process of this role and slot: each fences the one before."""
        return f"{self.role}-{self.slot}"
