"""What classic members say to each other, in Kafka's binary form."""

from barnabas.log.vocabulary.group_protocol import (
    ClientSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

SUBSCRIPTION = encode_subscription(ClientSubscription(topics=("t",)))


def test_what_members_say_to_each_other_is_read_where_it_can_be() -> None:
    owned = frozenset({("t", 0), ("t", 2), ("u", 1)})
    subscription = ClientSubscription(topics=("t", "u"), owned=owned, generation=7, rack="r", user_data=b"x")
    assert decode_subscription(encode_subscription(subscription)) == subscription
    assert decode_assignment(encode_assignment(owned, b"user")) == owned
    assert decode_subscription(SUBSCRIPTION) == ClientSubscription(topics=("t",))
    for length in range(len(SUBSCRIPTION)):
        assert decode_subscription(SUBSCRIPTION[:length]) is None
    assert decode_subscription(b"\x00\x00\x7f\xff\xff\xff") is None
    assert decode_assignment(b"") is None


def test_the_form_is_kafka_s_byte_for_byte() -> None:
    """As Kafka's ConsumerProtocol writes them (versions 3 and 1)."""
    subscription = ClientSubscription(topics=("ab",), owned=frozenset({("ab", 1)}), generation=5)
    expected = "00030000000100026162000000000000000100026162000000010000000100000005ffff"
    assert encode_subscription(subscription).hex() == expected
    assert encode_assignment(frozenset({("ab", 1)})).hex() == "00010000000100026162000000010000000100000000"


def test_fields_that_a_version_does_not_have_are_not_known() -> None:
    """Version 2 of Kafka's ConsumerProtocolSubscription ends before the rack; version 0 ends before what is owned."""
    whole = encode_subscription(ClientSubscription(topics=("t",), owned=frozenset({("t", 1)}), generation=5))
    second, zeroth = b"\x00\x02" + whole[2:-2], b"\x00\x00" + SUBSCRIPTION[2:]
    found = decode_subscription(second)
    assert found is not None and (found.generation, found.rack) == (5, None)
    assert decode_subscription(zeroth) == ClientSubscription(topics=("t",))
