"""What a description of a group tells to a client that may not describe all of its topics."""

from types import SimpleNamespace
from typing import Any

from barnabas.log.vocabulary.share.messages import SHARE_PROTOCOL, SharePartitionView
from barnabas.net.server.access.own_rules import visible_group
from barnabas.net.wire.protocol.group_responses import DescribeGroupResponse


def view(topic: str) -> SharePartitionView:
    return SharePartitionView(topic=topic, partition=0, start_offset=5, log_end_offset=9, lag=4, acquired=1)


def test_partitions_of_a_share_group_are_those_of_topics_that_the_client_may_describe() -> None:
    response = DescribeGroupResponse(
        group_id="workers",
        state="Stable",
        group_epoch=1,
        assignment_epoch=1,
        assignor="simple",
        coordinator=0,
        members=(),
        protocol=SHARE_PROTOCOL,
        shares=(view("open"), view("secret")),
    )
    access: Any = SimpleNamespace(may_topic=lambda operation, topic: topic == "open")
    assert visible_group(response, access).shares == (view("open"),)
