"""A process of its own that reads as a member of a group: `python group_member.py BOOTSTRAP TOPIC OPTIONS-AS-JSON`.

It prints a line as JSON for what it is told and for each record, so that a test sees what it did before it was killed.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.group.assignors import MemberSubscription


class EvenOdd:
    """An assignor of one's own: odd partitions to one half of the members, even ones to the other."""

    name = "even-odd"
    cooperative = True

    def assign(
        self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        found: dict[str, list[TopicPartition]] = {}
        names = sorted(members)
        for topic, count in partitions.items():
            for number in range(count):
                found.setdefault(names[number % 2 % len(names)], []).append(TopicPartition(topic, number))
        return found


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


async def main(bootstrap: str, topic: str, options: dict[str, Any]) -> None:
    if options.get("assignor") == EvenOdd.name:
        options["assignor"] = EvenOdd()
    handler_ms = options.pop("handler_ms", 0)
    consumer = Consumer(
        topic,
        bootstrap=bootstrap,
        auto_offset_reset="earliest",
        on_assigned=lambda partitions: say(assigned=[number for _, number in partitions]),
        on_revoked=lambda partitions: say(revoked=[number for _, number in partitions]),
        on_lost=lambda partitions: say(lost=[number for _, number in partitions]),
        **options,
    )
    async with consumer:
        async for record in consumer:
            await asyncio.sleep(handler_ms / 1000)
            say(read=[record.partition, record.offset])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
