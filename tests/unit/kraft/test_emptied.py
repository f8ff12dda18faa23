"""When a broker that leaves for good holds nothing any more."""

from msgspec.structs import replace

from barnabas.kraft.metadata.image import BrokerImage, MetadataImage, SlotImage


def test_a_broker_has_left_when_it_holds_nothing_and_was_to_leave() -> None:
    leaving = BrokerImage(node_id=3, broker_epoch=1, incarnation="a", endpoints=(), decommissioning=True)
    image = MetadataImage(brokers={3: leaving})
    assert image.is_emptied(3)
    assert not image.is_emptied(4)
    assert not replace(image, brokers={3: replace(leaving, decommissioning=False)}).is_emptied(3)
    assert not replace(image, slots=(SlotImage(coordinator=3),)).is_emptied(3)
