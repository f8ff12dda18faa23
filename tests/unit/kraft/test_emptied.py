"""When a broker that leaves for good holds nothing any more."""

from msgspec.structs import replace

from barnabas.kraft.metadata.image import BrokerImage, MetadataImage, PartitionImage, SlotImage, TopicImage


def test_a_broker_has_left_when_it_holds_nothing_and_was_to_leave() -> None:
    leaving = BrokerImage(node_id=3, broker_epoch=1, incarnation="a", endpoints=(), decommissioning=True)
    image = MetadataImage(brokers={3: leaving})
    assert image.is_emptied(3)
    assert not image.is_emptied(4)
    assert not replace(image, brokers={3: replace(leaving, decommissioning=False)}).is_emptied(3)
    assert not replace(image, slots=(SlotImage(coordinator=3),)).is_emptied(3)
    for replicas, is_emptied in (((1, 2), True), ((1, 3), False)):
        topic = TopicImage(name="t", topic_id="1", partitions=(PartitionImage(replicas=replicas, isr=(1,)),))
        others = (SlotImage(coordinator=1), SlotImage(coordinator=2))
        assert replace(image, topics={"t": topic}, slots=others).is_emptied(3) == is_emptied
