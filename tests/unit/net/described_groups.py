"""The description of a group with one member that reads one partition, as a coordinator gives it."""

from barnabas.log.vocabulary.group_messages import RebalanceEvent, TopicPartitions, UnownedPartition
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.group_responses import DescribeGroupResponse, GroupMember


def described_group(
    group_id: str,
    place: TopicPartition,
    event: RebalanceEvent,
    *,
    member_id: str,
    client_id: str,
    client_host: str,
    unowned: tuple[UnownedPartition, ...] = (),
) -> DescribeGroupResponse:
    """`event` is the rebalance that led to the present assignment."""
    owned = (TopicPartitions(topic=place.topic, partitions=(place.partition,)),)
    member = GroupMember(
        member_id=member_id,
        instance_id=None,
        client_id=client_id,
        client_host=client_host,
        member_epoch=event.group_epoch,
        subscribed_topics=(place.topic,),
        assigned=owned,
        target=owned,
    )
    return DescribeGroupResponse(
        group_id=group_id,
        state="Stable",
        group_epoch=event.group_epoch,
        assignment_epoch=event.group_epoch,
        assignor="range",
        coordinator=0,
        members=(member,),
        rebalances=(event,),
        unowned=unowned,
    )
