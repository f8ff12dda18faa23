"""Up to where a micro-batch reads: limits, delays, Trigger.AvailableNow, and what was lost meanwhile."""

from dataclasses import replace

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.spark_connector.read.offsets import StreamOffset
from barnabas.spark_connector.read.read_options import parse_read_options
from barnabas.spark_connector.read.stream_planner import LogEnds, Plan, StreamPlanner

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
IDS = {"a": "1"}


def planner(**options: str) -> StreamPlanner:
    return StreamPlanner(parse_read_options({"bootstrap.servers": "h:1", "subscribe": "a", **options}, is_stream=True))


def at(a0: int, a1: int = 0) -> StreamOffset:
    """Some way into the stream."""
    return StreamOffset(offsets={A0: a0, A1: a1}, topic_ids=IDS, initial={A0: 0, A1: 0})


def ends(a0: int, a1: int = 0) -> LogEnds:
    return LogEnds(ends={A0: a0, A1: a1}, topic_ids=IDS)


def plan(chosen: StreamPlanner, start: StreamOffset, found: LogEnds, now_ms: float = 0, limited: bool = True) -> Plan:
    return chosen.next_end(start, found, now_ms, is_limited=limited)


def test_without_limits_everything_is_read() -> None:
    assert plan(planner(), at(3), ends(9, 4)) == Plan(end=at(9, 4))


def test_without_news_the_end_is_the_start() -> None:
    assert plan(planner(), at(9, 4), ends(9, 4)).end == at(9, 4)


def test_the_first_batch_is_planned_even_if_it_is_empty() -> None:
    """So that where the stream began is in the checkpoint, and `latest` can never move again."""
    began = StreamOffset(offsets={A0: 5, A1: 6}, topic_ids=IDS)
    found = plan(planner(minOffsetsPerTrigger="100"), began, ends(5, 6)).end
    assert found != began
    assert found == StreamOffset(offsets={A0: 5, A1: 6}, topic_ids=IDS, initial={A0: 5, A1: 6})


def test_the_limit_is_shared_unless_the_trigger_wants_all() -> None:
    chosen = planner(maxOffsetsPerTrigger="10")
    assert plan(chosen, at(0), ends(75, 25)).end == at(7, 2)
    assert plan(chosen, at(0), ends(75, 25), limited=False).end == at(75, 25)


def test_too_little_waits_until_it_is_enough_or_the_delay_is_over() -> None:
    chosen = planner(minOffsetsPerTrigger="10", maxTriggerDelay="1s")
    assert plan(chosen, at(0), ends(3), now_ms=50).end == at(3)  # The first is never held back.
    assert plan(chosen, at(3), ends(12), now_ms=60).end == at(3)
    assert plan(chosen, at(3), ends(13), now_ms=70).end == at(13)
    assert plan(chosen, at(13), ends(14), now_ms=1_069).end == at(13)
    assert plan(chosen, at(13), ends(14), now_ms=1_070).end == at(14)


def test_available_now_waits_for_nobody() -> None:
    chosen = planner(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="20")
    chosen.stop_at(ends(30))
    start, seen = at(0), []
    while (following := plan(chosen, start, chosen.target or ends(0)).end) != start:
        start = following
        seen.append(start.offsets[A0])
    assert seen == [20, 30]


def test_new_partitions_join() -> None:
    found = plan(planner(), at(3), LogEnds(ends={A0: 3, A1: 0, B0: 2}, topic_ids={"a": "1", "b": "2"}))
    assert found.lost == () and found.end.offsets == {A0: 3, A1: 0, B0: 2}


def test_what_is_lost_is_told_and_left_behind() -> None:
    start = replace(at(5, 5), offsets={A0: 5, A1: 5, B0: 5}, topic_ids={"a": "1", "b": "2"})
    gone = plan(planner(), start, ends(6, 6))
    assert gone.lost == ("topic b does not exist any more",) and B0 not in gone.end.offsets
    remade = plan(planner(), at(5, 5), LogEnds(ends={A0: 2, A1: 0}, topic_ids={"a": "new"}))
    assert remade.lost == ("topic a was deleted and recreated: its earlier records are gone",)
    assert remade.end.offsets == {A0: 2, A1: 0}
    cut = plan(planner(), at(5, 5), ends(4, 6))
    assert cut.lost == ("a-0 ends at offset 4, before the query's 5",)
    fewer = plan(planner(), at(5, 5), LogEnds(ends={A0: 5}, topic_ids=IDS))
    assert fewer.lost == ("a-1 does not exist any more",)
