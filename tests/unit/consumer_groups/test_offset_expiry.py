"""Expiry of offsets and of groups that have nothing left (KIP-211's rule), in portions."""

from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.consumer_groups.model.states import GroupPhase
from barnabas.consumer_groups.offsets.offset_expiry import MAX_EXPIRED_PER_TICK, PORTION_PAUSE_MS
from barnabas.kraft.metadata.records import RemoveOffsetRecord
from barnabas.log.vocabulary.group_messages import OffsetToCommit

from .classic_world import ClassicWorld
from .coordinator_bench import GROUP, SLOT, Bench
from .test_offsets import at, commit, commit_as, fetched

RETENTION_MS = 100_000
CHECK_MS = 10_000
SETTINGS = GroupSettings(offsets_retention_ms=RETENTION_MS, offsets_retention_check_interval_ms=CHECK_MS)


def aged(topics: dict[str, int] | None = None) -> Bench:
    return Bench(topics=topics, settings=SETTINGS)


def pass_checks(bench: Bench, duration_ms: int) -> None:
    """Let time pass, with a tick at each deadline."""
    end_ms = bench.now_ms + duration_ms
    while True:
        deadline_ms = bench.coordinator.next_deadline_ms()
        if deadline_ms is None or deadline_ms > end_ms:
            break
        bench.tick(max(0, deadline_ms - bench.now_ms))
    bench.now_ms = end_ms


def test_offsets_of_a_group_that_never_had_members_live_from_their_last_commit() -> None:
    bench = aged()
    commit(bench, at(5))
    pass_checks(bench, RETENTION_MS // 2)
    commit(bench, at(6, partition=1))
    pass_checks(bench, RETENTION_MS // 2 + CHECK_MS)
    assert (fetched(bench, 0), fetched(bench, 1)) == (-1, 6)
    assert bench.phase() is GroupPhase.EMPTY
    pass_checks(bench, RETENTION_MS // 2)
    assert bench.phase() is GroupPhase.DEAD and bench.slots.slot(SLOT).offsets == {}
    assert bench.coordinator.next_deadline_ms() is None, "nothing is left that could expire"


def test_offsets_of_a_group_whose_members_left_live_from_then_on_also_under_a_new_coordinator() -> None:
    bench = aged()
    client = bench.join("a")
    commit_as(bench, client, 7)
    for _ in range(2 * RETENTION_MS // CHECK_MS):  # it lives, and it commits nothing
        bench.heartbeat(client.request())
        pass_checks(bench, CHECK_MS)
    assert fetched(bench) == 7
    bench.heartbeat(client.request(member_epoch=-1))
    assert bench.slots.slot(SLOT).groups[GROUP].group.empty_since_ms == bench.now_ms
    pass_checks(bench, RETENTION_MS // 2)
    bench.fail_over()
    pass_checks(bench, RETENTION_MS // 2 - CHECK_MS)
    assert fetched(bench) == 7
    pass_checks(bench, 2 * CHECK_MS)
    assert fetched(bench) == -1 and bench.phase() is GroupPhase.DEAD


def test_a_member_that_comes_back_stops_the_clock() -> None:
    bench = aged()
    client = bench.join("a")
    commit_as(bench, client, 7)
    bench.heartbeat(client.request(member_epoch=-1))
    pass_checks(bench, RETENTION_MS - CHECK_MS)
    back = bench.join("b")
    assert bench.slots.slot(SLOT).groups[GROUP].group.empty_since_ms == -1
    for _ in range(3):
        pass_checks(bench, CHECK_MS)
        bench.heartbeat(back.request())
    assert fetched(bench) == 7


def test_a_topic_that_no_member_reads_any_more_expires_while_the_group_lives() -> None:
    bench = aged({"t": 1, "u": 1})
    commit(bench, at(3, topic="u"), at(4))
    client = bench.join("a")  # it subscribes to t
    for _ in range(RETENTION_MS // CHECK_MS + 2):
        pass_checks(bench, CHECK_MS)
        bench.heartbeat(client.request())
    assert bench.slots.slot(SLOT).offsets[GROUP].keys() == {("t", 0)}


def test_a_classic_group_lives_as_long_as_its_members() -> None:
    world = ClassicWorld(settings=SETTINGS)
    (client,) = world.group_of("a")
    offset = OffsetToCommit(topic="t", partition=0, offset=9, leader_epoch=-1, metadata="")
    world.commit(
        world.coordinator.commit_offsets(
            group_id=client.request().group_id,
            member_id=client.member_id,
            member_epoch=client.generation,
            offsets=(offset,),
            now_ms=world.now_ms,
        )
    )
    for _ in range(2 * RETENTION_MS // CHECK_MS):
        world.pass_ms(CHECK_MS // 2)
        client.beat()
        world.pass_ms(CHECK_MS // 2)
        client.beat()
    assert world.coordinator.offsets.fetch(client.request().group_id)[0].offset == 9
    client.leave()
    world.pass_ms(RETENTION_MS + 2 * CHECK_MS)
    assert world.coordinator.offsets.fetch(client.request().group_id) == ()


def test_an_empty_group_without_offsets_disappears_at_the_next_check() -> None:
    bench = aged()
    client = bench.join("a")
    bench.heartbeat(client.request(member_epoch=-1))
    assert bench.phase() is GroupPhase.EMPTY
    pass_checks(bench, CHECK_MS + 1)
    assert bench.phase() is GroupPhase.DEAD


def test_a_large_expiry_goes_in_portions() -> None:
    bench = aged({"t": 3 * MAX_EXPIRED_PER_TICK})
    commit(bench, *(at(1, partition=number) for number in range(2 * MAX_EXPIRED_PER_TICK + 1)))
    sizes = []
    bench.now_ms += RETENTION_MS + CHECK_MS
    while bench.slots.slot(SLOT).offsets:
        records = bench.coordinator.tick(bench.now_ms).records
        sizes.append(sum(isinstance(record, RemoveOffsetRecord) for record in records))
        bench.commit(records)
        assert sizes[-1] <= MAX_EXPIRED_PER_TICK and len(sizes) < 10
        bench.now_ms += PORTION_PAUSE_MS
    assert sum(sizes) == 2 * MAX_EXPIRED_PER_TICK + 1 and len(sizes) == 3
