"""Batches that nobody can read: refused where that can be found out cheaply, named by consumers where it could not."""

from collections.abc import Callable

import pytest
from hostile.nonsense_batches import ATTACK, RECORDS, TOPIC, nonsense, send
from integration.cluster import Cluster

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_batch import HEADER_SIZE
from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.client.connection.errors import UnreadableBatchError
from barnabas.net.client.consumer.consumer import Consumer

Maker = Callable[..., Cluster]
SECOND_RECORD = HEADER_SIZE + 12  # The first of `nonsense` takes twelve bytes.


async def test_nonsense_is_refused_and_what_slips_through_can_be_left_out(new_cluster: Maker) -> None:
    cluster = await new_cluster(1).ready()
    (node,) = cluster.nodes
    address = (node.host, node.port)
    async with ATTACK.run([address]):
        for codec in Compression:
            assert (await send(address, TOPIC, nonsense(codec))).error == ErrorCode.INVALID_RECORD
    good = encode_batch([b"good"], timestamps_ms=-1)
    assert (await send(address, TOPIC, good)).base_offset == 0, "nothing of the attack is in the log"
    slipped = await send(address, TOPIC, nonsense(Compression.NONE, from_byte=SECOND_RECORD))
    assert (slipped.error, slipped.base_offset) == (0, 1), "of an uncompressed batch only the first record is checked"
    assert (await send(address, TOPIC, good)).base_offset == 1 + RECORDS
    async with Consumer(TOPIC, bootstrap=node.address, auto_offset_reset="earliest") as consumer:
        seen: list[int] = []
        with pytest.raises(UnreadableBatchError, match=f"{TOPIC}-0 with the offsets 1 to {RECORDS}") as caught:
            async for record in consumer:
                assert record.value == b"good"
                seen.append(record.offset)
        consumer.seek(caught.value.partition, caught.value.next_offset)
        async for record in consumer:
            seen.append(record.offset)
            break
    assert seen == [0, 1 + RECORDS]
