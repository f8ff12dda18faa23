"""What a produce request without acknowledgement does when it is refused."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import BarnabasError, NotLeaderOrFollowerError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.handlers.common.services import NoFigures, Services
from barnabas.net.handlers.records import produce
from barnabas.net.handlers.records.produce import ProduceHandler
from barnabas.net.server.memory_budget import MemoryBudget
from barnabas.net.wire.protocol.requests import ProducePartition, ProduceRequest


class Replication:
    """Leads nothing but partition 0. It is its own manager."""

    def __init__(self) -> None:
        self.manager = self
        self.appended: list[TopicPartition] = []

    def partition(self, topic_partition: TopicPartition) -> Any:
        if topic_partition.partition != 0:
            raise NotLeaderOrFollowerError("the leader is broker 2")
        log = SimpleNamespace(log_start_offset=0, config=LogConfig())
        role = SimpleNamespace(leader_state=SimpleNamespace(led_since_ms=-60_000))
        return SimpleNamespace(topic_partition=topic_partition, log=log, role=role, bytes_in=0, records_in=0)

    def find(self, topic_partition: TopicPartition) -> Any:
        return self.partition(topic_partition) if topic_partition.partition == 0 else None

    def append(self, partition: Any, records: Any, *, acks: int) -> tuple[Any, int]:
        self.appended.append(partition.topic_partition)
        return SimpleNamespace(first_offset=0, last_offset=0, log_append_time_ms=-1, duplicate=False), 1

    def as_told(self, topic_partition: TopicPartition, error: BarnabasError) -> BarnabasError:
        return error

    def leader_hint(self, topic_partition: TopicPartition) -> tuple[int, int]:
        return 2, 5


class Context:
    def __init__(self) -> None:
        self.ended: list[str] = []
        self.connection = object()

    def no_reply(self) -> None:
        self.ended.append("no reply")

    def hang_up(self) -> None:
        self.ended.append("hung up")


@pytest.mark.skipif(not produce.__file__.endswith(".py"), reason="compiled, it takes nothing but a ReplicaManager")
@pytest.mark.parametrize(("partitions", "ended"), [((0,), "no reply"), ((1, 0), "hung up")])
def test_a_producer_that_wants_no_answer_hears_of_an_error_by_its_connection(
    partitions: tuple[int, ...], ended: str
) -> None:
    replication, context = Replication(), Context()
    handler = ProduceHandler(
        cast(
            Services,
            SimpleNamespace(
                replication=replication,
                clock=SimpleNamespace(now_ms=lambda: 0),
                memory=MemoryBudget(),
                verification=SimpleNamespace(is_needed=lambda item: False),
                figures=NoFigures(),
            ),
        )
    )
    items = tuple(ProducePartition(topic="t", partition=number, records=b"x") for number in partitions)
    answers: list[object] = []
    handler(ProduceRequest(acks=0, timeout_ms=1, partitions=items), cast(Any, context), answers.append)
    assert context.ended == [ended] and answers == []
    assert replication.appended == [TopicPartition("t", 0)]
