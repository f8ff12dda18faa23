"""A snapshot is the state, in chunks: the same image after a round trip, and an error for anything else."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.kraft.group_state_fake import FakeGroupState

from barnabas.kraft.metadata.image import (
    SLOT_COUNT,
    BrokerImage,
    Endpoint,
    MetadataImage,
    PartitionImage,
    SlotImage,
    TopicImage,
)
from barnabas.kraft.metadata.records import GroupRecord
from barnabas.kraft.node.snapshot import MAX_CHUNK_BYTES, SnapshotError, decode_snapshot, encode_snapshot
from barnabas.log.vocabulary.access.acls import Acl, Operation, PatternKind, Permission, ResourceKind
from barnabas.log.vocabulary.access.quotas import QuotaEntity, QuotaKind

names = st.text("abc.-", min_size=1, max_size=5)
configs = st.dictionaries(names, st.dictionaries(names, st.text(max_size=5), min_size=1, max_size=3), max_size=3)
numbers = st.integers(-1, 2**40)
replicas = st.lists(numbers, max_size=3).map(tuple)
partitions = st.lists(
    st.builds(
        PartitionImage,
        replicas=replicas,
        isr=replicas,
        leader=numbers,
        leader_epoch=numbers,
        partition_epoch=numbers,
        eligible_leader_replicas=replicas,
        adding_replicas=replicas,
        removing_replicas=replicas,
        last_known_leader=numbers,
    ),
    max_size=3,
).map(tuple)
endpoints = st.builds(Endpoint, listener=names, host=names, port=numbers)
registered = st.builds(
    BrokerImage,
    node_id=numbers,
    broker_epoch=numbers,
    incarnation=names,
    endpoints=st.lists(endpoints, max_size=2).map(tuple),
    admin_endpoint=st.none() | endpoints,
    rack=st.none() | names,
    directories=st.lists(names, max_size=2).map(tuple),
    fenced=st.booleans(),
    in_controlled_shutdown=st.booleans(),
)
permissions = st.builds(
    Acl,
    kind=st.sampled_from(ResourceKind),
    pattern=st.sampled_from(PatternKind),
    name=names,
    principal=names,
    host=names,
    operation=st.sampled_from(Operation),
    permission=st.sampled_from(Permission),
)
acls = st.lists(permissions, max_size=6, unique=True).map(
    lambda found: {one.resource: tuple(acl for acl in found if acl.resource == one.resource) for one in found}
)


quotas = st.dictionaries(
    st.builds(QuotaEntity, user=st.none() | names, client_id=st.none() | names, ip=st.none() | names),
    st.dictionaries(st.sampled_from([str(kind) for kind in QuotaKind]), st.floats(0.5, 1e9), min_size=1),
    max_size=4,
)


@st.composite
def images(draw: st.DrawFn) -> MetadataImage:
    topics = {
        name: TopicImage(name=name, topic_id=f"id of {name}", partitions=draw(partitions))
        for name in draw(st.sets(names, max_size=4))
    }
    brokers = {broker.node_id: broker for broker in draw(st.lists(registered, max_size=3))}
    epoch = draw(st.integers(0, 9))
    return MetadataImage(
        cluster_id=draw(names),
        offset=draw(st.integers(0, 2**40)),
        controller_epoch=draw(st.integers(0, 99)),
        controller_id=draw(st.integers(-1, 9)),
        feature_level=draw(st.integers(1, 9)),
        next_producer_id=draw(st.integers(0, 2**60)),
        brokers=brokers,
        topics=topics,
        topic_names={topic.topic_id: name for name, topic in topics.items()},
        topic_configs=draw(configs),
        broker_configs=draw(configs),
        group_configs=draw(configs),
        acls=draw(acls),
        quotas=draw(quotas),
        slots=tuple(
            SlotImage(coordinator=number, coordinator_epoch=epoch + number % 3) for number in range(SLOT_COUNT)
        ),
    )


def group(slot: int, name: str) -> GroupRecord:
    return GroupRecord(slot=slot, coordinator_epoch=0, group_id=name, group_epoch=1, assignment_epoch=1)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(images(), st.lists(st.tuples(st.integers(0, SLOT_COUNT - 1), names), max_size=5))
def test_the_same_state_after_a_round_trip(image: MetadataImage, groups: list[tuple[int, str]]) -> None:
    state = FakeGroupState()
    for slot, name in groups:
        state.replay(group(slot, name), 1)
    decoded, records = decode_snapshot(encode_snapshot(image, state))
    assert decoded == image
    assert records == [record for slot in range(SLOT_COUNT) for record in state.records_of(slot)]


def large() -> list[bytes]:
    partition = PartitionImage(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1)
    image = MetadataImage(topics={"t": TopicImage(name="t", topic_id="T", partitions=(partition,) * 20_000)})
    state = FakeGroupState()
    for number in range(10_000):
        state.replay(group(7, f"group {number}"), 1)
    return list(encode_snapshot(image, state))


def test_every_chunk_fits_a_frame() -> None:
    chunks = large()
    assert max(map(len, chunks)) < MAX_CHUNK_BYTES
    assert len(chunks) > 5
    image, records = decode_snapshot(chunks)
    assert len(image.topics["t"].partitions) == 20_000
    assert [record.group_id for record in records if isinstance(record, GroupRecord)][-1] == "group 9999"


def test_a_snapshot_that_was_cut_or_damaged_is_noticed() -> None:
    chunks = large()
    newer = msgpack.packb([0, [99, []]])
    unknown = msgpack.packb([77, []])
    for damaged in (
        [],
        chunks[:-1],
        chunks[1:],
        chunks[:2] + chunks[3:],
        [chunks[0], chunks[0]],
        [*chunks, chunks[1]],
        [newer, *chunks[1:]],
        [chunks[0], unknown, *chunks[1:]],
        [chunks[0], chunks[1][:-1], *chunks[2:]],
        [b"", *chunks],
    ):
        with pytest.raises(SnapshotError):
            decode_snapshot(damaged)
